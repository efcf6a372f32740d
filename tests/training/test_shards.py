from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from clusterctl.engine.training.checkpoint import read, write
from clusterctl.engine.training.state import Sharded

WHOLE = {
    "model.values": torch.arange(24.0).reshape(12, 2),
    "adam.moments": torch.arange(12, dtype=torch.bfloat16),
    "counts": torch.arange(12) * 2**40,
    "mask": torch.arange(12) % 3 == 0,
}


def cut(start: int, stop: int) -> dict[str, Sharded]:
    return {name: Sharded(rows[start:stop], start, 12) for name, rows in WHOLE.items()}


def empty(start: int, stop: int) -> dict[str, Sharded]:
    return {name: Sharded(torch.zeros_like(rows[start:stop]), start, 12) for name, rows in WHOLE.items()}


def write_with(folder: Path, bounds: list[int]) -> None:
    folder.mkdir(exist_ok=True)
    for rank, (start, stop) in enumerate(zip([0, *bounds], [*bounds, 12], strict=True)):
        write(cut(start, stop), folder, rank)


@given(st.lists(st.integers(0, 12), max_size=4), st.integers(0, 12), st.integers(0, 12))
def test_any_rows_can_be_read_whichever_ranks_wrote_them(
    tmp_path_factory: pytest.TempPathFactory, bounds: list[int], one: int, other: int
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    write_with(folder, sorted(bounds))
    pieces = empty(*sorted((one, other)))
    read(pieces, folder)
    for name, piece in pieces.items():
        assert torch.equal(piece.rows, WHOLE[name][piece.start : piece.start + len(piece.rows)])


def test_the_safetensors_package_reads_the_same(tmp_path: Path) -> None:
    write_with(tmp_path, [])
    found = load_file(tmp_path / "rank_00000.safetensors")
    assert found.keys() == WHOLE.keys()
    assert all(torch.equal(found[name], rows) for name, rows in WHOLE.items())


def test_missing_rows_are_reported(tmp_path: Path) -> None:
    write(cut(0, 5), tmp_path, 0)
    read(empty(0, 5), tmp_path)
    with pytest.raises(ValueError, match=r"it lacks rows of model\.values"):
        read(empty(3, 7), tmp_path)
    with pytest.raises(ValueError, match=r"it has no model\.values"):
        read(empty(7, 9), tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 8,
        (2).to_bytes(8, "little") + b"[]",
        (4).to_bytes(8, "little") + b"null",
        (12).to_bytes(8, "little") + b'{"a": [1e99}',
        pickle.dumps({"x": 1}),
    ],
)
def test_the_error_names_a_damaged_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "rank_00000.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"rank_00000\.safetensors"):
        read(empty(0, 12), tmp_path)


def test_offsets_beyond_the_end_of_the_file_are_refused(tmp_path: Path) -> None:
    write_with(tmp_path, [])
    path = tmp_path / "rank_00000.safetensors"
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["counts"]["data_offsets"] = [offset + 10**6 for offset in header["counts"]["data_offsets"]]
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
    with pytest.raises(ValueError, match="does not hold all of counts"):
        read(empty(0, 12), tmp_path)
