"""This machine's side of a connection: sends a request, answers questions, passes on what is printed there."""

from __future__ import annotations

import base64
import json
import os
import selectors
import time
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.errors import HostError
from clusterctl.remote import ssh
from clusterctl.remote.answers import GONE
from clusterctl.remote.frames import CHUNK, Broken, Frame, FrameKind, Reader
from clusterctl.remote.package import package

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

    from clusterctl.remote.request import RemoteRequest

_NO_PYTHON = 93  # of the command that installs
_SSH_FAILED = 255
_MOST_TRIES = 5  # to have a command begun
_MOST_KILLS = 3
_FIRST_PAUSE_SECONDS = 0.5
_WHAT_BECAME = "what became of it: clusterctl status"
_HELD_BYTES = 2**20
_LONGEST_WORD = 100_000  # of a command line: Linux takes 131,071
_PATIENCE_SECONDS = 60.0  # for a connection that broke, unless someone watches
_LONGEST_PAUSE_SECONDS = 30.0
_PYTHONS = "python3.14 python3.13 python3.12 python3.11 python3"


class Repeat(Enum):
    """What becomes of a command when the connection breaks."""

    HELD = "held"  # nothing of it was shown yet: ask again
    ONCE = "once"  # it goes on there, and its answer is kept: fetch that
    REDRAWN = "redrawn"  # it shows how things are: start it again, for as long as somebody looks
    LINES = "lines"  # the same, without the lines that were shown already
    NEVER = "never"


@dataclass
class Ends:
    """Where a conversation ends on this machine."""

    output: Callable[[bytes], None]
    errors: Callable[[bytes], None]
    answer: Callable[[dict[str, Any]], Iterator[bytes]] = lambda _: iter(())
    notice: Callable[[str], None] = lambda _: None  # that the connection broke, and is back
    input: int | None = None  # a descriptor whose bytes are sent
    signals: Signals | None = None
    ask: bool = True  # whether ssh may ask a person


@dataclass
class Signals:
    """What a person does besides typing: noted by handlers, each of which makes the descriptor `wake` readable."""

    wake: int
    listening: bool = False  # whether Ctrl-C is passed on to the other machine; otherwise it ends the command here
    interrupted: bool = False
    size: bytes | None = None  # of the terminal, since it has changed


@dataclass
class Conversation:
    """One request to one host, over as many connections as it takes."""

    host: str
    python: str | None
    request: RemoteRequest
    ends: Ends
    repeat: Repeat = Repeat.HELD
    patience: float = _PATIENCE_SECONDS
    value: bytes | None = field(default=None, init=False)
    _tries: int = field(default=0, init=False)
    _kills: int = field(default=0, init=False)
    _shown: _Shown = field(init=False)

    def __post_init__(self) -> None:
        self._shown = _Shown(self.ends, self.repeat)

    def result(self) -> int:
        """The exit code of the command. Raises HostError."""
        carried = package()
        installed = False
        while True:
            try:
                return self._once(carried.name)
            except _NotStarted as failed:
                if failed.code == _SSH_FAILED:
                    self._connect(failed.said)
                elif not installed:
                    installed = self._install(carried.name, carried.path)
                else:
                    raise _unusable(self.host, failed.said) from None
            except _Lost as lost:
                self._reconnect(lost)

    def _once(self, name: str) -> int:
        folder = '"${XDG_DATA_HOME:-$HOME/.local/share}'
        packed = base64.b64encode(self.request.packed()).decode()
        # sshd takes input only when the command has started, which costs a round trip
        is_early = self.request.is_public and len(packed) < _LONGEST_WORD
        words = f'{folder}/clusterctl/remote/{name}/start" {packed if is_early else ""}'
        process = ssh.session(self.host, f"exec sh -c 'exec sh {words}'")
        talking = _Talking(process, self.request, self.ends, self._shown, is_sent=is_early)
        try:
            code = talking.until_the_end()
        finally:
            talking.close()
        self.value = talking.value
        if self.repeat is Repeat.ONCE and code == GONE:
            raise HostError(f"the command was ended from outside on {self.host}, and left no answer", _WHAT_BECAME)
        self._shown.release()
        return code

    def _connect(self, said: str) -> None:
        """Connect, to ask for the first time or again: nothing has begun there. `said` is what ssh complained of."""
        if self._tries:
            if self._tries == _MOST_TRIES:
                raise ssh.failure(self.host, said, terminal=False)
            time.sleep(_FIRST_PAUSE_SECONDS * 2 ** (self._tries - 1))
        self._tries += 1
        ssh.connect(self.host, ask=self.ends.ask)

    def _reconnect(self, lost: _Lost) -> None:
        """Wait for a new connection. Raises HostError where the command cannot be repeated, or none comes in time."""
        if self.ends.signals and self.ends.signals.interrupted:
            raise KeyboardInterrupt
        if lost.code != _SSH_FAILED:
            raise _ended(self.host, lost.said, self.repeat)
        self._shown.begin_again(self.host)
        watched = self.repeat in (Repeat.REDRAWN, Repeat.LINES)
        deadline, pause = time.monotonic() + self.patience, _FIRST_PAUSE_SECONDS
        self.ends.notice(f"the connection to {self.host} broke; reconnecting")
        while True:
            try:
                is_new = ssh.connect(self.host, ask=self.ends.ask)
            except HostError as error:
                if not watched and time.monotonic() > deadline:
                    hint = _WHAT_BECAME if self.repeat is Repeat.ONCE else error.hint
                    raise HostError(f"the connection broke, and does not come back: {error.message}", hint) from None
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            else:
                self._tries = 1
                self._kills = 0 if is_new else self._kills + 1
                if self._kills == _MOST_KILLS:  # the connection is there: what ran on the other machine is not
                    raise _ended(self.host, lost.said, self.repeat)
                self.ends.notice(f"connected to {self.host} again")
                return

    def _install(self, name: str, archive: Path) -> bool:
        """Bring clusterctl there; False where the connection broke. Raises HostError without a Python, or room."""
        import hashlib

        data = archive.read_bytes()
        program = Path(__file__).with_name("install.py").read_bytes()
        words = f"{name} {hashlib.sha256(data).hexdigest()} {len(data)}"
        self.ends.notice(f"bringing clusterctl to {self.host}, once: {len(data) / 2**20:.1f} MiB")
        candidates = self.python or _PYTHONS
        is_new = "import sys; sys.exit(sys.version_info < (3, 11))"
        reads = f"import sys; exec(sys.stdin.buffer.read({len(program)}))"
        loop = (
            f'for p in {candidates}; do q=$(command -v "$p" 2>/dev/null) && "$q" -I -c "{is_new}" 2>/dev/null'
            f' && exec "$q" -I -c "{reads}" {words}; done; exit {_NO_PYTHON}'
        )
        process = ssh.session(self.host, f"exec sh -c '{loop}'")
        _, said = process.communicate(program + data)
        if process.returncode == _NO_PYTHON:
            wanted = f"no Python 3.11 at {self.python}" if self.python else "no Python 3.11 or later on its PATH"
            raise HostError(
                f"{self.host} has {wanted}", 'name one in the cluster file: remote_python = "/path/to/python3"'
            )
        if process.returncode not in (0, _SSH_FAILED):
            raise _unusable(self.host, said.decode(errors="replace"))
        return process.returncode == 0


def _unusable(host: str, said: str) -> HostError:
    return HostError(f"clusterctl does not start on {host}: {_last(said)}", "is your quota there used up? quota -s")


def _ended(host: str, said: str, repeat: Repeat) -> HostError:
    hint = _WHAT_BECAME if repeat is Repeat.ONCE else "type the command again"
    return HostError(f"clusterctl ended on {host} before the command did: {_last(said)}", hint)


def _not_understood(error: Exception) -> HostError:
    return HostError(f"the other clusterctl is not understood: {error}", "type the command again")


def _last(said: str) -> str:
    """The last line of what was said, without what a terminal would obey."""
    from clusterctl.runs.plain_text import plain

    return plain(next((line for line in reversed(said.splitlines()) if line.strip()), "it gave no reason").strip())


class _NotStarted(Exception):
    """The session ended before the other clusterctl had said anything."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(said)
        self.code, self.said = code, said


class _Lost(Exception):
    """The session ended before the command did."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(said)
        self.code, self.said = code, said


class _Shown:
    """What was passed on so far, so that a repeated command shows nothing twice."""

    def __init__(self, ends: Ends, repeat: Repeat) -> None:
        self._ends, self._repeat = ends, repeat
        self._held: list[tuple[FrameKind, bytes]] = []
        self._held_size = 0
        self._past = {FrameKind.OUTPUT: 0, FrameKind.ERRORS: 0}  # bytes that were passed on
        self._skip = dict(self._past)
        self._lines: dict[bytes, int] = {}  # that were passed on, and how often
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
        """Pass on what was held back."""
        for kind, data in self._held:
            self._pass(kind, data)
        self._held, self._held_size = [], 0
        if self._rest:
            self._pass(FrameKind.OUTPUT, self._rest)
            self._rest = b""

    def begin_again(self, host: str) -> None:
        """The command is repeated from its beginning. Raises HostError where that would show or do something twice."""
        if self._repeat is Repeat.NEVER or (self._repeat is Repeat.HELD and self._held_size >= _HELD_BYTES):
            raise HostError(f"the connection to {host} broke", "type the command again")
        self._held, self._held_size, self._rest = [], 0, b""
        if self._repeat is Repeat.ONCE:
            self._skip = dict(self._past)
        self._old = dict(self._lines)

    def _take_lines(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if self._old.get(line, 0):
                self._old[line] -= 1
                continue
            self._lines[line] = self._lines.get(line, 0) + 1
            self._pass(FrameKind.OUTPUT, line + b"\n")

    def _pass(self, kind: FrameKind, data: bytes) -> None:
        if data:
            self._past[kind] += len(data)
            (self._ends.output if kind is FrameKind.OUTPUT else self._ends.errors)(data)


class _Talking:
    """One connection, from the request to the exit code."""

    def __init__(
        self, process: subprocess.Popen[bytes], request: RemoteRequest, ends: Ends, shown: _Shown, *, is_sent: bool
    ) -> None:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        self._process, self._ends, self._shown = process, ends, shown
        self._input, self._output, self._errors = process.stdin, process.stdout, process.stderr
        self._mark, self._marked, self._noise = request.mark.encode(), False, b""
        self._reader = Reader()
        self._said = b""
        self._pending = bytearray() if is_sent else bytearray(Frame(FrameKind.REQUEST, request.packed()).packed())
        self._sources: list[Iterator[bytes]] = []
        self._code: int | None = None
        self.value: bytes | None = None
        self._selector = selectors.DefaultSelector()
        for stream in (self._output, self._errors):
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ)
        os.set_blocking(self._input.fileno(), False)
        self._writing = False
        if ends.input is not None:
            self._selector.register(ends.input, selectors.EVENT_READ)
        if ends.signals:
            self._selector.register(ends.signals.wake, selectors.EVENT_READ, ends.signals)

    def until_the_end(self) -> int:
        """The exit code of the command there. Raises _NotStarted and _Lost."""
        while self._code is None:
            self._watch_for_writing()
            for key, _ in self._selector.select():
                if isinstance(key.data, Signals):
                    self._heed(key.data)
                else:
                    self._serve(key.fileobj)
        return self._code

    def close(self) -> None:
        """End ssh's part; the connection is the master's."""
        if self._ends.signals:
            self._ends.signals.listening = False
        self._selector.close()
        self._process.kill()
        self._process.wait()
        for stream in (self._input, self._output, self._errors):
            with suppress(OSError):
                stream.close()

    def _watch_for_writing(self) -> None:
        while not self._pending and self._sources:
            try:
                piece = next(self._sources[0], None)
            except (ValueError, IndexError, TypeError) as error:
                raise _not_understood(error) from error
            if piece is None:
                self._sources.pop(0)
            else:
                self._pending += piece
        if bool(self._pending) == self._writing:
            return
        self._writing = bool(self._pending)
        if self._writing:
            self._selector.register(self._input, selectors.EVENT_WRITE)
        else:
            self._selector.unregister(self._input)

    def _serve(self, stream: object) -> None:
        if stream is self._input:
            self._write()
        elif stream is self._errors:
            self._hear(_read(self._errors.fileno()))
        elif stream is self._output:
            self._receive(_read(self._output.fileno()))
        elif self._ends.input is not None:
            typed = os.read(self._ends.input, CHUNK)
            self._pending += Frame(FrameKind.INPUT, typed).packed()
            if not typed:
                self._selector.unregister(self._ends.input)

    def _hear(self, data: bytes | None) -> None:
        """What ssh itself prints, and the login shell's start-up files."""
        if data:
            self._said = (self._said + data)[-CHUNK:]
        elif data is not None:
            self._ended(self._errors)

    def _heed(self, signals: Signals) -> None:
        """Pass on Ctrl-C, and the new size of the terminal."""
        os.read(signals.wake, CHUNK)
        if signals.interrupted and signals.listening:
            signals.listening = False  # a second one ends the command here
            self._pending += Frame(FrameKind.SIGNAL, b"2").packed()
        if signals.size is not None:
            self._pending += Frame(FrameKind.SIZE, signals.size).packed()
            signals.size = None

    def _write(self) -> None:
        try:
            written = os.write(self._input.fileno(), memoryview(self._pending)[:CHUNK])
            del self._pending[:written]
        except BlockingIOError:
            pass
        except OSError:  # the other end is gone; what it said comes first
            self._pending.clear()
            self._sources.clear()

    def _receive(self, data: bytes | None) -> None:
        if data is None:
            return
        if not data:
            self._ended(self._output)
            code = self._process.wait()
            self._said += _rest_of(self._errors.fileno())
            raise (_Lost if self._marked else _NotStarted)(code, self._said.decode(errors="replace"))
        if not self._marked:
            self._noise += data
            _, mark, data = self._noise.partition(self._mark)
            if not mark:
                self._noise = self._noise[-CHUNK:]
                return
            self._marked = True
            if self._ends.signals:
                self._ends.signals.listening = True
        try:
            for frame in self._reader.fed(data):
                self._handle(frame)
        except ValueError as error:
            raise _not_understood(error) from error

    def _handle(self, frame: Frame) -> None:
        if frame.kind in (FrameKind.OUTPUT, FrameKind.ERRORS):
            self._shown.take(frame.kind, frame.payload)
        elif frame.kind is FrameKind.QUESTION:
            if not isinstance(question := json.loads(frame.payload), dict):
                raise Broken("a question that is none")
            self._sources.append(self._answered(question))
        elif frame.kind is FrameKind.VALUE:
            self.value = (self.value or b"") + frame.payload
        elif frame.kind is FrameKind.EXIT:
            self._code = int(frame.payload)

    def _answered(self, question: dict[str, Any]) -> Iterator[bytes]:
        for piece in self._ends.answer(question):
            if piece:
                yield Frame(FrameKind.DATA, piece).packed()
        yield Frame(FrameKind.DATA, b"").packed()

    def _ended(self, stream: Any) -> None:
        self._selector.unregister(stream)


def _read(descriptor: int) -> bytes | None:
    """What there is; empty at the end, None where there is nothing now."""
    try:
        return os.read(descriptor, CHUNK)
    except BlockingIOError:
        return None


def _rest_of(descriptor: int) -> bytes:
    with suppress(OSError):
        return os.read(descriptor, CHUNK)
    return b""
