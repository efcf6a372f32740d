"""A file of samples that stays small however long the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.shared.node.node_writer import SampleFile, joined, thinned
from clusterctl.shared.record.files import read_lines

GPU = {
    "index": 0,
    "name": "H100",
    "utilisation": 90,
    "memory": 5,
    "memory_total": 80,
    "power": 600.0,
    "temperature": 60,
}


def sample(time: float, seconds: float = 5.0, **values: Any) -> dict[str, Any]:
    return {"time": time, "seconds": seconds, **values}


def filled(path: Path, seconds: float, every: float) -> list[dict[str, Any]]:
    """The content of the file after `seconds` of samples."""
    file = SampleFile(path)
    for count in range(1, int(seconds / every) + 1):
        file.append(sample(count * every, every, cpu=count % 2, gpus=[GPU] * 2))
    return list(read_lines(path))


def test_a_day_of_samples_stays_small_with_full_detail_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "node.jsonl"
    kept = filled(path, 86_400, 5)
    assert len(kept) < 2_000  # of 17,280
    assert path.stat().st_size < 2_000 * 500
    assert sum(one["seconds"] for one in kept) == pytest.approx(86_400, rel=1e-3)
    assert all(one["seconds"] == 5 for one in kept[-500:])
    assert kept[-1]["time"] == 86_400
    assert all(0.3 <= one["cpu"] <= 0.7 for one in kept if one["seconds"] > 30)


@pytest.mark.long
def test_a_week_of_samples_stays_small(tmp_path: Path) -> None:
    kept = filled(tmp_path / "node.jsonl", 7 * 86_400, 5)
    assert len(kept) < 3_000  # of 120,960
    assert all(one["seconds"] <= max(5, (7 * 86_400 - one["time"]) / 150) for one in kept)


def test_a_reader_never_sees_a_partial_file(tmp_path: Path) -> None:
    """A file opened before a rewrite stays complete."""
    path = tmp_path / "node.jsonl"
    file = SampleFile(path)
    for count in range(1, 500):
        file.append(sample(count * 100.0, 100.0))
    with path.open() as opened:
        file.append(sample(50_000.0, 100.0))
        assert len([json.loads(line) for line in opened]) == 500
    assert len(list(read_lines(path))) < 500


def test_joining_averages_by_duration_keeps_peak_memory_and_last_values() -> None:
    before = sample(100, 30, cpu=4.0, memory=70, gpus=[GPU], ranks={"0": {"step": 5, "phase": "training"}})
    after = sample(110, 10, cpu=0.0, memory=50, gpus=[{**GPU, "utilisation": 10, "sm_activity": None}],
                   ranks={"0": {"step": 9, "phase": "evaluating"}})  # fmt: skip
    whole = joined(before, after)
    assert (whole["time"], whole["seconds"], whole["cpu"], whole["memory"]) == (110, 40, 3.0, 70)
    (gpu,) = whole["gpus"]
    assert (gpu["index"], gpu["utilisation"], gpu["name"], gpu["sm_activity"]) == (0, 70, "H100", None)
    assert whole["ranks"] == {"0": {"step": 9, "phase": "evaluating"}}


@given(st.lists(st.floats(0.1, 500), min_size=1, max_size=60), st.floats(0, 1e6))
def test_joining_loses_no_time_and_keeps_the_order(spans: list[float], later: float) -> None:
    samples, now = [], 0.0
    for span in spans:
        now += span
        samples.append(sample(now, span, cpu=1.0))
    kept = thinned(samples, now + later)
    assert [one["time"] for one in kept] == sorted(one["time"] for one in kept)
    assert kept[-1]["time"] == now
    assert sum(one["seconds"] for one in kept) == pytest.approx(sum(spans), abs=0.05 * len(spans))
    assert all(one["cpu"] == pytest.approx(1.0) for one in kept)
