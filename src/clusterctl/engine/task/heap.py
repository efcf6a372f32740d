"""The heap of a rank, which keeps freed memory: given back to the kernel when too much of it is of no use.

Ranks without GPUs keep what they free, since fetching pages anew takes time. But glibc before 2.38 does not reuse a
freed block for an equal aligned one, which torch's tensors are (bug 14581 of sourceware.org): where their sizes differ
from step to step, the heap grows until free neighbours can be joined. Built-in trainings have variables that leave
little between them (`launcher/submission/plan.py`); under torchrun, there are none.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

_SETTLED = 4  # looks after which a heap that is in order has its size
_REST = 32  # looks between two times: fetching the pages anew takes about a hundredth of such a stretch
_MUCH, _MORE = 1.06, 16 << 20  # times as much, since samples vary in size, and so many bytes more


class Heap:
    """Gives memory back when this process holds clearly more than it did soon after the last time."""

    def __init__(self) -> None:
        self._looks = self._size = 0

    def look(self) -> None:
        """Give freed memory back if the heap has grown; reads one line of /proc, in a few microseconds."""
        self._looks += 1
        if self._looks <= _SETTLED:
            self._size = max(self._size, _private_bytes())
        elif self._looks > _REST and _private_bytes() > _MUCH * self._size + _MORE:
            give_back()
            self._looks = self._size = 0


def give_back() -> None:
    """Give the pages of freed blocks back to the kernel."""
    with suppress(AttributeError, OSError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def _private_bytes() -> int:
    """The resident memory of this process without what it shares; 0 if unknown."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/statm").read_bytes().split()
        return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")
    return 0
