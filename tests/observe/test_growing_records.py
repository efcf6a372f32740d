"""Reading a growing file of records, or a sample if there are too many."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

from clusterctl.launcher.observe.lines import GrowingRecords


def lines(first: int, last: int) -> str:
    return "".join(json.dumps({"step": step, "padding": "x" * 100}) + "\n" for step in range(first, last))


def steps(file: GrowingRecords) -> list[int]:
    return [record["step"] for record in file.read()]


def test_each_record_is_read_once_and_only_when_complete(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    file = GrowingRecords(path)
    assert steps(file) == []
    path.write_text(lines(0, 3) + '{"step":')
    assert steps(file) == [0, 1, 2]
    assert steps(file) == []
    with path.open("a") as out:
        out.write(' 3}\nno record\n{"step": 4}\n')
    assert steps(file) == [3, 4]


def test_a_large_file_is_sampled_evenly_and_later_records_are_all_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(lines(0, 40_000))
    file = GrowingRecords(path, most_bytes=400_000)
    found = steps(file)
    assert file.sampled
    assert len(found) < 4_000
    assert (found[0], found[-1]) == (0, 39_999)
    assert found == sorted(set(found))
    assert max(later - earlier for earlier, later in itertools.pairwise(found)) < 40_000 / 4
    with path.open("a") as out:
        out.write(lines(40_000, 40_003))
    assert steps(file) == [40_000, 40_001, 40_002]


def test_a_rewritten_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "node.jsonl"
    path.write_text(lines(0, 10))
    file = GrowingRecords(path)
    assert len(steps(file)) == 10
    (tmp_path / "aside").write_text(lines(5, 30))
    (tmp_path / "aside").rename(path)
    assert steps(file) == list(range(5, 30))


def test_an_oversized_line_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("x" * 3_000_000 + "\n" + lines(0, 2))
    assert steps(GrowingRecords(path)) == [0, 1]


def test_a_sample_of_single_records_spans_the_file(tmp_path: Path) -> None:
    path = tmp_path / "node.jsonl"
    path.write_text(lines(0, 5_000))
    file = GrowingRecords(path, most_bytes=10_000, most_records=5)
    found = steps(file)
    assert file.sampled
    assert (found[0], found[-1]) == (0, 4_999)
    assert [round(step / 1_250) for step in found] == [0, 1, 2, 3, 4]
    with path.open("a") as out:
        out.write(lines(5_000, 5_002))
    assert steps(file) == [5_000, 5_001]
