"""`Run`: one submission, as an object with queries and actions.

Methods import what they need: `submit` returns a Run without using any of it.
"""

from __future__ import annotations

import functools
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from clusterctl.launcher.api.remote.operations import operation
from clusterctl.launcher.config.shown import SILENT, Shown
from clusterctl.launcher.config.shown import progress as progress_of
from clusterctl.launcher.config.suggestions import of_call
from clusterctl.shared.errors import ClusterctlError, UsageError, WaitTimedOut
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.states import State

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from clusterctl.launcher.api.logs import Reading
    from clusterctl.launcher.api.remote.cluster import RemoteCluster
    from clusterctl.launcher.api.settings import Overrides
    from clusterctl.launcher.checks.surroundings import Check
    from clusterctl.launcher.config.shown import ProgressListener
    from clusterctl.launcher.diagnosis.diagnose import Diagnosis
    from clusterctl.launcher.observe.rank_events import RoleStatus
    from clusterctl.launcher.observe.state import Status as Status
    from clusterctl.shared.spec import Batches, Cluster, Job


class RunFailed(ClusterctlError):
    """A run did not finish successfully: the `run`, and the `diagnosis` with its findings."""

    run: Run

    def __init__(self, run: Run, state: State) -> None:
        self.run = run
        next_step = "resume" if state in (State.TIMED_OUT, State.PREEMPTED) else "why"
        first, *_ = self.diagnosis.findings
        super().__init__(f"run {run.id} ended: {state}: {first}", f"clusterctl {next_step} {run.id}")

    @functools.cached_property
    def diagnosis(self) -> Diagnosis:
        return self.run.why()


class _Output(NamedTuple):
    code: int
    stdout: str
    stderr: str


class Output(Shown, _Output):
    """What a command beside a rank returned (`code`) and wrote (`stdout`, `stderr`); also a tuple of these three."""


class Roles(Shown, list["RoleStatus"]):
    """The roles of a run, shown as a table."""


_PAUSE_SECONDS, _FAR_PAUSE_SECONDS = 2.0, 10.0  # between two lines of progress, here and through ssh

Ended = TypeVar("Ended")


def waited(one: Any, wait: Callable[[float | None], Ended], timeout: float | None, wanted: bool | None) -> Ended:
    """`wait(timeout)`, while the status of `one` is shown as far as it is `wanted`."""
    shown = progress_of(wanted)
    if shown is None:
        return wait(timeout)
    deadline = None if timeout is None else time.monotonic() + timeout
    pause = _FAR_PAUSE_SECONDS if one.place else _PAUSE_SECONDS
    try:
        while True:
            shown.update(one.status())
            left = pause if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                ended = wait(min(pause, left))
            except WaitTimedOut as error:
                if deadline is None or time.monotonic() < deadline:
                    continue
                # The last of several waits was shorter than the timeout.
                raise WaitTimedOut(f"{one.id} has not ended after {timeout:g} s", error.hint) from None
            except ClusterctlError:
                with suppress(ClusterctlError):
                    shown.update(one.status())
                raise
            shown.update(ended)
            return ended
    finally:
        shown.end()


class MetricRecords(Shown, list[dict[str, Any]]):
    """One dict per record: `attempt`, `time` (seconds since the epoch), `step`, and the logged values."""

    def to_pandas(self) -> Any:
        """The records as a pandas DataFrame, one row each. Raises UsageError if pandas is not installed."""
        try:
            import pandas  # type: ignore[import-untyped,unused-ignore]
        except ImportError:
            raise UsageError("to_pandas needs pandas", "pip install pandas") from None
        return pandas.DataFrame(list(self))


@dataclass(frozen=True)
class Run(Shown):
    """One run, by its directory, which every query reads again; Slurm is asked if the files are not conclusive."""

    path: Path
    warnings: tuple[Check, ...] = field(default=(), compare=False, repr=False)
    """Warnings of the checks before submitting or resuming; one with verdict OK: it will go on in a job of its own."""
    place: RemoteCluster | None = None
    """Set if its cluster is on another machine: `path` is there, and queries are sent there; see `fetch`."""
    _job: Job | None = field(default=None, compare=False, repr=False)  # set for a run that was just submitted
    _called: str | None = field(default_factory=of_call, init=False, compare=False, repr=False)  # its `cluster=`

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def name(self) -> str:
        """The job's name."""
        from clusterctl.launcher.observe.run_names import job_name

        return job_name(self.id)

    @property
    def directory(self) -> RunDir:
        """The run's directory: logs, checkpoints, weights, the script."""
        return RunDir(self.path)

    @property
    def work(self) -> Path:
        """The program's working directory: a copy of the code, and files that the program wrote."""
        return self.directory.work

    @property
    @operation()
    def batches(self) -> Batches | None:
        """How training divides the examples into batches; None for your own program. Raises ConfigError if damaged."""
        from clusterctl.launcher.checks.data_size import batches

        if self._job:
            return batches(self._job)
        from clusterctl.launcher.observe.run_record import read_record

        return batches(read_record(self.directory).job)

    @property
    @operation()
    def job_id(self) -> str | None:
        """The ID of its Slurm job; None if not known yet."""
        from clusterctl.launcher.observe.run_record import read_submission

        return read_submission(self.directory).job_id or None

    @property
    @operation()
    def cluster(self) -> Cluster:
        """The cluster it was submitted to. Raises ConfigError for a damaged run."""
        from clusterctl.launcher.observe.run_record import read_record

        return read_record(self.directory).cluster

    @operation()
    def status(self) -> Status:
        """The run's status: its state, attempt, newest metrics, times.

        `sure` is False if it depends on Slurm, which does not answer. Raises ConfigError for a damaged run.
        """
        from clusterctl.launcher.observe.status import status_of_run

        return status_of_run(self.directory)

    def wait(self, timeout: float | None = None, *, progress: bool | None = None) -> Status:
        """Wait until the run has ended, and return its status.

        A notebook shows the run's progress meanwhile, a terminal if `progress` is True, nothing if it is False. Raises
        RunFailed unless it finished, and WaitTimedOut after `timeout` seconds, without ending the run.
        """
        return waited(self, self._wait, timeout, progress)

    @operation(waits=True)
    def _wait(self, timeout: float | None) -> Status:
        from clusterctl.launcher.observe.follow import wait

        state = wait(self.directory, self.cluster, timeout)
        if state is not State.FINISHED:
            raise RunFailed(self, state)
        return self.status()

    def result(self, timeout: float | None = None) -> Any:
        """Wait for a run of `submit_function`, and return what the function returned on rank 0, read from JSON.

        Raises what `wait` raises, and NotFoundError for a run of anything else.
        """
        import json

        from clusterctl.shared.errors import ConfigError

        self.wait(timeout)
        try:
            return json.loads(self._result())
        except (ValueError, RecursionError) as error:
            hint = f"see what it wrote: clusterctl logs {self.id}"
            raise ConfigError(f"the result of {self.id} is damaged: {error}", hint) from error

    @operation()
    def _result(self) -> str:
        from clusterctl.shared.errors import ConfigError, NotFoundError
        from clusterctl.shared.record.files import read_whole

        try:
            return read_whole(self.directory.result_json).decode()
        except FileNotFoundError as error:
            hint = "only runs of clusterctl.submit_function have one"
            raise NotFoundError(f"{self.id} has no result", hint) from error
        except (OSError, ValueError) as error:
            hint = "let the function write large results to a file, and fetch the run"
            raise ConfigError(f"cannot read the result of {self.id}: {error}", hint) from error

    @operation()
    def logs(
        self,
        rank: int | None = None,
        *,
        role: str | None = None,
        node: str | None = None,
        attempt: int | None = None,
        stream: str | None = None,
        host: bool = False,
        tail: int | None = None,
        since: str | float | None = None,
        grep: str | None = None,
        worker: int | None = None,
    ) -> Reading:
        """The ranks' output so far, to iterate over. Each line has `time` and `ranks`; `str(line)` is its text.

        Filters: a `rank`, `role`, `node`, `attempt` or `stream` ("out", "err"); with a role, `rank` counts within it.
        `host` adds the batch script's own log. `tail` takes the last lines of each file, `since` newer lines than an
        age ("20m") or a time ("2026-01-31 12:00:00", or seconds since the epoch), `grep` the lines that match a regular
        expression, `worker` those of one worker of torchrun, accelerate or mpirun, by its rank in the world, if each
        line names its worker.
        """
        from clusterctl.launcher.api.logs import read_logs
        from clusterctl.launcher.observe.logs import Selection
        from clusterctl.launcher.observe.run_record import read_record

        if stream not in (None, "out", "err"):
            raise UsageError(f"no such stream: {stream}", 'one of "out", "err"')
        ranks = None
        if role is not None:
            record = read_record(self.directory)
            ranks = frozenset(record.ranks_of(role))
            rank = None if rank is None else record.rank_of(role, rank)
        selection = Selection(attempt, rank, (stream,) if stream else ("out", "err"), host, node, ranks, worker)
        return read_logs(self.directory, selection, tail, since, grep)

    @operation()
    def metrics(self) -> MetricRecords:
        """The metrics recorded by rank 0, one dict each, in order; steps repeated by a later attempt count once.

        The first 65,536 steps are complete, then every second one is kept, after twice as many every fourth, and so on;
        evaluations and other rare records are all kept (`clusterctl.shared.record.metrics`).
        """
        from clusterctl.launcher.observe.measurements import metric_rows

        return MetricRecords(metric_rows(self.directory))

    @operation(changes=True)
    def exec(
        self, command: Sequence[str], *, rank: int = 0, role: str | None = None, timeout: float | None = None
    ) -> Output:
        """Run `command` beside `rank`, as `clusterctl attach RUN -- COMMAND` does: on its node, in its container.

        With a `role`, `rank` counts within it. Returns its exit code and what it wrote, up to a MiB of each stream. The
        run is not interrupted. Raises UsageError if it is not running or has no such rank, and WaitTimedOut after
        `timeout` seconds, which ends `command`.
        """
        from clusterctl.launcher.api.nodes import output_beside

        return Output(*output_beside(self.directory, self.rank_of(role, rank), tuple(command), timeout))

    @operation()
    def why(self) -> Diagnosis:
        """Why it failed, is waiting or is slow: findings, the most important first, and the next command to type."""
        from clusterctl.launcher.diagnosis.diagnose import diagnose

        return diagnose(self.directory)

    @operation()
    def rank_of(self, role: str | None, rank: int) -> int:
        """The number within its job of a rank of `role`; without a role, `rank`. Raises UsageError."""
        from clusterctl.launcher.observe.run_record import read_record

        return read_record(self.directory).rank_of(role, rank)

    @operation()
    def roles(self) -> Roles:
        """Its roles, if its job has several programs: ranks, nodes, states and restarts of each."""
        from clusterctl.launcher.observe.rank_events import role_statuses
        from clusterctl.launcher.observe.run_record import read_record

        return Roles(role_statuses(read_record(self.directory)))

    def fetch(self, output: str | Path | None = None, *, weights: bool = True, force: bool = False) -> Path:
        """Fetch the run into a new folder on this machine, named after the run by default; returns the folder.

        It contains record, metrics, logs, the program's files and, unless `weights` is False, the trained weights.
        Raises UsageError if the folder exists, unless `force`, and HostError.
        """
        from pathlib import Path

        from clusterctl.launcher.api.fetch import fetch

        return fetch(self.place, self.id, None if output is None else Path(output), weights=weights, force=force)

    @operation(changes=True)
    def cancel(self) -> None:
        """Cancel the run, whether pending or running; does nothing if it has ended. Raises SlurmError."""
        from clusterctl.launcher.api.cancel import cancel

        cancel([self.directory])

    @operation(changes=True, restarts=True)
    def resume(
        self,
        cluster: str | None = None,
        *,
        overrides: Overrides = (),
        hold: bool = False,
        progress: ProgressListener = SILENT,
    ) -> Run:
        """Start the run, which ended without finishing, again from its last checkpoint: see `clusterctl.resume`."""
        from clusterctl.launcher.api.submitting.resume import resume_alone, resume_later

        again = resume_alone(self.directory, cluster, overrides=overrides, hold=hold, progress=progress)
        resume_later(self.directory, progress)
        return Run(self.path, again.warnings, _job=again.job)

    @operation(changes=True, restarts=True)
    def rerun(
        self,
        cluster: str | None = None,
        *,
        overrides: Overrides = (),
        in_allocation: str | None = None,
        hold: bool = False,
        progress: ProgressListener = SILENT,
    ) -> Run:
        """Submit a new run with the same code and configuration; this one may be in any state. See `rerun`."""
        from clusterctl.launcher.api.submitting.rerun import rerun_alone

        new = rerun_alone(
            self.directory, cluster, overrides=overrides, in_allocation=in_allocation, hold=hold, progress=progress
        )
        return Run(new.run.path, new.warnings, _job=new.job)

    @operation(changes=True)
    def release(self) -> None:
        """Release the run, which was submitted with `hold`."""
        from clusterctl.launcher.observe.status import statuses_of
        from clusterctl.launcher.slurm import Slurm

        found = statuses_of([self.directory])
        if found.problems:
            raise found.problems[0]
        (status,) = found.statuses
        if status.state is not State.QUEUED or status.job_id is None:
            raise UsageError(f"{self.id} is not waiting to start: {status.state}", f"clusterctl status {self.id}")
        Slurm.of(status.record.cluster).release([status.job_id])


class Runs(Shown, list[Run]):
    """Runs, shown as a table."""
