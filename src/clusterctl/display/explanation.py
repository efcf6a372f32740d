"""A diagnosis as `clusterctl why` shows it: the cause on top, then what followed, then what to type. Plain text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.diagnosis.diagnose import judge
from clusterctl.diagnosis.diagnose import to_json as to_json
from clusterctl.diagnosis.failure import counted
from clusterctl.diagnosis.finding import CERTAIN
from clusterctl.diagnosis.traces import gather
from clusterctl.display.plain import plain, plain_lines
from clusterctl.errors import Cause

if TYPE_CHECKING:
    from clusterctl.diagnosis.diagnose import Diagnosis
    from clusterctl.observe.stage import Status

_TITLES = {
    Cause.USER: "an error in the job or its program",
    Cause.HOST_MEMORY: "out of memory",
    Cause.GPU_MEMORY: "out of memory on a GPU",
    Cause.TIME: "time limit",
    Cause.PREEMPTED: "preempted",
    Cause.NODE: "node failure",
    Cause.IMAGE: "the container image",
    Cause.DATA: "the data",
    Cause.NETWORK: "the network",
    Cause.HANG: "no progress",
    Cause.DISK: "no room on disk",
    Cause.CANCELLED: "cancelled",
    Cause.KILLED: "killed",
    Cause.LAUNCH: "the launch",
    Cause.UNKNOWN: "unexplained",
    Cause.FINISHED: "finished",
    Cause.PENDING: "waiting",
    Cause.HEALTHY: "in order",
    Cause.STRAGGLER: "a slow rank",
    Cause.NOT_LEARNING: "not learning",
    Cause.IDLE_GPUS: "idle GPUs",
}
_MOST_TRACEBACK_LINES = 30
_FIRST_RANKS = 32
_LONGEST_CONSEQUENCE = 160  # echoes are long, and explain nothing


def explanation(diagnosis: Diagnosis) -> list[str]:
    """The lines for a person; each is safe for a terminal."""
    status, (found, *others) = diagnosis.status, diagnosis.findings
    title = _TITLES[found.cause_class]
    said = "" if title == status.stage else f": {title}"
    lines = [f"{status.record.run.id} {status.stage}{said}", f"  {plain(str(found))}"]
    where = [
        f"attempt {found.attempt}" if found.attempt is not None else "",
        plain(found.stage),
        f"step {found.step}" if found.step is not None else "",
    ]
    if any(where):
        lines.append(f"  {', '.join(filter(None, where))}")
    lines += [f"  {plain(fact)}" for fact in found.facts]
    if found.traceback:
        traceback = plain_lines(found.traceback).splitlines()
        cut = ["..."] if len(traceback) > _MOST_TRACEBACK_LINES else []
        lines += ["", *(f"    {line}" for line in [*cut, *traceback[-_MOST_TRACEBACK_LINES:]]), ""]
    if found.secondary:
        lines += ["what followed:", *(f"  {_short(plain(line))}" for line in counted(found.secondary))]
    for other in others:
        lines += [f"also: {_TITLES[other.cause_class]}", f"  {plain(str(other))}"]
        lines += [f"  {plain(fact)}" for fact in other.facts]
    if diagnosis.history:
        lines += [
            "before:",
            *(f"  attempt {past.attempt}: {past.cause_class}: {plain(str(past))}" for past in diagnosis.history),
        ]
    if diagnosis.unknown:
        lines += ["not known:", *(f"  {plain(what)}" for what in diagnosis.unknown)]
    lines += [f"hint: {plain(hint)}" for hint in dict.fromkeys(one.hint for one in diagnosis.findings) if hint]
    return lines + [
        f"{'next: ' if not index else '      '}{plain(line)}" for index, line in enumerate(diagnosis.commands)
    ]


def first_cause(status: Status) -> str:
    """The first cause of a run's end in one line, by its files alone; safe for a terminal.

    Where the ranks that were named first make it certain, the others' files stay closed, however many there are.
    """
    few = gather(status, most_ranks=_FIRST_RANKS)
    found = judge(few).headline
    if found.certainty != CERTAIN and not all(attempt.whole for attempt in few.attempts):
        found = judge(gather(status)).headline
    return plain(str(found))


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_CONSEQUENCE else f"{text[: _LONGEST_CONSEQUENCE - 3]}..."
