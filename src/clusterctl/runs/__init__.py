"""The run directory: the record shared by the login node and the tasks. Uses only the standard library.

Start reading with `layout` (where everything is) and `entry` (how a task starts). A user's own program needs only the
names below, documented in `metrics` and `program`.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clusterctl.runs.metrics import log, phase
    from clusterctl.runs.program import checkpoint, latest_checkpoint, request_restart, stop_requested

__all__ = ["checkpoint", "latest_checkpoint", "log", "phase", "request_restart", "stop_requested"]


def __getattr__(name: str) -> Any:
    """Import names on first use: every clusterctl command, and the emulator's, imports this package."""
    if name in ("log", "phase"):
        from clusterctl.runs import metrics

        return getattr(metrics, name)
    if name in __all__:
        from clusterctl.runs import program

        return getattr(program, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _Package(ModuleType):
    """Makes `clusterctl.runs` both this package and a function that lists runs (docs/decisions/architecture.md)."""

    def __call__(self, **wanted: Any) -> Any:
        from importlib import import_module

        return import_module("clusterctl.api.find").runs(**wanted)  # login node only; tasks never call it


sys.modules[__name__].__class__ = _Package
