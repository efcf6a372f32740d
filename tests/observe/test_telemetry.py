"""Reading the telemetry of nodes."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.counted import counted

from clusterctl.launcher.observe.telemetry import (
    Gpu,
    NodesNow,
    RankSample,
    Sample,
    gpu_utilisation,
    nodes_now,
    parse_sample,
    telemetry_files,
)
from clusterctl.shared.record.files import Lines
from clusterctl.shared.record.layout import Attempt, RunDir

RECORD = {
    "time": 100.0, "seconds": 5.0, "cpu": 3.5, "cpus": 8, "memory": 10, "memory_limit": None, "disk_read": 1,
    "disk_write": 2, "net_in": 3, "net_out": 4,
    "gpus": [{"index": 1, "name": "H100", "utilisation": 90, "power": None}], "ranks": {"3": {"step": 7, "phase": "x"}},
}  # fmt: skip


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return RunDir(tmp_path).attempt(0)


def test_a_sample_is_read_field_by_field() -> None:
    assert parse_sample(RECORD) == Sample(100.0, 3.5, 8, 10, None, (Gpu(1, 90),), {3: RankSample(step=7, phase="x")}, 5)


JSON = st.recursive(st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["index", "name", "3", "step", "x"]), inner, max_size=4))  # fmt: skip # noqa: E501


@given(st.dictionaries(st.sampled_from([*RECORD, "further"]), JSON))
def test_nonsense_never_raises_and_a_sample_needs_a_time(record: dict[str, Any]) -> None:
    sample = parse_sample(record)
    time = record.get("time")
    assert (sample is not None) == (type(time) is float and 0 <= time <= 2.0**37)
    if sample is not None:
        gpu_utilisation({"node": sample})


def test_gpu_utilisation_comes_from_the_last_sample_of_every_node(attempt: Attempt) -> None:
    for node, used in (("node1", [100, 60]), ("node2", [20])):
        lines = Lines(attempt.telemetry(node))
        lines.append(RECORD)
        lines.append({"time": 105, "gpus": [{"utilisation": value} for value in used]})
    assert nodes_now(attempt, 2).gpu == 60
    assert gpu_utilisation({"node1": Sample(1)}) is gpu_utilisation({}) is None


@pytest.mark.parametrize(
    ("idle", "tasks", "since"),
    [
        ((480, 300), 2, 805.0),
        ((480, 59), 2, None),
        ((480, 0), 2, None),
        ((480, None), 2, None),
        ((480, 300), 3, None),
    ],
)
def test_a_run_is_idle_since_the_last_activity_of_any_rank(
    attempt: Attempt, idle: tuple[float | None, ...], tasks: int, since: float | None
) -> None:
    for rank, seconds in enumerate(idle):
        ranks = {str(rank): {"step": 0, "phase": "training", "idle": seconds}}
        Lines(attempt.telemetry(f"node{rank}")).append({"time": 1100.0 + 5 * rank, "gpus": [], "ranks": ranks})
    assert nodes_now(attempt, tasks).idle_since == since


@pytest.mark.parametrize(
    ("idle", "since"), [((900, 400), 705.0), ((900, 299), None), ((900, None), None), ((900, 0), None)]
)
def test_gpus_are_idle_since_the_last_activity_on_any_node(
    attempt: Attempt, idle: tuple[float | None, ...], since: float | None
) -> None:
    for node, seconds in enumerate(idle):
        Lines(attempt.telemetry(f"node{node}")).append({"time": 1100.0 + 5 * node, "gpus": [], "gpu_idle": seconds})
    assert nodes_now(attempt, 2).gpus_idle_since == since


def test_an_attempt_without_telemetry_has_none(attempt: Attempt) -> None:
    assert nodes_now(attempt, 2) == NodesNow()


def test_files_are_sorted_by_name_without_comparing_paths(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = attempt.telemetry("x").parent
    folder.mkdir(parents=True)
    for name in ("b.jsonl", "a.example.jsonl", ".b.jsonl.77", ".hidden.jsonl", "notes.txt"):
        (folder / name).touch()
    monkeypatch.delattr(PurePath, "__lt__")  # comparing paths is a hundred times slower, and monitors sort often
    assert telemetry_files(attempt) == {"a.example": folder / "a.example.jsonl", "b": folder / "b.jsonl"}
    assert list(telemetry_files(attempt)) == ["a.example", "b"]


def test_only_a_few_nodes_are_read_unless_all_are_idle(attempt: Attempt) -> None:
    def written(idle: float) -> int:
        for node in range(40):
            ranks = {str(node): {"step": 0, "phase": "training", "idle": idle}}
            sample = {"time": 1100.0, "gpus": [{"utilisation": 50}], "ranks": ranks}
            Lines(attempt.telemetry(f"node{node:02}")).append(sample)
        with counted(attempt.path) as read:
            found = nodes_now(attempt, 40)
        assert found == NodesNow(50, None if idle < 60 else 1100 - idle)
        return read.opens

    assert written(0.0) <= 16
    assert written(300.0) == 40
