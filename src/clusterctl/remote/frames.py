"""Frames: a letter, a four-byte length, and that many bytes. Both sides of a connection send them."""

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
    """The content of a frame."""

    # To the other machine.
    REQUEST = b"R"
    INPUT = b"I"  # the user's input; empty at its end
    SIGNAL = b"S"  # a signal's number
    SIZE = b"W"  # columns and lines of the terminal
    DATA = b"D"  # the answer to a question, in any number of frames; the last one is empty
    # From there.
    OUTPUT = b"O"
    ERRORS = b"E"
    QUESTION = b"Q"
    VALUE = b"V"  # the result or exception of an API operation
    EXIT = b"X"


FROM_THERE = frozenset({FrameKind.OUTPUT, FrameKind.ERRORS, FrameKind.QUESTION, FrameKind.VALUE, FrameKind.EXIT})


class Frame(NamedTuple):
    kind: FrameKind
    payload: bytes

    def packed(self) -> bytes:
        return _HEAD.pack(self.kind.value, len(self.payload)) + self.payload


class Broken(ValueError):
    """The received data is not a sequence of frames."""


class Reader:
    """Parses frames from bytes as they arrive."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def fed(self, received: bytes) -> Iterator[Frame]:
        """The frames completed by `received`. Raises Broken."""
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
                raise Broken(f"unknown frame: {letter!r}") from error
