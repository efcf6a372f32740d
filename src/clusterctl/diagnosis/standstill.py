"""Who held the others up: the watchdog's alarm, read together with the stacks that the ranks left."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from clusterctl.diagnosis.finding import CERTAIN, LIKELY, UNSURE, Finding
from clusterctl.errors import Cause
from clusterctl.runs.watchdog import IDLE, IDLE_GPUS
from clusterctl.spec.values import plural

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from clusterctl.diagnosis.traces import Alarm, AttemptTrace, RankTrace

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+),? in (?P<function>\S+)', re.MULTILINE)
_COLLECTIVES = frozenset(
    {"all_reduce", "all_gather", "all_gather_into_tensor", "all_to_all", "all_to_all_single", "barrier", "broadcast"}
    | {"gather", "recv", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter", "send", "synchronize", "wait"}
)
_LIBRARIES = ("site-packages", "dist-packages", "/lib/python3", "clusterctl/runs/", "<frozen ")
DID_NOTHING = "no rank printed anything or used its processors, disk or GPUs"
_MOST_LINES = 24
_ANSWER_SECONDS = 4.5  # by when a living rank answers an alarm; stopped ones do when they are told to end, at 6 s
_WORDS = {
    "silent": "its process wrote no heartbeat any more: stopped, or in native code that keeps Python's lock",
    "behind": "it is behind the other ranks",
    "busy": "it did not come to the collective in which the other ranks waited for it",
    "alone": "it did no further step",
}


def no_writer(rank: RankTrace) -> str:
    """What became of the process that writes the heartbeats and events of a node's ranks."""
    assert rank.writer is not None
    error = rank.writer.error
    return f"the writer of its node ended and was {f'not started again: {error}' if error else 'started again'}"


def ended_writers(ranks: Iterable[RankTrace]) -> tuple[str, ...]:
    """One fact for each node whose writer has ended."""
    found = {rank.node: no_writer(rank) for rank in ranks if rank.writer}
    return tuple(words.replace("its node", node or "a node", 1) for node, words in sorted(found.items()))


def hang(attempt: AttemptTrace) -> Finding:
    """The rank that stood still, where it stood, and how sure that is."""
    alarm = attempt.alarm
    assert alarm is not None
    if alarm.how == IDLE_GPUS:
        words = f"no GPU of any node did anything for {alarm.still_seconds:.0f} s"
        ends = "the watchdog ends such a run (watchdog.idle_gpu)"
        return Finding(Cause.IDLE_GPUS, words, stage=alarm.phase, traceback=whereabouts(attempt), facts=(ends,))
    suspects = list(alarm.suspects)
    certainty = CERTAIN if len(suspects) == 1 else LIKELY
    words = _WORDS.get(alarm.how, "")
    silent = [rank for rank in suspects if alarm.how == "silent" and not _answered(attempt.rank(rank), alarm)]
    if (nodes := silent_nodes(attempt.ranks, silent)) and len(silent) == len(suspects):
        if several_each(nodes):
            return node_fell_silent(attempt, nodes, alarm.phase, noticed(alarm))
        words, certainty = f"{words}; or its node was lost, cut off, or frozen", LIKELY
    if alarm.how == "unknown" and (apart := outside_collectives(attempt)):
        suspects, words, certainty = apart, "the other ranks are in a collective, and it is not", LIKELY
    if not suspects and (gone := left_early(attempt, alarm.time)):
        return someone_left(gone, noticed(alarm))
    if alarm.how == IDLE:
        words = f"its program logs no steps, and {DID_NOTHING}"
        return Finding(
            Cause.HANG, words, LIKELY, stage=alarm.phase, traceback=whereabouts(attempt), facts=(noticed(alarm),)
        )
    if not suspects:
        suspects, words, certainty = [alarm.seen], "nothing tells the ranks apart; this one was noticed first", UNSURE
    rank = attempt.rank(suspects[0])
    stack = _main_thread(rank.frozen or ("" if alarm.how == "silent" else rank.stacks))
    facts = [noticed(alarm)]
    if len(suspects) > 1:
        facts.append(f"as do ranks {', '.join(map(str, suspects[1:6]))}{' and others' * (len(suspects) > 6)}")
    if attempt.collectives:
        folder = f"attempts/{attempt.number}/collectives"
        facts.append(f"NCCL's flight recorder left {plural(attempt.collectives, 'file')} in {folder}")
    return Finding(
        Cause.HANG,
        f"stood still{_place(stack)} while {alarm.phase}: {words}",
        certainty,
        rank=rank.rank,
        node=rank.node,
        stage=alarm.phase,
        traceback=stack,
        facts=tuple(facts),
    )


def left_early(attempt: AttemptTrace, before: float | None = None) -> list[RankTrace]:
    """The ranks that left with 0 while others did not, the first one first; `before` a moment, if it is given."""
    gone = [rank for rank in attempt.ranks if rank.exit_code == 0 and rank.ended is not None and not rank.superseded]
    if before is not None:
        gone = [rank for rank in gone if rank.ended is not None and rank.ended < before]
    return sorted(gone, key=lambda rank: rank.ended or 0.0) if len(gone) < len(attempt.ranks) else []


def someone_left(gone: list[RankTrace], *facts: str) -> Finding:
    """The others waited for a rank, or lost it, that had left as if all was done."""
    first, *more = gone
    step = f" after step {first.beat.step}" if first.beat and first.beat.step else ""
    also = (f"as did ranks {', '.join(str(rank.rank) for rank in more[:5])}{' and others' * (len(more) > 5)}",)
    return Finding(
        Cause.USER,
        f"left with 0{step} while the others went on",
        LIKELY,
        rank=first.rank,
        node=first.node,
        facts=(*(also if more else ()), *facts),
    )


def silent_nodes(ranks: Collection[RankTrace], silent: Collection[int]) -> dict[str, list[int]]:
    """The nodes of the `silent` ranks, each with all its ranks: if none of these was heard of, but others were."""
    by_node: dict[str, list[int]] = {}
    for rank in ranks:
        by_node.setdefault(rank.node, []).append(rank.rank)
    those = frozenset(silent)
    found = {node: numbers for node, numbers in sorted(by_node.items()) if not those.isdisjoint(numbers)}
    whole = all(node and those.issuperset(numbers) for node, numbers in found.items())
    return found if whole and len(found) < len(by_node) else {}


def several_each(nodes: Mapping[str, Collection[int]]) -> bool:
    """Whether each node has more than one rank: a lone rank that was stopped looks like a lost node."""
    return bool(nodes) and all(len(ranks) > 1 for ranks in nodes.values())


def node_fell_silent(attempt: AttemptTrace, nodes: Iterable[str], stage: str, *facts: str) -> Finding:
    names = list(nodes)
    words = f"{', '.join(names)} fell silent with all ranks there: lost, cut off, or frozen"
    return Finding(Cause.NODE, words, LIKELY, attempt.number, node=names[0], stage=stage, facts=facts)


def outside_collectives(attempt: AttemptTrace) -> list[int]:
    """The ranks whose main thread is in no collective, where those of others are; else none."""
    apart = [rank.rank for rank in attempt.ranks if rank.stacks and not _is_in_a_collective(rank.stacks)]
    missing = [rank.rank for rank in attempt.ranks if not rank.stacks and rank.exit_code is None]
    found = missing if missing and len(missing) < len(attempt.ranks) else apart
    return found if len(found) < len(attempt.ranks) else []


def _is_in_a_collective(stacks: str) -> bool:
    return any(frame["function"] in _COLLECTIVES for frame in _FRAME.finditer(_main_thread(stacks)))


def _answered(rank: RankTrace, alarm: Alarm) -> bool:
    """Whether any process of the rank still ran when the alarm was raised: what started a program answers for it."""
    return rank.answered is not None and rank.answered - alarm.time < _ANSWER_SECONDS


def whereabouts(attempt: AttemptTrace) -> str:
    """Where the first rank was that told, as far as a task can see that of its program."""
    told = next((rank for rank in attempt.ranks if rank.stacks), None)
    if told is None:
        return ""
    lines = told.stacks.splitlines()
    more = [f"... {len(lines) - _MOST_LINES} more in attempts/{attempt.number}/stacks"] if lines[_MOST_LINES:] else []
    return "\n".join([f"rank {told.rank}:", *lines[:_MOST_LINES], *more])


def noticed(alarm: Alarm) -> str:
    return f"noticed by the watchdog after {alarm.still_seconds:.0f} s without progress"


def _place(stack: str) -> str:
    """The innermost place in a program of the user's or ours, else the innermost of all; empty without a stack."""
    frames = list(_FRAME.finditer(stack))
    own = [frame for frame in frames if not any(part in frame["file"] for part in _LIBRARIES)]
    innermost = (own or frames)[-1:]
    return "".join(f" at {frame['file']}:{int(frame['line'])} in {frame['function']}" for frame in innermost)


def _main_thread(stacks: str) -> str:
    """The stack of the main thread, the innermost call last.

    It is the first of those that a rank tells itself, and the last of faulthandler's, whose calls come in reverse.
    """
    blocks = stacks.strip().split("\n\n")
    if stacks.startswith("Thread MainThread"):
        return blocks[0]
    lines = [line for line in blocks[-1].splitlines() if _FRAME.match(line)]
    return "\n".join(["Thread MainThread:", *reversed(lines)]) if lines else ""
