"""The output of `clusterctl why`: the cause first, then what followed, then what to type. Plain text.

Live screens repeat the diagnosis, which reads many files and may query Slurm; `pause_after` limits how often.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from clusterctl.launcher.diagnosis.diagnose import judge
from clusterctl.launcher.diagnosis.finding import CERTAIN, what_followed
from clusterctl.launcher.diagnosis.traces import gather
from clusterctl.launcher.display.plain import plain, plain_lines
from clusterctl.launcher.observe.status import statuses_of
from clusterctl.shared.errors import Cause
from clusterctl.shared.record.files import is_folder
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.states import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from clusterctl.launcher.checks.surroundings import Check
    from clusterctl.launcher.diagnosis.diagnose import Diagnosis
    from clusterctl.launcher.diagnosis.finding import Finding
    from clusterctl.launcher.observe.state import Status
    from clusterctl.launcher.observe.status import Listing

_MOST_CAUSES = 20  # in a table: each takes some milliseconds
_ENDED_BADLY = (State.FAILED, State.TIMED_OUT, State.PREEMPTED, State.LOST)
_TITLES = {
    Cause.USER: "error in the job or its program",
    Cause.HOST_MEMORY: "out of memory",
    Cause.GPU_MEMORY: "GPU out of memory",
    Cause.TIME: "time limit",
    Cause.PREEMPTED: "preempted",
    Cause.NODE: "node failure",
    Cause.IMAGE: "container image",
    Cause.DATA: "data",
    Cause.NETWORK: "network",
    Cause.HANG: "no progress",
    Cause.DISK: "disk full",
    Cause.CANCELLED: "cancelled",
    Cause.KILLED: "killed",
    Cause.LAUNCH: "launch",
    Cause.UNKNOWN: "unexplained",
    Cause.FINISHED: "finished",
    Cause.PENDING: "waiting",
    Cause.HEALTHY: "healthy",
    Cause.STRAGGLER: "slow rank",
    Cause.NOT_LEARNING: "not learning",
    Cause.IDLE_GPUS: "idle GPUs",
}
_MOST_TRACEBACK_LINES = 30
_FIRST_RANKS = 32
_LONGEST_CONSEQUENCE = 160  # repeated errors are long and explain nothing
_PAUSE_SECONDS = 3.0  # between two diagnoses of a running run, which only read files
_SHARE = 0.02  # of the time spent on diagnoses, at most: thousands of ranks have thousands of files
_QUEUED_SECONDS = 60.0  # of a queued run, whose diagnosis queries Slurm several times


def explanation(diagnosis: Diagnosis) -> list[str]:
    """The lines to print; each is safe for a terminal."""
    status, (found, *others) = diagnosis.status, diagnosis.findings
    title = _TITLES[found.cause_class]
    state = "" if status.record.is_plain_job and not status.sure else status.shown  # of files, only Slurm knows
    suffix = "" if title == state else f": {title}"
    lines = [f"{plain(status.record.run.id)} {state}{suffix}".replace(" :", ":"), f"  {plain(str(found))}"]
    where = [
        f"attempt {found.attempt}" if found.attempt is not None else "",
        plain(found.state),
        f"step {found.step}" if found.step is not None else "",
    ]
    if any(where):
        lines.append(f"  {', '.join(filter(None, where))}")
    lines += [f"  {plain(fact)}" for fact in found.facts]
    if found.traceback:
        traceback = plain_lines(found.traceback).splitlines()
        cut = ["..."] if len(traceback) > _MOST_TRACEBACK_LINES else []
        lines += ["", *(f"    {line}" for line in [*cut, *traceback[-_MOST_TRACEBACK_LINES:]]), ""]
    if followed := what_followed(found):
        lines.append("what followed:")
        for line in map(plain, followed):
            lines.append(f"  {line if len(line) <= _LONGEST_CONSEQUENCE else line[: _LONGEST_CONSEQUENCE - 3] + '...'}")
    for other in others:
        lines += [f"also: {_TITLES[other.cause_class]}", f"  {plain(str(other))}"]
        lines += [f"  {plain(fact)}" for fact in other.facts]
    if diagnosis.history:
        lines += [
            "earlier attempts:",
            *(f"  attempt {past.attempt}: {_past(diagnosis, past)}" for past in diagnosis.history),
        ]
    if diagnosis.unknown:
        lines += ["unknown:", *(f"  {plain(what)}" for what in diagnosis.unknown)]
    lines += [f"hint: {plain(hint)}" for hint in dict.fromkeys(one.hint for one in diagnosis.findings) if hint]
    return lines + [
        f"{'next: ' if not index else '      '}{plain(line)}" for index, line in enumerate(diagnosis.commands)
    ]


def _past(diagnosis: Diagnosis, past: Finding) -> str:
    """Why an earlier attempt ended, on one line, and where the run went on."""
    again = " (started again in the same job)" if diagnosis.restarted_in(past.attempt) == "allocation" else ""
    if more := diagnosis.went_on_with(past.attempt):
        again = f" (went on with {more})"
    return f"{past.cause_class}: {plain(str(past))}{again}"


def first_cause(status: Status) -> str:
    """The first cause of a run's end with its place on one line, from its files alone; safe for a terminal."""
    return plain(str(_first_finding(status)))


def _first_finding(status: Status) -> Finding:
    """If the first ranks already make the cause certain, the files of the other ranks are not read."""
    few = gather(status, most_ranks=_FIRST_RANKS)
    found = judge(few).headline
    if found.certainty != CERTAIN and not all(attempt.whole for attempt in few.attempts):
        found = judge(gather(status)).headline
    return found


class Causes:
    """Why the newest of the runs in a table ended, each found once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, str] = {}  # by run and attempt

    def added_to(self, listing: Listing) -> Listing:
        """`listing`, whose notes name the first cause of runs that did not finish."""
        looked = {status.record.run.id: status for status in listing.looked}
        ended = [row for row in listing.rows if row.state in _ENDED_BADLY and is_folder(self._folder / row.run)]
        causes = {
            row.run: self._cause(row.run, str(row.cells.get("TRY")), looked.get(row.run))
            for row in ended[:_MOST_CAUSES]
        }
        rows = (
            row._replace(cells={**row.cells, "NOTE": cause}) if (cause := causes.get(row.run)) else row
            for row in listing.rows
        )
        return replace(listing, rows=tuple(rows))

    def of(self, statuses: Iterable[Status]) -> dict[str, str]:
        """The first causes of runs that did not finish, by their IDs."""
        ended = [one for one in statuses if one.state in _ENDED_BADLY and is_folder(one.record.run.path)]
        found = ((one.record.run.id, str(one.attempt and one.attempt.number), one) for one in ended[:_MOST_CAUSES])
        return {run: cause for run, attempt, one in found if (cause := self._cause(run, attempt, one))}

    def _cause(self, run: str, attempt: str, status: Status | None) -> str:
        key = f"{run} {attempt}"
        if key not in self._known:
            found = (status,) if status else statuses_of([RunDir(self._folder / run)]).statuses  # none if damaged
            self._known[key] = "".join(plain(_first_finding(one).cause) for one in found)
        return self._known[key]


def state_of(status: Status) -> str:
    """The state that determines the kind of diagnosis: when it changes, a new one is due."""
    if status.state.ended or status.state is State.QUEUED:
        return "ended" if status.state.ended else "queued"
    return "idle" if status.attempt and status.attempt.idle_since is not None else "alive"


def pause_after(status: Status, took: float) -> float:
    """Seconds to wait before the next diagnosis; `took`: seconds of the last one."""
    if status.state.ended:
        return math.inf
    if status.state is State.QUEUED:
        return max(_QUEUED_SECONDS, float(status.record.cluster.polling_floor))
    return max(_PAUSE_SECONDS, took / _SHARE)


def lines_of_checks(checks: Sequence[Check]) -> list[str]:
    """The output of `clusterctl doctor`."""
    width = max((len(check.name) for check in checks), default=0)
    lines = []
    for check in checks:
        lines.append(f"{check.verdict:<4}  {check.name:<{width}}  {check.message}")
        lines += [f"      {'':<{width}}  hint: {check.hint}"] if check.hint else []
    return list(map(plain, lines))
