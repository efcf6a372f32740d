"""Frames: a letter, four bytes of length, and so many bytes. Both sides of a connection send them."""

from __future__ import annotations

import struct
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEAD = struct.Struct(">cI")
LARGEST = 64 * 2**20
CHUNK = 2**18


class FrameKind(Enum):
    """What a frame holds."""

    # To the other machine.
    REQUEST = b"R"
    INPUT = b"I"  # typed; empty at its end
    SIGNAL = b"S"  # a signal's number
    SIZE = b"W"  # columns and lines of the terminal
    DATA = b"D"  # to a question, in any number of frames; empty at their end
    # From there.
    OUTPUT = b"O"
    ERRORS = b"E"
    QUESTION = b"Q"
    VALUE = b"V"  # what an operation of the API returned, or raised
    EXIT = b"X"


class Frame(NamedTuple):
    kind: FrameKind
    payload: bytes

    def packed(self) -> bytes:
        return _HEAD.pack(self.kind.value, len(self.payload)) + self.payload


class Broken(ValueError):
    """What arrives are no frames."""


class Reader:
    """Makes frames of bytes as they arrive."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def fed(self, received: bytes) -> Iterator[Frame]:
        """The frames that are complete with `received`. Raises Broken."""
        self._buffer += received
        while len(self._buffer) >= _HEAD.size:
            letter, length = _HEAD.unpack_from(self._buffer)
            if length > LARGEST:
                raise Broken(f"a frame of {length} bytes")
            end = _HEAD.size + length
            if len(self._buffer) < end:
                return
            payload = bytes(memoryview(self._buffer)[_HEAD.size : end])
            del self._buffer[:end]
            try:
                yield Frame(FrameKind(letter), payload)
            except ValueError as error:
                raise Broken(f"no such frame: {letter!r}") from error
