"""One finding of `clusterctl why` about a run, and what to type next for each class of cause."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from clusterctl.launcher.config.program import with_options
from clusterctl.launcher.config.secrets import HIDDEN
from clusterctl.launcher.diagnosis.reasons import HELD
from clusterctl.launcher.observe.lines import pattern
from clusterctl.launcher.observe.run_names import submission as sweep_of
from clusterctl.shared.errors import Cause
from clusterctl.shared.record.plain_text import stretches
from clusterctl.shared.record.roles import labels
from clusterctl.shared.record.states import State
from clusterctl.shared.spec import batch_key
from clusterctl.shared.spec.values import slurm_time

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterctl.launcher.diagnosis.traces import RunTrace
    from clusterctl.launcher.observe.run_record import RunRecord


CERTAIN, LIKELY, UNSURE = "certain", "likely", "unknown"


class Evidence(IntEnum):
    """Where the evidence for a cause is, the strongest first.

    Programs log errors that they survive, so a known phrase somewhere in their output never makes a finding certain.
    """

    RECORDED = 0  # a signal, an exit code with its mark, an exception recorded by the task, a line of Slurm's own
    LAST_WORDS = 1  # what a rank's stderr ends with
    ELSEWHERE = 2  # a known phrase before that
    NOTHING = 3  # only that it ended

    @property
    def may_be_certain(self) -> bool:
        return self <= Evidence.LAST_WORDS


@dataclass(frozen=True)
class Consequence:
    """What followed from the first cause on one rank."""

    rank: int
    node: str
    cause: str
    role: str = ""  # of a job with several
    role_rank: int | None = None


@dataclass(frozen=True)
class Finding:
    """A cause, where and when it occurred, and what followed from it. `str(finding)` is a one-line summary.

    `certainty` is "certain", "likely" (consistent with the evidence, which allows other explanations) or "unknown".
    `hint` is what to do, in words.
    """

    cause_class: Cause
    cause: str
    certainty: str = CERTAIN
    attempt: int | None = None
    rank: int | None = None
    node: str = ""
    state: str = ""
    step: int | None = None
    traceback: str = ""
    hint: str = ""
    facts: tuple[str, ...] = ()
    secondary: tuple[Consequence, ...] = ()
    role: str = ""  # of the rank, in a job with several
    role_rank: int | None = None

    @property
    def place(self) -> str:
        """Where it occurred: `rank 2 on node2`, or the node; empty if neither is known."""
        node = f" on {self.node}" if self.node else ""
        if self.role and self.role_rank is not None:
            return f"{labels([(self.role, self.role_rank)])} (rank {self.rank}){node}"
        return f"rank {self.rank}{node}" if self.rank is not None else self.node

    def __str__(self) -> str:
        place = f"{self.place}: " if self.place else ""
        doubt = {LIKELY: " (likely)", UNSURE: " (uncertain)"}.get(self.certainty, "")
        return f"{place}{self.cause}{doubt}"


_SIZE = re.compile(r"([0-9]+)([KMGT]?B?)")


def commands(trace: RunTrace, found: Finding) -> tuple[str, ...]:
    """The commands to try next, the most useful first."""
    run = trace.status.record.run.id
    if trace.status.record.is_plain_job:
        return _of_plain_job(run, trace, found)
    mixed = any(one.one_output for one in trace.attempts if one.number == found.attempt)
    rank = f" --rank {found.rank}" if found.rank is not None and not mixed else ""
    if rank and found.role and found.role_rank is not None:
        rank = f" --role {found.role} --rank {found.role_rank}"
    attempt = f" --attempt {found.attempt}" if found.attempt else ""
    log = f"clusterctl logs {run}{rank}{attempt}"
    host = f"clusterctl logs {run} --host{attempt}"
    again, doctor = _again(trace), f"clusterctl doctor --cluster {shlex.quote(trace.status.record.cluster.name)}"
    match found.cause_class:
        case Cause.FINISHED:
            return (f"clusterctl status {run}",)
        case Cause.PENDING:
            return (f"clusterctl status {run}", f"clusterctl cancel {run}")
        case Cause.HEALTHY:
            return (f"clusterctl logs -f {run}",)
        case Cause.STRAGGLER:
            return (log, f"clusterctl status {run}")
        case Cause.HANG | Cause.IDLE_GPUS if not trace.status.state.ended:
            return (log, f"clusterctl cancel {run}")
        case Cause.USER:
            return (log, host, _again(trace, new_code=trace.status.record.job.has_own_code))
        case Cause.HANG | Cause.IDLE_GPUS | Cause.KILLED | Cause.UNKNOWN | Cause.NETWORK:
            return (log, host, _resume(trace))
        case Cause.HOST_MEMORY | Cause.GPU_MEMORY:
            return (_resume(trace, *_less_memory(trace, found)), log)
        case Cause.TIME:
            return (_resume(trace, f"resources.time={slurm_time(2 * trace.status.record.job.resources.time)}"), log)
        case Cause.NODE:
            return (_resume(trace, *([f"resources.exclude={found.node}"] if found.node else [])), host)
        case Cause.CANCELLED if not trace.attempts:
            return (shlex.join(["clusterctl", "resume", run]), again)
        case Cause.PREEMPTED | Cause.CANCELLED:
            return (_resume(trace), log)
        case Cause.DATA:
            root = trace.status.record.job.data.root
            return (f"ls -l {shlex.quote(root)}/raw" if root else log, again)
        case Cause.DISK:
            return (f"df -h {shlex.quote(str(trace.status.record.run.path.parent))}", log, _resume(trace))
        case _:  # IMAGE, LAUNCH
            return (host, doctor, again)


def _of_plain_job(job: str, trace: RunTrace, found: Finding) -> tuple[str, ...]:
    """How to submit it again is in its user's script, which is not known here."""
    log = f"clusterctl logs {job}"
    if trace.status.state is State.QUEUED:
        held = trace.status.reason in HELD
        return (*([f"scontrol release {job}"] if held else []), f"clusterctl status {job}", f"clusterctl cancel {job}")
    if not trace.status.state.ended:
        return (f"{log} -f", f"clusterctl cancel {job}")
    if found.cause_class is Cause.NODE and found.node:
        return log, shlex.join(["scontrol", "show", "node", found.node])
    return (log,)


def submission(record: RunRecord) -> list[str]:
    """The command line that submits a run again: as typed, or `rerun` if the record leaves out some of its values."""
    if record.argv[:1] != ("submit",) or any(HIDDEN in word for word in record.argv):
        return ["rerun", record.run.id]
    return list(record.argv)


def _resume(trace: RunTrace, *changes: str) -> str:
    """Resume from the newest checkpoint with `changes`; a run that never started is submitted again."""
    if not trace.attempts:
        return _again(trace, *changes)
    return shlex.join(["clusterctl", "resume", trace.status.record.run.id, *_settings(changes)])


def _settings(changes: tuple[str, ...]) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


def _again(trace: RunTrace, *changes: str, new_code: bool = False) -> str:
    """The command that submits it again: `submit` as it was typed, or `rerun` with the changes, whichever is shorter.

    Only `submit` takes the project's `new_code`; only `rerun` repeats a single run of a sweep.
    """
    record = trace.status.record
    repeated = shlex.join(["clusterctl", "rerun", record.run.id, *_settings(changes)])
    again = submission(record)
    if again[0] == "rerun" or sweep_of(record.run.id) != record.run.id:
        return repeated
    typed = shlex.join(with_options(["clusterctl", *again], _settings(changes)))
    return typed if new_code or len(typed) <= len(repeated) else repeated


def _less_memory(trace: RunTrace, found: Finding) -> list[str]:
    """Twice the host memory, if its amount is known; for GPU memory, half the batch."""
    job = trace.status.record.job
    size = _SIZE.fullmatch(job.resources.memory or "")
    if found.cause_class is Cause.HOST_MEMORY and size:
        return [f"resources.memory={2 * int(size[1])}{size[2]}"]
    name = batch_key(job.train)
    batch = getattr(job.train, name, None) or 0
    return [f"train.{name}={batch // 2}"] if batch > 1 else []


# What followed from it on other ranks, in words.

_MOST_CONSEQUENCES = 8  # lines
_MOST_STRETCHES = 6  # of consecutive ranks on a line


def what_followed(found: Finding) -> list[str]:
    """The consequences of `found` summarized, without the ranks that its facts already name as having the same."""
    same = [one for one in found.secondary if one.cause == found.cause]
    named = same if same_on(sorted(one.rank for one in same)) in found.facts else []
    return counted(one for one in found.secondary if one not in named)


def same_on(ranks: list[int]) -> str:
    return f"the same on {ranks_in_words(ranks)}"


def counted(secondary: Iterable[Consequence]) -> list[str]:
    """The consequences summarized: which ranks reported what, the most frequent first.

    Messages that differ only in numbers (ports, addresses) share a line, with the text of the first rank.
    """
    alike: dict[str, list[Consequence]] = {}
    for consequence in secondary:
        alike.setdefault(pattern(consequence.cause), []).append(consequence)
    groups = sorted(alike.values(), key=len, reverse=True)
    lines = [f"{_whose(group)}: {group[0].cause}" for group in groups[:_MOST_CONSEQUENCES]]
    left = [one for group in groups[_MOST_CONSEQUENCES:] for one in group]
    return [*lines, f"{_whose(left)}: other messages"] if left else lines


def _whose(group: list[Consequence]) -> str:
    members = [(one.role, one.role_rank) for one in group if one.role and one.role_rank is not None]
    return labels(members) if members else ranks_in_words([one.rank for one in group])


def ranks_in_words(ranks: list[int]) -> str:
    """Such as `rank 3` or `ranks 0-2, 5`; only the first of many stretches."""
    found = stretches(ranks)
    shown = found if len(found) <= _MOST_STRETCHES else found[: _MOST_STRETCHES - 1]
    parts = [str(first) if first == last else f"{first}-{last}" for first, last in shown]
    left = len(ranks) - sum(last - first + 1 for first, last in shown)
    more = f" and {left} more" if left else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(parts)}{more}"
