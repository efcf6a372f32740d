"""Which rank holds up the others: one node of the run finds out for all."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.scenario import wait_until

from clusterctl.shared.node import node_watch
from clusterctl.shared.node.node_watch import Judge, suspects
from clusterctl.shared.record.heartbeats import ENDED, Beat, read_beats, write_beats
from clusterctl.shared.record.layout import Attempt, RunDir

TRAINING = Beat(1000.0, "training", 900.0, 50, 999.0, 0.1, 0.2, 0.05, None, 11, "node1")


def beats(*changes: dict[str, object]) -> dict[int, Beat]:
    return {rank: replace(TRAINING, time=1000.0 + rank, **change) for rank, change in enumerate(changes)}  # type: ignore[arg-type]


def later(earlier: dict[int, Beat], *silent: int) -> dict[int, Beat]:
    return {r: beat if r in silent else replace(beat, time=beat.time + 2) for r, beat in earlier.items()}


WAITING = {"waiting": 999.5}


@pytest.mark.parametrize(
    ("earlier", "silent", "found"),
    [
        (beats({}, WAITING, WAITING, WAITING), [0], ([0], "silent")),
        (beats(WAITING, WAITING, {}, WAITING), [], ([2], "busy")),
        (beats({"step": 51}, {"step": 51}, {"step": 50}), [], ([2], "behind")),
        (beats({"step": 51, **WAITING}, {"step": 50, **WAITING}), [], ([], "unknown")),  # their network was cut
        (beats({}, {}), [], ([], "unknown")),
        (beats(WAITING, WAITING), [], ([], "unknown")),
        (beats({}), [], ([0], "alone")),
        (beats({"phase": ENDED}, {}), [], ([1], "alone")),
        (beats({}, {}), [0, 1], ([], "unknown")),
        (beats({}, {"step": 0, "idle": 3.0}), [], ([0], "alone")),  # only rank 0 logs steps
    ],
)
def test_suspects(earlier: dict[int, Beat], silent: list[int], found: tuple[list[int], str]) -> None:
    assert suspects(earlier, later(earlier, *silent)) == found


NODES, RANKS_A_NODE, STUCK = 64, 2, 77


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Attempt:
    made = RunDir(tmp_path / "run").attempt(0)
    made.beats(0).parent.mkdir(parents=True)
    monkeypatch.setattr(node_watch, "CONFIRM_SECONDS", 0.5)
    return made


@pytest.fixture
def living(attempt: Attempt) -> Iterator[None]:
    """Heartbeats are written in a loop: one rank is stuck, and all others are alive and waiting for it."""
    ended = threading.Event()

    def of_rank(rank: int, moment: float) -> Beat:
        return TRAINING if rank == STUCK else replace(TRAINING, time=moment, waiting=999.5)

    def write(moment: float) -> None:
        for node in range(NODES):
            ranks = [RANKS_A_NODE * node + local for local in range(RANKS_A_NODE)]
            write_beats(attempt.beats(node), {local: (rank, of_rank(rank, moment)) for local, rank in enumerate(ranks)})

    def beat() -> None:
        moment = 1000.0
        while not ended.wait(0.02):
            write(moment := moment + 1)

    write(1000.0)
    thread = threading.Thread(target=beat)
    thread.start()
    yield
    ended.set()
    thread.join()


@pytest.mark.usefixtures("living")
def test_one_node_reads_all_heartbeats_and_finds_the_stuck_rank(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Path] = []

    def read(path: Path) -> dict[int, Beat]:
        reads.append(path)
        time.sleep(0.005)
        return read_beats(path)

    monkeypatch.setattr(node_watch, "read_beats", read)
    judges = [Judge(attempt, NODES) for _ in range(NODES)]  # each has noticed that its ranks are stuck
    (found,) = wait_until(lambda: [looks for judge in judges if (looks := judge.looks())], every=0.2)
    assert suspects(found.earlier, found.later) == ([STUCK], "silent")
    assert len(reads) == 2 * NODES


MANY_NODES, PER_NODE = 512, 8
WAYS: list[tuple[str, dict[str, object]]] = [
    ("silent", {"time": 1000.0}),
    ("behind", {"waiting": None, "step": 49}),
    ("busy", {"waiting": None}),
]


@pytest.mark.parametrize("trials", [3, pytest.param(20, marks=pytest.mark.long)])
def test_the_only_suspect_among_4096_ranks_is_the_stuck_one(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch, trials: int
) -> None:
    """A read takes 5 ms, and one node's clock is an hour ahead. The second look reads `after` instead of `attempt`."""
    after = RunDir(attempt.path.parent / "after").attempt(0)
    after.beats(0).parent.mkdir(parents=True)
    reads = itertools.count()
    known: dict[Path, dict[int, Beat]] = {}  # parsing 20 times 8,192 heartbeats is slow

    def read(path: Path) -> dict[int, Beat]:
        time.sleep(0.005)
        if next(reads) % (2 * MANY_NODES) >= MANY_NODES:
            path = after.beats(0).with_name(path.name)
        if path not in known:
            known[path] = read_beats(path)
        return known[path]

    def write(where: Attempt, node: int, moment: float, stuck: int = -1, **how: object) -> None:
        ranks = range(node * PER_NODE, (node + 1) * PER_NODE)
        living = replace(TRAINING, time=moment + (3600 if node == 7 else 0), waiting=999.5)
        beats = {rank: replace(living, **how) if rank == stuck else living for rank in ranks}  # type: ignore[arg-type]
        write_beats(where.beats(node), {rank % PER_NODE: (rank, beat) for rank, beat in beats.items()})
        known.pop(where.beats(node), None)

    for node in range(MANY_NODES):
        write(attempt, node, 1000.0)
        write(after, node, 1003.2)
    monkeypatch.setattr(node_watch, "CONFIRM_SECONDS", 0.0)
    monkeypatch.setattr(node_watch, "read_beats", read)
    choice = random.Random(0)
    for trial, (how, signs) in zip(range(trials), itertools.cycle(WAYS), strict=False):
        stuck = choice.randrange(8 * PER_NODE, MANY_NODES * PER_NODE)
        write(after, stuck // PER_NODE, 1003.2, stuck, **signs)
        judge = Judge(attempt, MANY_NODES)
        found = wait_until(judge.looks, every=0.05)
        judge.drop()
        assert suspects(found.earlier, found.later) == ([stuck], how), trial
        write(after, stuck // PER_NODE, 1003.2)


def test_a_judge_that_drops_its_case_releases_the_lease_and_starts_over(attempt: Attempt) -> None:
    write_beats(attempt.beats(0), {0: (0, TRAINING)})
    first, second = Judge(attempt, 1), Judge(attempt, 1)
    wait_until(first.looks)
    assert second.looks() is None
    first.drop()
    second.drop()  # it holds no lease
    assert not attempt.hang_lease.exists()
    assert wait_until(second.looks).later == {0: TRAINING}
    assert first.looks() is None


def test_the_lease_of_a_stuck_node_is_taken_over(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_watch, "LEASE_SECONDS", 0.1)
    attempt.hang_lease.mkdir()
    judge = Judge(attempt, 1)
    assert judge.looks() is None
    wait_until(judge.looks)
