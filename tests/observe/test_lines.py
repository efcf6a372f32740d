"""Reading lines of growing files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launcher.observe.lines import Growing, last_lines, last_lines_offset, offset_of_time, tail


def test_each_complete_line_of_a_growing_file_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    growing = Growing(path)
    assert growing.read() == []
    path.write_bytes(b"one\ntw")
    assert growing.read() == [b"one"]
    with path.open("ab") as file:
        file.write(b"o\nthree")
    assert growing.read() == [b"two"]
    assert growing.rest() == [b"three"]
    assert growing.rest() == []


def test_a_line_longer_than_a_mebibyte_is_returned_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * (2**20 + 1))
    assert sum(map(len, Growing(path).read())) >= 2**20


def test_holes_of_a_sparse_file_are_skipped_from_both_ends(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.write(b"one\ntwo\n")
        file.seek(10 * 2**30)
        file.write(b"three\nfour\n")
    assert [line.strip(b"\0") for line in Growing(path).read()] == [b"one", b"two", b"three", b"four"]
    offset = last_lines_offset(path, 3)
    assert [line.strip(b"\0") for line in Growing(path, offset).read()] == [b"two", b"three", b"four"]
    assert last_lines_offset(path, 9) == 0


@given(
    st.lists(st.sampled_from([b"", b"a", b"bb", b"ccc"]), max_size=8),
    st.booleans(),
    st.integers(0, 10),
    st.integers(1, 7),
)
def test_the_last_lines_are_found_from_the_end(
    tmp_path_factory: pytest.TempPathFactory, content: list[bytes], ended: bool, count: int, block: int
) -> None:
    """Equals the last of all lines, whatever the block size."""
    path = tmp_path_factory.getbasetemp() / "tail"
    text = b"\n".join(content) + (b"\n" if ended and content else b"")
    path.write_bytes(text)
    offset = last_lines_offset(path, count, block)
    whole = text.split(b"\n")
    if whole[-1] == b"":
        whole.pop()
    expected = whole[len(whole) - count :] if count < len(whole) else whole
    found = text[offset:].split(b"\n")
    if found[-1] == b"":
        found.pop()
    assert found == expected


def test_the_last_lines_are_complete(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\nnonsense\n{"step": 3')
    assert last_lines(path) == [b'{"step": 1}', b"nonsense"]
    assert tail(tmp_path / "none") == ([], "")
    assert tail(tmp_path) == ([], "not a regular file")


def test_only_the_end_of_a_large_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"step": {step}}}\n' for step in range(20_000)))
    records = last_lines(path)
    assert records[-1] == b'{"step": 19999}'
    assert 0 < len(records) < 10_000


def time_of(line: bytes) -> float | None:
    return float(line[1:7]) if line[:1] == b"@" else None


@pytest.mark.parametrize("since", [0, 1, 9_999, 15_000, 29_990, 30_100])
@pytest.mark.parametrize("every", [1, 7])
def test_a_time_is_found_with_few_reads_and_no_later_line_is_missed(tmp_path: Path, since: int, every: int) -> None:
    path = tmp_path / "log"  # every few lines, one has a time
    path.write_text("".join(f"@{n:06}\n" if n % every == 0 else f"{n:08} words\n" for n in range(30_000)))
    offset = offset_of_time(path, since, time_of)
    before, after = path.read_bytes()[:offset], path.read_bytes()[offset:]
    assert not before or before.endswith(b"\n")
    assert all(time < since for line in before.split(b"\n")[-20_000:] if (time := time_of(line)) is not None)
    first = next((time for line in after.split(b"\n") if (time := time_of(line)) is not None), since)
    assert since - first < 2 * 65536 / 7, "too many older lines were read"


def test_a_file_without_times_is_read_completely(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert offset_of_time(path, 5.0, time_of) == 0
    path.write_text("words\n" * 100_000)
    assert offset_of_time(path, 5.0, time_of) == 0
