"""The run directory: the record that both halves share, with the standard library alone.

Begin with `layout` (where everything lies) and `entry` (how a task starts). A user's own program needs only the names
below, which `metrics` and `program` explain.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from clusterctl.runs.metrics import log, phase

if TYPE_CHECKING:
    from clusterctl.runs.program import checkpoint, latest_checkpoint, request_restart, stop_requested

__all__ = ["checkpoint", "latest_checkpoint", "log", "phase", "request_restart", "stop_requested"]


def __getattr__(name: str) -> Any:
    """Import what a program needs when it asks for it: every command of clusterctl imports this package."""
    if name in __all__:
        from clusterctl.runs import program

        return getattr(program, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _Package(ModuleType):
    """So that `clusterctl.runs` is this package and, called, lists runs (docs/decisions/0036)."""

    def __call__(self, **wanted: Any) -> Any:
        from importlib import import_module

        return import_module("clusterctl.api.find").runs(**wanted)  # the login half's, which tasks never call


sys.modules[__name__].__class__ = _Package
