"""State on disk: every rank writes its rows to its own file, and any number of ranks can read them.

The files are safetensors files: a JSON header, then the bytes of the tensors (huggingface.co/docs/safetensors). Reading
one executes no code, and other programs can read them too. The header's metadata records which rows of the whole tensor
a file has: "start total".
"""

from __future__ import annotations

import json
import math
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from clusterctl.runs.files import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from io import BufferedReader
    from pathlib import Path

    from torch import Tensor

    from clusterctl.training.state import Sharded

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_MOST_BYTES = 100_000_000  # of a header: the limit of the format
_ALIGNMENT = 8


def write(pieces: Mapping[str, Sharded], folder: Path, rank: int) -> Path:
    """Write the rows of `rank`, which are on the CPU, to a new file in `folder`, and fsync it. Raises OSError."""
    header: dict[str, Any] = {"__metadata__": {}}
    kept, end = [], 0
    for name, piece in pieces.items():
        if piece.rows.numel():
            begin, end = end, end + piece.rows.nbytes
            shape = list(piece.rows.shape)
            header[name] = {"dtype": _NAMES[piece.rows.dtype], "shape": shape, "data_offsets": [begin, end]}
            header["__metadata__"][name] = f"{piece.start} {piece.total}"
            kept.append(piece.rows.contiguous())
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    path = folder / f"rank_{rank:05}.safetensors"
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for rows in kept:
            file.write(_bytes_of(rows))
        file.flush()
        os.fsync(file.fileno())
    return path


def read(pieces: Mapping[str, Sharded], folder: Path) -> None:
    """Fill the rows of `pieces`, in place, from the files in `folder`. Not a collective.

    Raises ValueError if a tensor is missing or has another shape or dtype.
    """
    missing = {name: len(piece.rows) for name, piece in pieces.items()}
    for path in sorted(folder.glob("rank_*.safetensors")):
        with open_regular(path) as file:
            for name, stored in _stored(file):
                if piece := pieces.get(name):
                    missing[name] -= _fill(name, piece, stored, file)
    for name, rows in missing.items():
        if rows:
            raise ValueError(f"it has no {name}" if rows == len(pieces[name].rows) else f"it lacks rows of {name}")


def names(folder: Path) -> set[str]:
    """The names of the tensors in the files in `folder`. Raises ValueError."""
    found = set()
    for path in sorted(folder.glob("rank_*.safetensors")):
        with path.open("rb") as file:
            found |= {name for name, _ in _stored(file)}
    return found


class _Stored(NamedTuple):
    """Rows [start, start + shape[0]) of a tensor of `total` rows, from byte `begin` of a file on."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    total: int
    begin: int


def _stored(file: BufferedReader) -> Iterator[tuple[str, _Stored]]:
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if length > min(_MOST_BYTES, size):
        raise ValueError(f"{file.name} is not a safetensors file")
    try:
        header = json.loads(file.read(length))
        for name, numbers in header.pop("__metadata__").items():
            start, total = map(int, numbers.split())
            dtype, shape = _DTYPES[header[name]["dtype"]], tuple(header[name]["shape"])
            begin, end = header[name]["data_offsets"]
            if end - begin != math.prod(shape) * dtype.itemsize or 8 + length + end > size:
                raise ValueError(f"it does not hold all of {name}")
            yield name, _Stored(dtype, shape, start, total, 8 + length + begin)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{file.name} is damaged: {error}") from error


def _fill(name: str, piece: Sharded, stored: _Stored, file: BufferedReader) -> int:
    """Read the rows that both `piece` and the file contain; returns their number."""
    wanted = (piece.total, *piece.rows.shape[1:]), piece.rows.dtype
    found = (stored.total, *stored.shape[1:]), stored.dtype
    if found != wanted:
        raise ValueError(f"its {name} is {_shown(*found)}, not {_shown(*wanted)}")
    first = max(piece.start, stored.start)
    last = min(piece.start + len(piece.rows), stored.start + stored.shape[0])
    if first >= last:
        return 0
    rows = piece.rows[first - piece.start : last - piece.start]
    arrived = rows if rows.is_contiguous() and not rows.is_cuda else torch.empty(rows.shape, dtype=rows.dtype)
    file.seek(stored.begin + (first - stored.start) * math.prod(stored.shape[1:]) * stored.dtype.itemsize)
    if file.readinto(_bytes_of(arrived)) != arrived.nbytes:
        raise ValueError(f"{file.name} does not hold all of {name}")
    if arrived is not rows:
        rows.copy_(arrived)
    return last - first


def _bytes_of(rows: Tensor) -> memoryview:
    """The memory of a CPU tensor, for reading and writing."""
    return rows.detach().view(-1).view(torch.uint8).numpy().data


def _shown(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"{' x '.join(map(str, shape))} of {str(dtype).removeprefix('torch.')}"
