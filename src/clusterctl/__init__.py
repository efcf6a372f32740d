"""One command from a laptop to a GPU cluster: containerised multi-node graph-network training on Slurm.

    import clusterctl

    run = clusterctl.submit("cora", cluster="local", overrides={"train.epochs": 5, "resources.nodes": 2})
    run.wait(timeout=600)

`load` resolves a job, `plan` renders its script, `submit` sends it, `resume` starts a run again, `rerun` repeats one
as a new run, `diff` compares two; `runs` and `find` return the runs there are. Every name below is imported when it is
first used (docs/guides/from-python.md).
"""

TYPE_CHECKING = False  # as in typing, whose import takes longer than all of this; type checkers know the name
if TYPE_CHECKING:
    from clusterctl.api import find as _find
    from clusterctl.api.diff import diff
    from clusterctl.api.find import find
    from clusterctl.api.images import images
    from clusterctl.api.nodes import nodes
    from clusterctl.api.notify import notify
    from clusterctl.api.rerun import rerun
    from clusterctl.api.resume import resume
    from clusterctl.api.run import Run, RunFailed
    from clusterctl.api.submit import DryRun, load, plan, submit
    from clusterctl.api.track import track
    from clusterctl.errors import (
        ClusterctlError,
        ConfigError,
        ImageError,
        NotFoundError,
        SlurmError,
        UsageError,
        WaitTimedOut,
    )
    from clusterctl.runs import metrics as _metrics
    from clusterctl.runs import program as _program

    class _Runs:
        """`clusterctl.runs`, a package that can be called."""

        __call__ = staticmethod(_find.runs)
        log = staticmethod(_metrics.log)
        phase = staticmethod(_metrics.phase)
        checkpoint = staticmethod(_program.checkpoint)
        latest_checkpoint = staticmethod(_program.latest_checkpoint)
        request_restart = staticmethod(_program.request_restart)
        stop_requested = staticmethod(_program.stop_requested)

    runs: _Runs

__version__ = "0.1.0"

__all__ = [
    "ClusterctlError",
    "ConfigError",
    "DryRun",
    "ImageError",
    "NotFoundError",
    "Run",
    "RunFailed",
    "SlurmError",
    "UsageError",
    "WaitTimedOut",
    "diff",
    "find",
    "images",
    "load",
    "nodes",
    "notify",
    "plan",
    "rerun",
    "resume",
    "runs",
    "submit",
    "track",
]
_HOMES = {"Run": "api.run", "RunFailed": "api.run", "find": "api.find", "images": "api.images", "nodes": "api.nodes"}
_HOMES |= {name: f"api.{name}" for name in ("diff", "notify", "rerun", "resume", "track")}
_HOMES |= dict.fromkeys(("DryRun", "load", "plan", "submit"), "api.submit")


if not TYPE_CHECKING:  # type checkers are to find a name that is not there

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name == "runs":  # a package that can be called (docs/decisions/0036)
            return import_module("clusterctl.runs")
        return getattr(import_module(f"clusterctl.{_HOMES.get(name, 'errors')}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
