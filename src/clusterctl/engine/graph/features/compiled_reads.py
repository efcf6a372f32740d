"""The requests of a `RowFile` carried out in a loop that numba compiles: the same rows, bit for bit.

In Python, the readers' threads wait for each other's GIL after each request. Here they hold it only to start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import torch
from numba import types

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

# of the C library, called without the GIL: the file, an address, a size in bytes, an offset
_pread = types.ExternalFunction("pread", types.intp(types.intc, types.intp, types.uintp, types.int64))
_BITS = {8: np.uint64, 4: np.uint32, 2: np.uint16, 1: np.uint8}
_S16 = np.uint32(16)


def convertible(stored: torch.dtype, wanted: torch.dtype) -> bool:
    """Whether `read_rows` supports this pair."""
    return stored is wanted or {stored, wanted} == {torch.float32, torch.bfloat16}


def read_rows(
    file: int, page: int, requests: NDArray[np.int64], scratch: Tensor, inside: Tensor, rows: Tensor, places: Tensor
) -> int:
    """Carry out `requests` (see `RowFile.begin`) until one fails, and return how many succeeded.

    `scratch` [elements] is the reader's memory, aligned to `page` bytes, viewed as the file's dtype.
    """
    # As unsigned integers: numpy has no bfloat16.
    stored, wanted = (tensor.view(torch.uint8).numpy().view(_BITS[tensor.element_size()]) for tensor in (scratch, rows))
    return int(_read((file, stored.ctypes.data), page, requests, stored, inside.numpy(), wanted, places.numpy()))


@numba.njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _read(reader: Any, aligned: Any, requests: Any, stored: Any, inside: Any, rows: Any, places: Any) -> Any:
    (file, address), width = reader, rows.shape[1]
    for number in range(len(requests)):
        first, last, begin, end, start, stop = requests[number]
        done = 0
        while done < stop:
            page = done - done % aligned  # a short read may end anywhere
            size = _pread(file, address + page, end - begin - page, begin + page)
            if page + size <= done:  # an error, or the end of the file
                return number
            done = page + size
        offset = start // stored.itemsize
        for row in range(first, last):
            source = stored[offset + inside[row] * width : offset + (inside[row] + 1) * width]
            _convert(source, rows[places[row]])
    return len(requests)


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _convert(source: Any, target: Any) -> None:
    """Copy floats of equal type, widen bfloat16, or round float32 to it: to nearest, ties to even, as torch does."""
    if source.itemsize == target.itemsize:
        for column in range(source.size):
            target[column] = source[column]
    elif source.itemsize < target.itemsize:
        for column in range(source.size):
            target[column] = np.uint32(source[column]) << _S16
    else:
        for column in range(source.size):
            bits = np.uint32(source[column])
            if (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000):
                target[column] = np.uint16(0x7FC0)  # a NaN: rounding could make it an infinity
            else:
                bits += np.uint32(0x7FFF) + ((bits >> _S16) & np.uint32(1))
                target[column] = np.uint16(bits >> _S16)
