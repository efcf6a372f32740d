"""Which rank is stuck, from the watchdog's alarm and the stacks recorded by the ranks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from clusterctl.launcher.diagnosis.finding import CERTAIN, LIKELY, UNSURE, Finding
from clusterctl.shared.errors import Cause
from clusterctl.shared.record.heartbeats import IDLE, IDLE_GPUS
from clusterctl.shared.spec.values import plural

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from clusterctl.launcher.diagnosis.traces import AttemptTrace, RankTrace
    from clusterctl.launcher.observe.attempt import Alarm

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+),? in (?P<function>\S+)', re.MULTILINE)
_COLLECTIVES = frozenset(
    {"all_reduce", "all_gather", "all_gather_into_tensor", "all_to_all", "all_to_all_single", "barrier", "broadcast"}
    | {"gather", "recv", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter", "send", "synchronize", "wait"}
)
_LIBRARIES = ("site-packages", "dist-packages", "/lib/python3", "clusterctl/runs/", "clusterctl/shared/", "<frozen ")
DID_NOTHING = "no rank printed anything or used its CPUs, disk or GPUs"
_MOST_LINES = 24
_ANSWER_SECONDS = 4.5  # a live rank answers an alarm within this time; stopped ones only when terminated, at 6 s
_WORDS = {
    "silent": "its process stopped writing heartbeats: stopped, or in native code that holds Python's lock",
    "behind": "it is behind the other ranks",
    "busy": "it did not enter the collective in which the other ranks waited for it",
    "alone": "it made no further steps",
}


def no_writer(rank: RankTrace) -> str:
    """What happened to the process that writes the heartbeats and events of a node's ranks."""
    assert rank.writer is not None
    error = rank.writer.error
    return f"the writer of its node ended and was {f'not restarted: {error}' if error else 'restarted'}"


def ended_writers(ranks: Iterable[RankTrace]) -> tuple[str, ...]:
    """One fact per node whose writer has ended."""
    found = {rank.node: no_writer(rank) for rank in ranks if rank.writer}
    return tuple(words.replace("its node", node or "a node", 1) for node, words in sorted(found.items()))


def hang(attempt: AttemptTrace) -> Finding:
    """The stuck rank, where it was stuck, and how certain that is."""
    alarm = attempt.alarm
    assert alarm is not None
    if alarm.how == IDLE_GPUS:
        words = f"all GPUs on all nodes were idle for {alarm.still_seconds:.0f} s"
        ends = "the watchdog ends such runs (watchdog.idle_gpu)"
        return Finding(Cause.IDLE_GPUS, words, state=alarm.phase, traceback=whereabouts(attempt), facts=(ends,))
    suspects = list(alarm.suspects)
    certainty = CERTAIN if len(suspects) == 1 else LIKELY
    words = _WORDS.get(alarm.how, "")
    silent: list[int] = []
    if alarm.how == "silent":
        # Any process of a rank answers while it is alive, such as the one that started a program.
        answers = [(rank, attempt.rank(rank).answered) for rank in suspects]
        silent = [rank for rank, at in answers if at is None or at - alarm.time >= _ANSWER_SECONDS]
    if (nodes := silent_nodes(attempt.ranks, silent)) and len(silent) == len(suspects):
        if several_each(nodes):
            return node_fell_silent(attempt, nodes, alarm.phase, noticed(alarm))
        words, certainty = f"{words}; or its node was lost, disconnected, or frozen", LIKELY
    if alarm.how == "unknown" and (apart := outside_collectives(attempt)):
        suspects, words, certainty = apart, "the other ranks are in a collective, but it is not", LIKELY
    if not suspects and (gone := left_early(attempt, alarm.time)):
        return someone_left(gone, noticed(alarm))
    if alarm.how == IDLE:
        words = f"the program logs no steps, and {DID_NOTHING}"
        return Finding(
            Cause.HANG, words, LIKELY, state=alarm.phase, traceback=whereabouts(attempt), facts=(noticed(alarm),)
        )
    if not suspects:
        suspects, words, certainty = [alarm.seen], "no rank stands out; this one was noticed first", UNSURE
    rank = attempt.rank(suspects[0])
    stack = _main_thread(rank.frozen or ("" if alarm.how == "silent" else rank.stacks))
    facts = [noticed(alarm)]
    if len(suspects) > 1:
        facts.append(f"like {_several(suspects[1:])}")
    if attempt.collectives:
        folder = f"attempts/{attempt.number}/collectives"
        facts.append(f"NCCL's flight recorder left {plural(attempt.collectives, 'file')} in {folder}")
    return Finding(
        Cause.HANG,
        f"stuck{_place(stack)} while {alarm.phase}: {words}",
        certainty,
        rank=rank.rank,
        node=rank.node,
        state=alarm.phase,
        traceback=stack,
        facts=tuple(facts),
    )


def left_early(attempt: AttemptTrace, before: float | None = None) -> list[RankTrace]:
    """The ranks that exited with 0 while others did not, in order; only those `before` a moment, if given."""
    gone = [rank for rank in attempt.ranks if rank.exit_code == 0 and rank.ended is not None and not rank.superseded]
    if before is not None:
        gone = [rank for rank in gone if rank.ended is not None and rank.ended < before]
    return sorted(gone, key=lambda rank: rank.ended or 0.0) if len(gone) < len(attempt.ranks) else []


def someone_left(gone: list[RankTrace], *facts: str) -> Finding:
    """The others waited for, or lost, a rank that had exited as if the training was complete."""
    first, *more = gone
    step = f" after step {first.beat.step}" if first.beat and first.beat.step else ""
    also = (f"as did {_several([rank.rank for rank in more])}",) if more else ()
    return Finding(
        Cause.USER,
        f"exited with 0{step} while the others continued",
        LIKELY,
        rank=first.rank,
        node=first.node,
        facts=(*also, *facts),
    )


def _several(ranks: list[int]) -> str:
    return f"ranks {', '.join(map(str, ranks[:5]))}{' and others' * (len(ranks) > 5)}"


def silent_nodes(ranks: Collection[RankTrace], silent: Collection[int]) -> dict[str, list[int]]:
    """The nodes of the `silent` ranks, with their ranks, if all ranks on them are silent and others are not."""
    by_node: dict[str, list[int]] = {}
    for rank in ranks:
        by_node.setdefault(rank.node, []).append(rank.rank)
    those = frozenset(silent)
    found = {node: numbers for node, numbers in sorted(by_node.items()) if not those.isdisjoint(numbers)}
    whole = all(node and those.issuperset(numbers) for node, numbers in found.items())
    return found if whole and len(found) < len(by_node) else {}


def several_each(nodes: Mapping[str, Collection[int]]) -> bool:
    """Whether each node has more than one rank: a single stopped rank looks like a lost node."""
    return bool(nodes) and all(len(ranks) > 1 for ranks in nodes.values())


def node_fell_silent(attempt: AttemptTrace, nodes: Iterable[str], state: str, *facts: str) -> Finding:
    names = list(nodes)
    words = f"{', '.join(names)} stopped responding with all its ranks: lost, disconnected, or frozen"
    return Finding(Cause.NODE, words, LIKELY, attempt.number, node=names[0], state=state, facts=facts)


def lost(attempt: AttemptTrace) -> Finding:
    """The finding about nodes that no longer answer the others."""
    node, *others = attempt.lost
    facts = [f"neither did {other}" for other in others]
    words = "showed no sign of life, and did not answer when another node connected to it"
    return Finding(Cause.NODE, words, CERTAIN, node=node, facts=tuple(facts))


def outside_collectives(attempt: AttemptTrace) -> list[int]:
    """The ranks whose main thread is not in a collective while those of others are; else none."""
    calls = {rank.rank: _FRAME.finditer(_main_thread(rank.stacks)) for rank in attempt.ranks if rank.stacks}
    apart = [rank for rank, frames in calls.items() if not any(one["function"] in _COLLECTIVES for one in frames)]
    missing = [rank.rank for rank in attempt.ranks if not rank.stacks and rank.exit_code is None]
    found = missing if missing and len(missing) < len(attempt.ranks) else apart
    return found if len(found) < len(attempt.ranks) else []


def whereabouts(attempt: AttemptTrace) -> str:
    """The stacks of the first rank that recorded any, as far as a task can see those of its program."""
    recorded = next((rank for rank in attempt.ranks if rank.stacks), None)
    if recorded is None:
        return ""
    lines = recorded.stacks.splitlines()
    more = [f"... {len(lines) - _MOST_LINES} more in attempts/{attempt.number}/stacks"] if lines[_MOST_LINES:] else []
    return "\n".join([f"rank {recorded.rank}:", *lines[:_MOST_LINES], *more])


def noticed(alarm: Alarm) -> str:
    return f"noticed by the watchdog after {alarm.still_seconds:.0f} s without progress"


def _place(stack: str) -> str:
    """The innermost frame of the user's program or of clusterctl, else of any library; empty without a stack."""
    frames = list(_FRAME.finditer(stack))
    own = [frame for frame in frames if not any(part in frame["file"] for part in _LIBRARIES)]
    innermost = (own or frames)[-1:]
    return "".join(f" at {frame['file']}:{int(frame['line'])} in {frame['function']}" for frame in innermost)


def _main_thread(stacks: str) -> str:
    """The stack of the main thread, the innermost call last.

    It comes first in the stacks recorded by a rank, and last in faulthandler's, which list calls in reverse.
    """
    blocks = stacks.strip().split("\n\n")
    if stacks.startswith("Thread MainThread"):
        return blocks[0]
    lines = [line for line in blocks[-1].splitlines() if _FRAME.match(line)]
    return "\n".join(["Thread MainThread:", *reversed(lines)]) if lines else ""
