"""Frames: a letter, a four-byte length, and that many bytes. Both sides of a connection send them.

The first one holds the request (`RemoteRequest`) of one machine to clusterctl on another.
"""

from __future__ import annotations

import json
import struct
import tomllib
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterctl.launcher.config.sent import Sent  # noqa: TC001 - read by `from_record`
from clusterctl.shared.spec import to_record
from clusterctl.shared.spec.records import from_record

if TYPE_CHECKING:
    from collections.abc import Iterator


_HEAD = struct.Struct(">cI")
LARGEST = 64 * 2**20
CHUNK = 2**18
GONE = 76  # the exit code of a command that ended without an answer


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
    EXIT = b"X"


FROM_THERE = frozenset({FrameKind.OUTPUT, FrameKind.ERRORS, FrameKind.QUESTION, FrameKind.EXIT})


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


# The request that one machine sends to clusterctl on another.


OF_TERMINALS = frozenset({"TERM", "COLORTERM", "NO_COLOR", "FORCE_COLOR", "TZ"})
_PUBLIC_KEYS = {
    "account", "cluster", "gpu_request", "host", "images", "interface", "kind", "local_scratch", "name", "partition",
    "polling_floor", "python", "qos", "remote_python", "runs", "secrets",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Terminal:
    """Which of the three streams are a terminal on the user's machine, and its size."""

    input: bool = False
    output: bool = False
    errors: bool = False
    columns: int = 80
    lines: int = 24


@dataclass(frozen=True, kw_only=True)
class RemoteRequest:
    """A command line to execute.

    `mark` is printed first: output before it comes from the login shell. `once` identifies a request that must not be
    executed twice, even if the connection breaks.
    """

    mark: str
    words: tuple[str, ...] = ()
    sent: Sent
    terminal: Terminal
    interactive: bool = False  # whether the command controls the terminal or the input
    environment: dict[str, str]
    once: str = ""

    @property
    def is_public(self) -> bool:
        """Whether other users may see it, here and on the login node, as everything in a command line.

        True only if nothing in it can be a secret: no job, none of the user's variables, no text typed for a setting
        or a program, and in the files of cluster and user nothing but plain values of these keys.
        """
        files = (self.sent.cluster, *((self.sent.user,) if self.sent.user else ()))
        others = (self.once, self.sent.job, self.sent.others, self.sent.uploads, self.sent.projects)
        return not (
            any(others)
            or self.environment.keys() - OF_TERMINALS - {"CLUSTERCTL_CLUSTER"}
            or any("=" in word or word == "--" for word in self.words)
            or not all(_is_public(file.text) for file in files)
        )

    def packed(self) -> bytes:
        return json.dumps(to_record(self)).encode()

    @classmethod
    def unpacked(cls, packed: bytes) -> RemoteRequest:
        """Parse a packed request. Raises ConfigError if it is invalid."""
        record: Any = json.loads(packed)
        return from_record(cls, record)


def _is_public(text: str) -> bool:
    """Whether a file contains only known keys with plain values; a comment may contain anything."""
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError):
        return False
    return (
        "#" not in text and values.keys() <= _PUBLIC_KEYS and not any(isinstance(one, dict) for one in values.values())
    )
