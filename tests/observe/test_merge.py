"""Merging the logs of many ranks: ordered by time, identical lines once, errors first."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launcher.api.logs import Failure, failures
from clusterctl.launcher.observe import logs
from clusterctl.launcher.observe.logs import Line, Logs, Nodes, Selection, Source, collapsed, sources, time_of
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.stamp import stamp

Fabricate = Callable[..., RunDir]
START = 1_000_000.0
TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 7, in <module>
    step(batch)
  File "train.py", line 3, in step
    raise ValueError("rank {rank} has no batch")
ValueError: rank {rank} has no batch
"""


def at(seconds: float, text: str) -> str:
    return f"{stamp(START + seconds)}{text}\n"


def log(rank: int, stream: str = "out", attempt: int = 0) -> str:
    return f"attempts/{attempt}/logs/rank_{rank:05}.{stream}"


def read(run: RunDir, **selection: Any) -> list[str]:
    return [line.text.decode() for line in Logs(run, Selection(**selection)).read(ended=True)]


def test_lines_are_ordered_by_time_and_untimed_lines_stay_with_the_previous_one(fabricate: Fabricate) -> None:
    run = fabricate(
        files={
            "attempts/0/host.json": {"start": START - 5},
            log(0): at(1, "a") + "raw after a\n" + at(4, "d"),
            log(1): "raw at the start\n" + at(2, "b") + at(3, "c") + at(0, "a clock set back"),
            log(0, "err"): at(3.5, "warning"),
            log(0, attempt=1): at(0, "again"),  # a later attempt comes later, whatever its clock
        }
    )
    assert read(run, streams=("out", "err")) == [
        "raw at the start", "a", "raw after a", "b", "c", "a clock set back", "warning", "d", "again",
    ]  # fmt: skip
    assert [line.time - START for line in Logs(run, Selection(attempt=0, rank=1)).read(ended=True)] == [-5, 2, 3, 3]


def test_added_lines_are_merged_after_the_last_time(fabricate: Fabricate) -> None:
    run = fabricate(files={log(0): at(1, "a"), log(1): at(2, "b")})
    logs = Logs(run, Selection())
    assert [line.text for line in logs.read(ended=False)] == [b"a", b"b"]
    for rank, text in ((1, "raw\n" + at(5, "e")), (0, at(3, "c") + at(4, "d") + "torn")):
        with run.attempt(0).log(rank).open("a") as file:
            file.write(text)
    assert [line.text for line in logs.read(ended=False)] == [b"raw", b"c", b"d", b"e"]
    assert [(line.text, line.time) for line in logs.read(ended=True)] == [(b"torn", START + 4)]


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 100)), max_size=40), st.integers(20, 200))
def test_every_line_appears_once_in_order_of_time(written: list[tuple[int, float]], block: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = RunDir(Path(folder) / "cora-20260101-000000-aaaa")
        run.attempt(0).log(0).parent.mkdir(parents=True)
        for number, (rank, seconds) in enumerate(sorted(written, key=lambda item: item[1])):
            with run.attempt(0).log(rank).open("a") as file:
                file.write(at(seconds, str(number)))
        lines = list(Logs(run, Selection()).read(ended=True))
    assert sorted(int(line.text) for line in lines) == list(range(len(written)))
    assert [line.time for line in lines] == sorted(line.time for line in lines)


def line(rank: int, text: str, time: float = 0.0) -> Line:
    return Line(Source(0, rank, RunDir.__new__(RunDir)), text.encode(), time)  # type: ignore[arg-type]


def shown(*lines: Line) -> list[tuple[str, tuple[int, ...]]]:
    return [(one.text.decode(), one.ranks or (one.source.rank or 0,)) for one in collapsed(lines)]


def test_an_identical_line_of_many_ranks_is_shown_once_at_its_first_place() -> None:
    lines = [line(0, "start"), line(1, "start"), line(0, "rank 0"), line(3, "start"), line(2, "start")]
    assert shown(*lines) == [("start", (0, 1, 2, 3)), ("rank 0", (0,))]


def test_a_ranks_own_repetitions_and_distant_lines_are_kept() -> None:
    assert shown(line(0, "x"), line(1, "x"), line(0, "x"), line(0, "x")) == [("x", (0, 1)), ("x", (0,)), ("x", (0,))]
    assert shown(line(0, "x", 1.0), line(1, "x", 9.0)) == [("x", (0,)), ("x", (1,))]


def test_repeated_identical_lines_are_collapsed_per_repetition() -> None:
    written = [line(rank, text) for rank in range(4) for text in ("same", f"of {rank}", "same")]
    assert shown(*written) == [
        ("same", (0, 1, 2, 3)),
        ("of 0", (0,)),
        ("same", (0, 1, 2, 3)),
        *((f"of {rank}", (rank,)) for rank in (1, 2, 3)),
    ]


def test_the_cost_per_collapsed_line_does_not_depend_on_the_number_of_ranks() -> None:
    def calls(ranks: int) -> int:
        """The number of function calls for five lines common to all ranks, and one unique line per rank."""
        count = 0

        def counts(*_: object) -> None:
            nonlocal count
            count += 1

        lines = [line(rank, text) for rank in range(ranks) for text in (*"abcde", f"of {rank}")]
        sys.setprofile(counts)
        try:
            assert len(list(collapsed(lines))) == ranks + 5
        finally:
            sys.setprofile(None)
        return count

    assert calls(800) < 4.1 * calls(200)


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc"), st.floats(0, 9)), max_size=30))
def test_no_line_is_lost_and_the_order_of_each_rank_is_kept(written: list[tuple[int, str, float]]) -> None:
    written.sort(key=lambda item: item[2])
    lines = list(collapsed(line(*item) for item in written))
    for rank in range(4):
        own = [text for other, text, _ in written if other == rank]
        assert sorted(one.text.decode() for one in lines if rank in (one.ranks or (one.source.rank,))) == sorted(own)


def test_logs_can_be_filtered_by_node(fabricate: Fabricate) -> None:
    events = {
        f"attempts/0/events/rank_0000{rank}.jsonl": [{"event": "began", "node": f"node{rank // 2}"}]
        for rank in range(4)
    }
    run = fabricate(files=events | {log(rank): f"{rank}\n" for rank in range(5)})
    assert [Nodes(run).of(0, rank) for rank in range(5)] == ["node0", "node0", "node1", "node1", ""]
    assert read(run, node="node1") == ["2", "3"]


def found(run: RunDir, **selection: Any) -> list[Failure]:
    return failures(Logs(run, Selection(**selection)), lambda line: line.time >= 0)


CHAIN = """  File "x.py", line 1, in f
KeyError: 7

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "x.py", line 3, in f
RuntimeError: no such key
"""


def test_errors_are_ordered_by_time_and_identical_ones_shown_once(fabricate: Fabricate) -> None:
    run = fabricate(
        files={
            **{log(rank, "err"): at(rank, "words") + TRACEBACK.format(rank=rank) + "after\n" for rank in (2, 1)},
            log(3, "err"): at(1.5, "Traceback (most recent call last):") + CHAIN + "\n\nfine\n",
        }
    )
    first, second = found(run)
    assert (first.text + "\n", first.ranks) == (TRACEBACK.format(rank=1), [1, 2])
    assert (second.text + "\n", second.ranks) == ("Traceback (most recent call last):\n" + CHAIN, [3])
    assert second.message == "RuntimeError: no such key"


def test_torchs_prefix_is_removed_from_tracebacks(fabricate: Fabricate) -> None:
    text = "Traceback (most recent call last):\n" + CHAIN
    run = fabricate(files={log(1, "err"): "".join(f"[rank1]: {line}\n" for line in text.splitlines())})
    (failure,) = found(run)
    assert failure.text + "\n" == text


def test_an_error_that_a_rank_recorded_and_printed_is_shown_once(fabricate: Fabricate) -> None:
    text = TRACEBACK.format(rank=0)
    run = fabricate(
        files={
            log(0, "err"): at(3, "x") + text,
            "attempts/0/events/rank_00000.jsonl": [
                {"time": START + 2, "event": "exception", "type": "ValueError", "message": "", "traceback": text}
            ],
        }
    )
    (failure,) = found(run)
    assert (failure.time, failure.ranks, failure.message) == (START + 2, [0], "ValueError: rank 0 has no batch")


def test_a_run_without_errors_has_none(fabricate: Fabricate) -> None:
    run = fabricate(files={log(0): "fine\n"})
    assert found(run) == []
    assert sources(run, Selection())


@pytest.mark.parametrize(
    "message",
    [
        "RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s) in state_dict: bias.",
        "KeyError: Caught KeyError in DataLoader worker process 0.\nOriginal " + TRACEBACK.rstrip(),
        "DistBackendError: NCCL error\nncclInvalidUsage: wrong\nLast error:",
    ],
)
def test_an_exception_is_read_with_all_lines_of_its_message(fabricate: Fabricate, message: str) -> None:
    text = f'Traceback (most recent call last):\n  File "a.py", line 1\n{message}'
    logs = Logs(fabricate(files={log(0, "err"): f"{text}\nfine\n"}), Selection())
    assert [failure.text for failure in failures(logs, lambda _: True)] == [text]


@pytest.mark.parametrize("text", ["Traceback (most recent call last):", "Traceback (most recent call last):\n  File"])
def test_a_truncated_traceback_is_shown_as_far_as_it_goes(fabricate: Fabricate, text: str) -> None:
    run = fabricate(files={log(0): text})
    (failure,) = found(run)
    assert failure.text == text


def test_only_the_surroundings_of_a_traceback_are_read_line_by_line(
    fabricate: Fabricate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a log of a gigabyte is searched as fast as it is read. A traceback gets the time of the line before it."""
    looked_at: list[bytes] = []
    monkeypatch.setattr(logs, "time_of", lambda line: looked_at.append(line) or time_of(line))
    run = fabricate(files={log(0): at(1, "a step") * 400_000, log(1): at(1, "x") * 10 + TRACEBACK.format(rank=1)})
    (failure,) = found(run)
    assert (failure.time, failure.ranks) == (START + 1, [1])
    assert len(looked_at) < 100


def test_without_times_in_the_log_a_traceback_gets_the_time_the_rank_ended(fabricate: Fabricate) -> None:
    run = fabricate(
        files={
            "attempts/0/host.json": {"start": START},
            "attempts/0/events/rank_00000.jsonl": [
                {"event": "stage", "time": START + 1, "stage": "training"},
                {"event": "exit", "time": START + 9, "code": 1},
            ],
            log(0, "err"): "words\n" + TRACEBACK.format(rank=0),
            log(1): "before\n" + at(5, "timed") + "after\n",
        }
    )
    lines = Logs(run, Selection(rank=1)).read(ended=True)
    assert [line.timed for line in lines] == [False, True, True]
    (failure,) = found(run, rank=0)
    assert failure.time == START + 9
