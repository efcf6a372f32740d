"""What `clusterctl why` shows: the cause on top, then where and what followed, then what to type. Plain text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.diagnosis.diagnose import explain, headline
from clusterctl.diagnosis.failure import counted
from clusterctl.diagnosis.traces import gather
from clusterctl.display.plain import plain, plain_lines
from clusterctl.errors import Cause

if TYPE_CHECKING:
    from clusterctl.diagnosis.findings import Findings
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
    Cause.HANG: "a rank stands still",
    Cause.DISK: "no room on disk",
    Cause.CANCELLED: "cancelled",
    Cause.KILLED: "killed",
    Cause.LAUNCH: "the launch",
    Cause.UNKNOWN: "unexplained",
    Cause.FINISHED: "finished",
    Cause.PENDING: "waiting",
    Cause.HEALTHY: "in order",
    Cause.STRAGGLER: "a slow rank",
}
_MOST_TRACEBACK_LINES = 30
_LONGEST_CONSEQUENCE = 160  # echoes are long, and explain nothing


def why_lines(status: Status, findings: Findings) -> list[str]:
    """The lines for a person; each is safe for a terminal."""
    lines = [
        f"{status.record.run.id} {status.stage}: {_TITLES[findings.cause_class]}",
        f"  {plain(headline(findings))}",
    ]
    where = [
        f"attempt {findings.attempt}" if findings.attempt is not None else "",
        findings.stage,
        f"step {findings.step}" if findings.step is not None else "",
    ]
    if any(where):
        lines.append(f"  {', '.join(filter(None, where))}")
    lines += [f"  {plain(fact)}" for fact in findings.facts]
    if findings.traceback:
        told = plain_lines(findings.traceback).splitlines()
        cut = ["..."] if len(told) > _MOST_TRACEBACK_LINES else []
        lines += ["", *(f"    {line}" for line in [*cut, *told[-_MOST_TRACEBACK_LINES:]]), ""]
    if findings.secondary:
        lines += ["what followed:", *(f"  {_short(plain(line))}" for line in counted(findings.secondary))]
    if findings.history:
        lines += [
            "before:",
            *(f"  attempt {past.attempt}: {past.cause_class}: {plain(past.cause)}" for past in findings.history),
        ]
    if findings.unknown:
        lines += ["not known:", *(f"  {plain(what)}" for what in findings.unknown)]
    if findings.hint:
        lines.append(f"hint: {plain(findings.hint)}")
    return lines + [
        f"{'next: ' if not index else '      '}{plain(line)}" for index, line in enumerate(findings.commands)
    ]


def first_cause(status: Status) -> str:
    """The first cause of a run's end in one line, as far as its files tell; safe for a terminal."""
    return plain(headline(explain(gather(status))))


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_CONSEQUENCE else f"{text[: _LONGEST_CONSEQUENCE - 3]}..."
