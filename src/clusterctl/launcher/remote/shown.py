"""Tracks the output of a remote command, so that nothing is shown twice if it is repeated."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from clusterctl.launcher.remote.frames import FrameKind
from clusterctl.shared.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_HELD_BYTES = 2**20
_LONGEST_LINE = 2**20  # bytes
_MOST_LINES = 10**6


class Repeat(Enum):
    """What to do with a command when the connection breaks."""

    HELD = "held"  # no output shown yet: repeat it
    ONCE = "once"  # it continues there, and its answer is stored: fetch that
    REDRAWN = "redrawn"  # it displays the current state: restart it while the user is watching
    LINES = "lines"  # like REDRAWN, without lines that were already shown
    WHOLE = "whole"  # its output is one answer, for a program: forget the beginning and repeat it
    NEVER = "never"


@dataclass
class Callbacks:
    """The local ends of a conversation."""

    output: Callable[[bytes], None]
    errors: Callable[[bytes], None]
    forget: Callable[[], None] = lambda: None  # called when the command is repeated: its output begins anew
    answer: Callable[[dict[str, Any]], Iterator[bytes]] = lambda _: iter(())
    notice: Callable[[str], None] = lambda _: None  # called when the connection breaks and comes back
    input: int | None = None  # a descriptor to read input from
    signals: Signals | None = None
    ask: bool = True  # whether ssh may prompt the user


@dataclass
class Signals:
    """Signals from the user, set by handlers that also make the descriptor `wake` readable."""

    wake: int
    listening: bool = False  # whether Ctrl-C is sent to the other machine; otherwise it ends the local command
    interrupted: bool = False
    size: bytes | None = None  # of the terminal, since it has changed


class ShownSoFar:
    """The output shown so far."""

    def __init__(self, callbacks: Callbacks, repeat: Repeat) -> None:
        self._callbacks, self._repeat = callbacks, repeat
        self._held: list[tuple[FrameKind, bytes]] = []
        self._held_size = 0
        self._past = {FrameKind.OUTPUT: 0, FrameKind.ERRORS: 0}  # number of bytes shown
        self._skip = dict(self._past)
        self._lines: dict[bytes, int] = {}  # line -> how often it was shown
        self._old: dict[bytes, int] = {}
        self._rest = b""

    def take(self, kind: FrameKind, data: bytes) -> None:
        if self._repeat is Repeat.HELD and self._held_size < _HELD_BYTES:
            self._held.append((kind, data))
            self._held_size += len(data)
            if self._held_size >= _HELD_BYTES:
                self.release()
                self._held_size = _HELD_BYTES
        elif self._repeat is Repeat.LINES and kind is FrameKind.OUTPUT:
            self._take_lines(data)
        else:
            skipped = min(self._skip[kind], len(data))
            self._skip[kind] -= skipped
            self._pass(kind, data[skipped:])

    def release(self) -> None:
        """Show the output that was held back."""
        for kind, data in self._held:
            self._pass(kind, data)
        self._held, self._held_size = [], 0
        if self._rest:
            self._pass(FrameKind.OUTPUT, self._rest)
            self._rest = b""

    def begin_again(self, host: str) -> None:
        """Prepare to repeat the command. Raises HostError if that would show or do something twice."""
        if self._repeat is Repeat.NEVER or (self._repeat is Repeat.HELD and self._held_size >= _HELD_BYTES):
            raise HostError(f"the connection to {host} broke", "run the command again")
        self._held, self._held_size, self._rest = [], 0, b""
        if self._repeat is Repeat.ONCE:
            self._skip = dict(self._past)
        else:
            self._callbacks.forget()
        self._old = dict(self._lines)

    def _take_lines(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            self._pass(FrameKind.OUTPUT, self._rest)
            self._rest = b""
        for line in lines:
            if self._old.get(line, 0):
                self._old[line] -= 1
                continue
            if line in self._lines or len(self._lines) < _MOST_LINES:
                self._lines[line] = self._lines.get(line, 0) + 1
            self._pass(FrameKind.OUTPUT, line + b"\n")

    def _pass(self, kind: FrameKind, data: bytes) -> None:
        if data:
            self._past[kind] += len(data)
            (self._callbacks.output if kind is FrameKind.OUTPUT else self._callbacks.errors)(data)
