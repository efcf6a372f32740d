"""Try a job on one node until it has completed a step, and measure what that takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.launcher.api.run import RunFailed
from clusterctl.launcher.api.settings import settings
from clusterctl.launcher.api.submitting.start import submit
from clusterctl.launcher.api.submitting.submit import load
from clusterctl.launcher.api.usage import usage_of
from clusterctl.launcher.config.shown import SILENT
from clusterctl.launcher.observe.follow import REAL_SOURCES, watch
from clusterctl.launcher.observe.telemetry import latest_samples, telemetry_files
from clusterctl.shared.errors import UsageError
from clusterctl.shared.record.states import State

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from clusterctl.launcher.api.run import Run
    from clusterctl.launcher.api.settings import Overrides, Program
    from clusterctl.launcher.api.usage import RunUsage
    from clusterctl.launcher.config.shown import ProgressListener
    from clusterctl.launcher.observe.follow import Sources
    from clusterctl.launcher.observe.state import Status

LONGEST_SECONDS = 1800  # the time limit of a probe
STEPLESS_SECONDS = 300.0  # in training, after which a program that logs no step is ended


@dataclass(frozen=True)
class Probe:
    """A run that was tried, and what it used until `step` (None: it logged none)."""

    run: Run
    usage: RunUsage
    step: float | None

    @property
    def until(self) -> str:
        """How far it came, in words."""
        if self.step is not None:
            return f"until step {self.step:.0f}"
        return (
            "until its end" if self.usage.status.state.ended else f"in {STEPLESS_SECONDS:.0f} s without a step logged"
        )

    def check(self) -> None:
        """Raise RunFailed if the run has ended otherwise than by finishing: what it used is then less than it needs."""
        state = self.usage.status.state
        if state.ended and state is not State.FINISHED:
            raise RunFailed(self.run, state)


def probe(
    job: str | os.PathLike[str] | None = None,
    cluster: str | None = None,
    *,
    stage: str | None = None,
    program: Program = (),
    overrides: Overrides = (),
    large_code: bool = False,
    started: Callable[[Run], None] = lambda _: None,
    progress: ProgressListener = SILENT,
) -> Probe:
    """Submit `job` on one node, wait until it has completed a step, cancel it, and return what it used.

    The arguments are those of `submit`; `started` gets the run once it is submitted. Raises what `submit` raises, and
    UsageError for a batch script, whose ranks are not measured.
    """
    resolved = load(job, cluster, stage=stage, program=program, overrides=overrides)
    if resolved.script:
        raise UsageError("a batch script cannot be probed: its ranks are not measured", "submit it without a probe")
    limit = min(resolved.job.resources.time, LONGEST_SECONDS)
    changes = [*settings(overrides), "resources.nodes=1", "resources.spare_nodes=0", f"resources.time={limit}s"]
    run = submit(
        job, cluster, stage=stage, program=program, overrides=changes, large_code=large_code, progress=progress
    )
    started(run)
    ended = False
    try:
        step = _first_step(run)
        usage = usage_of(run.id, cluster)
        ended = usage.status.state.ended
    finally:  # also when the user interrupts it
        if not ended:
            run.cancel()
    return Probe(run, usage, step)


def _first_step(run: Run, sources: Sources = REAL_SOURCES) -> float | None:
    """Wait until a step is complete and the telemetry covers it; the step, None if the run ends before that."""
    trained_since = stepped_at = None
    for status in watch(run.directory, run.cluster, sources, closely=True):
        now, step = sources.clock(), _step(status)
        if step is not None:
            stepped_at = now if stepped_at is None else stepped_at
            if _sampled(status) > stepped_at:
                return step
        elif status.attempt and status.attempt.state is State.TRAINING:
            trained_since = now if trained_since is None else trained_since
            if now - trained_since > STEPLESS_SECONDS:
                return None
    return _step(status)


def _step(status: Status) -> float | None:
    """The last step that it logged, unless that is 0: some programs log it before the first."""
    step = status.metrics.get("step")
    return float(step) if step is not None and step >= 1 else None


def _sampled(status: Status) -> float:
    """When the newest sample was taken, by the node's clock."""
    if status.attempt is None:
        return 0.0
    files = telemetry_files(status.record.run.attempt(status.attempt.number))
    return max((sample.time for sample in latest_samples(files, files).values()), default=0.0)
