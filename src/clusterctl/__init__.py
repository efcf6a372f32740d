"""One command from a laptop to a GPU cluster: containerised multi-node graph-network training on Slurm.

    import clusterctl

    run = clusterctl.submit("cora", cluster="local", overrides={"train.epochs": 5, "resources.nodes": 2})
    run.wait(timeout=600)

`load` resolves a job, `plan` renders its script, `offers` asks several clusters when each would start it, `submit`
submits it, `sweep` submits it with many settings, `submit_function` submits a function of yours and brings its result
back; `resume` restarts a run, `rerun` repeats one as a new run, `diff` compares two, `export` archives one; `runs` and
`find` look up runs, `usage` sums up the resources they used, `clean` removes old ones. `why` explains a run, any other
Slurm job, or the output of one, and `jobs` lists those jobs; `report` writes a page, `doctor` checks a cluster, `init`
writes first files, `alloc` holds nodes. Each name below is imported at first use (docs/guides/from-python.md).
"""

TYPE_CHECKING = False  # like typing.TYPE_CHECKING, without the slow import of typing; type checkers know the name
if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterctl.launcher.api.clean import clean
    from clusterctl.launcher.api.find import diff, find
    from clusterctl.launcher.api.images import images
    from clusterctl.launcher.api.init import init
    from clusterctl.launcher.api.jobs import jobs, why
    from clusterctl.launcher.api.nodes import alloc, give_back, nodes
    from clusterctl.launcher.api.notify import notify, track
    from clusterctl.launcher.api.run import Run, RunFailed, Runs
    from clusterctl.launcher.api.several_clusters import offers
    from clusterctl.launcher.api.submitting.start import rerun, resume, submit, submit_function, submit_stages, sweep
    from clusterctl.launcher.api.submitting.submit import DryRun, load, plan
    from clusterctl.launcher.api.submitting.verify import doctor
    from clusterctl.launcher.api.sweeps import Sweep, SweepFailed, find_sweep
    from clusterctl.launcher.api.usage import usage
    from clusterctl.launcher.display.report.page import export, report
    from clusterctl.shared.errors import (
        ClusterctlError,
        ConfigError,
        HostError,
        ImageError,
        NotFoundError,
        SlurmError,
        UsageError,
        WaitTimedOut,
    )

    class _Runs:
        """`clusterctl.runs`, a callable module."""

        def __call__(
            self,
            *,
            state: str | Iterable[str] = (),
            name: str | Iterable[str] = (),
            since: str | float | None = None,
            tag: str | Iterable[str] = (),
            cluster: str | None = None,
            count: int | None = None,
        ) -> Runs: ...

    runs: _Runs

__version__ = "0.1.0"

__all__ = [
    "ClusterctlError",
    "ConfigError",
    "DryRun",
    "HostError",
    "ImageError",
    "NotFoundError",
    "Run",
    "RunFailed",
    "SlurmError",
    "Sweep",
    "SweepFailed",
    "UsageError",
    "WaitTimedOut",
    "alloc",
    "clean",
    "diff",
    "doctor",
    "export",
    "find",
    "find_sweep",
    "give_back",
    "images",
    "init",
    "jobs",
    "load",
    "nodes",
    "notify",
    "offers",
    "plan",
    "report",
    "rerun",
    "resume",
    "runs",
    "submit",
    "submit_function",
    "submit_stages",
    "sweep",
    "track",
    "usage",
    "why",
]
_HOMES = {name: name for name in ("clean", "find", "images", "init", "jobs", "nodes", "notify", "usage")}
_HOMES |= {"alloc": "nodes", "doctor": "submitting.verify", "give_back": "nodes", "offers": "several_clusters"}
_HOMES |= {"Run": "run", "RunFailed": "run", "diff": "find", "track": "notify", "why": "jobs"}
_HOMES |= dict.fromkeys(("Sweep", "SweepFailed", "find_sweep"), "sweeps")
_HOMES |= dict.fromkeys(("submit", "submit_function", "submit_stages", "sweep"), "submitting.start")
_HOMES |= dict.fromkeys(("rerun", "resume"), "submitting.start")
_HOMES |= dict.fromkeys(("DryRun", "load", "plan"), "submitting.submit")
# Modules that programs and commands named before they moved. Those of `clusterctl.runs` still work, with a warning.
_MOVED = {
    "clusterctl.errors": "clusterctl.errors is now part of clusterctl: from clusterctl import ConfigError",
    "clusterctl.graph": "clusterctl.graph.pyg is now clusterctl.pyg",
    "clusterctl.workloads": "python -m clusterctl.workloads.NAME is now python -m clusterctl.train NAME",
}


if not TYPE_CHECKING:  # so that type checkers report unknown names
    import sys

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name == "runs":  # a callable module (docs/decisions/architecture.md)
            return import_module("clusterctl.runs")
        home = f"launcher.api.{_HOMES[name]}" if name in _HOMES else "shared.errors"
        if name in ("export", "report"):  # they render pages, which `api` does not
            home = "launcher.display.report.page"
        if home.startswith("launcher."):
            shown = import_module("clusterctl.launcher.config.shown").Shown
            shown.drawer = lambda: import_module("clusterctl.launcher.display.drawer")
        return getattr(import_module(f"clusterctl.{home}"), name)

    class _Moved:
        """Comes last on the import path: an import that nothing else can answer names the module's new home."""

        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name not in _MOVED:
                return
            if name == "clusterctl.workloads" and sys.argv[:1] == ["-m"]:  # while runpy looks for the module
                named = [word for word in sys.orig_argv if word.startswith(f"{name}.")]
                workload = named[0].rpartition(".")[2].replace("_", "-") if named else "WORKLOAD"
                raise SystemExit(f"error: {_MOVED[name]}\nhint: python -m clusterctl.train {workload}")
            raise ModuleNotFoundError(_MOVED[name], name=name)

    sys.meta_path.append(_Moved)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
