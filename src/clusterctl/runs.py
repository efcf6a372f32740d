"""`clusterctl.runs(...)` lists runs. Its other names are earlier ones of what is now in `clusterctl.program`.

Programs that use them still work, with one warning per name. `python -m clusterctl.runs` is a task of a run, in images
that bring their own clusterctl.
"""

import sys
import warnings
from types import ModuleType
from typing import Any

_OF_A_PROGRAM = ("checkpoint", "latest_checkpoint", "log", "phase", "request_restart", "stop_requested")


def __getattr__(name: str) -> Any:
    if name not in _OF_A_PROGRAM:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from clusterctl import program

    warnings.warn(f"clusterctl.runs.{name} is now clusterctl.program.{name}", FutureWarning, stacklevel=2)
    found = globals()[name] = getattr(program, name)  # stored, so that it warns only once
    return found


class _Callable(ModuleType):
    """Makes `clusterctl.runs` both this module and a function (docs/decisions/architecture.md)."""

    def __call__(self, **wanted: Any) -> Any:
        from importlib import import_module

        find = import_module("clusterctl").find  # from here on, values look as in a terminal
        return import_module(find.__module__).runs(**wanted)  # login node only; tasks never call it


if __name__ == "__main__":
    from clusterctl.shared.node.__main__ import main

    main()
else:
    sys.modules[__name__].__class__ = _Callable
