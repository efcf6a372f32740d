"""One command from a laptop to a GPU cluster: containerised multi-node graph-network training on Slurm.

    import clusterctl

    run = clusterctl.submit("cora", cluster="local", overrides={"train.epochs": 5, "resources.nodes": 2})
    run.wait(timeout=600)

`load` resolves a job, `plan` renders its script, `submit` submits it, `sweep` submits it with many settings; `resume`
restarts a run, `rerun` repeats one as a new run, `diff` compares two, `export` archives one; `runs` and `find` look up
runs, `usage` sums up the resources they used, `clean` removes old ones. Each name below is imported at first use
(docs/guides/from-python.md).
"""

TYPE_CHECKING = False  # like typing.TYPE_CHECKING, without the slow import of typing; type checkers know the name
if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterctl.api.clean import clean
    from clusterctl.api.find import diff, find
    from clusterctl.api.images import images
    from clusterctl.api.nodes import nodes
    from clusterctl.api.notify import notify, track
    from clusterctl.api.rerun import rerun
    from clusterctl.api.resume import resume
    from clusterctl.api.run import Run, RunFailed
    from clusterctl.api.stages import submit_stages
    from clusterctl.api.submit import DryRun, load, plan, submit
    from clusterctl.api.sweep import sweep
    from clusterctl.api.sweeps import Sweep, SweepFailed, find_sweep
    from clusterctl.api.usage import usage
    from clusterctl.display.report.archive import export
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
        """`clusterctl.runs`, a callable package."""

        def __call__(
            self,
            *,
            stage: str | Iterable[str] = (),
            name: str | Iterable[str] = (),
            since: str | float | None = None,
            cluster: str | None = None,
            count: int | None = None,
        ) -> list[Run]: ...

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
    "Sweep",
    "SweepFailed",
    "UsageError",
    "WaitTimedOut",
    "clean",
    "diff",
    "export",
    "find",
    "find_sweep",
    "images",
    "load",
    "nodes",
    "notify",
    "plan",
    "rerun",
    "resume",
    "runs",
    "submit",
    "submit_stages",
    "sweep",
    "track",
    "usage",
]
_HOMES = {"Run": "api.run", "RunFailed": "api.run", "find": "api.find", "images": "api.images", "nodes": "api.nodes"}
_IN_MODULE_OF_SAME_NAME = ("clean", "diff", "notify", "rerun", "resume", "sweep", "track", "usage")
_HOMES |= {name: f"api.{name}" for name in _IN_MODULE_OF_SAME_NAME}
_HOMES |= dict.fromkeys(("Sweep", "SweepFailed", "find_sweep"), "api.sweeps")
_HOMES["submit_stages"] = "api.stages"
_HOMES["export"] = "display.report.archive"  # the report is a page, and `api` does not render pages
_HOMES |= dict.fromkeys(("DryRun", "load", "plan", "submit"), "api.submit")


if not TYPE_CHECKING:  # so that type checkers report unknown names

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name == "runs":  # a callable package (docs/decisions/architecture.md)
            return import_module("clusterctl.runs")
        return getattr(import_module(f"clusterctl.{_HOMES.get(name, 'errors')}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
