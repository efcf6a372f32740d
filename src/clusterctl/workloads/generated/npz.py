"""Write the arrays of a .npz archive in chunks."""

from __future__ import annotations

import math
import zipfile
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from torch import Tensor


class ArchiveWriter:
    """Writes the archive without compression, like numpy.savez."""

    def __init__(self, path: Path) -> None:
        self._archive = zipfile.ZipFile(path, "w")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._archive.close()

    def put(
        self,
        name: str,
        kind: np.dtype[Any] | type,
        shape: tuple[int, ...],
        parts: Iterable[Tensor | np.ndarray[Any, Any]],
        progress: Callable[[int, int], None] = lambda *_: None,
    ) -> None:
        """Write an array from its parts, in order."""
        header = {"descr": np.dtype(kind).str, "fortran_order": False, "shape": shape}
        with self._archive.open(f"{name}.npy", "w", force_zip64=True) as file:
            np.lib.format.write_array_header_2_0(file, header)
            written = 0
            for part in parts:
                array = np.asarray(part, dtype=kind)
                file.write(array.tobytes())
                written += array.size
                progress(written, math.prod(shape))
        assert written == math.prod(shape)
