"""A request to a host, over as many ssh sessions as necessary.

A session sends the request, answers questions, and relays the output, none of it twice if the request is repeated.
"""

from __future__ import annotations

import base64
import os
import selectors
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.launcher.remote import ssh
from clusterctl.launcher.remote.frames import CHUNK, FROM_THERE, GONE, Broken, Frame, FrameKind, Reader
from clusterctl.launcher.remote.package import package
from clusterctl.launcher.remote.values import parsed
from clusterctl.shared.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clusterctl.launcher.remote.frames import RemoteRequest


# What the other machine may send; it is not trusted.
_MOST_NOISE = 2**22  # bytes that its login shell prints first
_MOST_QUESTION = 2**24  # bytes: the numbers of a large project's files
_LAST_SECONDS = 10.0  # from the end of its output to the end of the session
_MOST_QUESTIONS = 8  # at once; clusterctl asks one after the other
# The default one of macOS, kqueue, refuses devices such as /dev/null, and never reports the end of a file.
_Selector: type[selectors.BaseSelector] = getattr(selectors, "EpollSelector", selectors.SelectSelector)


class SessionEnded(Exception):
    """The session ended before the command did: ssh's exit code and error output."""

    def __init__(self, code: int, complaint: str) -> None:
        super().__init__(complaint)
        self.code, self.complaint = code, complaint


class NotStarted(SessionEnded):
    """The session ended before the remote clusterctl had started."""


class Session:
    """From the request to the exit code."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        request: RemoteRequest,
        callbacks: Callbacks,
        shown: ShownSoFar,
        *,
        is_sent: bool,
    ) -> None:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        self._process, self._callbacks, self._shown = process, callbacks, shown
        self._input, self._output, self._errors = process.stdin, process.stdout, process.stderr
        self._mark, self._marked, self._noise, self._noises = request.mark.encode(), False, b"", 0
        self._reader = Reader()
        self._complaint = b""
        self._pending = bytearray() if is_sent else bytearray(Frame(FrameKind.REQUEST, request.packed()).packed())
        self._sources: list[Iterator[bytes]] = []
        self._code: int | None = None
        self._selector = _Selector()
        for stream in (self._output, self._errors):
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ)
        os.set_blocking(self._input.fileno(), False)
        self._writing = False
        if callbacks.input is not None:
            try:
                self._selector.register(callbacks.input, selectors.EVENT_READ)
            except PermissionError:  # epoll takes neither files nor /dev/null, which are always readable
                self._sources.append(_frames_of_file(callbacks.input))
        if callbacks.signals:
            self._selector.register(callbacks.signals.wake, selectors.EVENT_READ, callbacks.signals)

    def until_the_end(self) -> int:
        """Run until the remote command ends; returns its exit code. Raises SessionEnded and NotStarted."""
        while self._code is None:
            self._watch_for_writing()
            for key, _ in self._selector.select():
                if key.data is None:
                    self._serve(key.fileobj)
                    continue
                signals: Signals = key.data  # Ctrl-C, or a change of the terminal's size
                os.read(signals.wake, CHUNK)
                if signals.interrupted and signals.listening:
                    signals.listening = False  # a second Ctrl-C ends the local command
                    self._pending += Frame(FrameKind.SIGNAL, b"2").packed()
                if signals.size is not None:
                    self._pending += Frame(FrameKind.SIZE, signals.size).packed()
                    signals.size = None
        return self._code

    def close(self) -> None:
        """End this session; the connection belongs to the master."""
        if self._callbacks.signals:
            self._callbacks.signals.listening = False
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
            except (ValueError, LookupError, TypeError) as error:
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
            try:
                written = os.write(self._input.fileno(), memoryview(self._pending)[:CHUNK])
                del self._pending[:written]
            except BlockingIOError:
                pass
            except OSError:  # the other end has closed; read its output first
                self._pending.clear()
                self._sources.clear()
        elif stream is self._errors:  # of ssh itself, and of the login shell's start-up files
            data = _read(self._errors.fileno())
            if data:
                self._complaint = (self._complaint + data)[-CHUNK:]
            elif data is not None:
                self._selector.unregister(self._errors)
        elif stream is self._output:
            self._receive(_read(self._output.fileno()))
        elif self._callbacks.input is not None:
            typed = os.read(self._callbacks.input, CHUNK)
            self._pending += Frame(FrameKind.INPUT, typed).packed()
            if not typed:
                self._selector.unregister(self._callbacks.input)

    def _receive(self, data: bytes | None) -> None:
        if data is None:
            return
        if not data:
            self._selector.unregister(self._output)
            try:
                code = self._process.wait(_LAST_SECONDS)
            except subprocess.TimeoutExpired:  # it can close its output without ending the session
                self._process.kill()
                code = self._process.wait()
            with suppress(OSError):
                self._complaint += os.read(self._errors.fileno(), CHUNK)
            raise (SessionEnded if self._marked else NotStarted)(code, self._complaint.decode(errors="replace"))
        if not self._marked:
            self._noise += data
            _, mark, data = self._noise.partition(self._mark)
            if not mark:
                self._noises += len(self._noise)
                self._noise = self._noise[-len(self._mark) :]
                if self._noises > _MOST_NOISE:
                    raise _not_understood(Broken(f"{_MOST_NOISE // 2**20} MiB of output before it started"))
                return
            self._marked = True
            if self._callbacks.signals:
                self._callbacks.signals.listening = True
        try:
            for frame in self._reader.fed(data):
                self._handle(frame)
        except ValueError as error:
            raise _not_understood(error) from error

    def _handle(self, frame: Frame) -> None:
        if frame.kind not in FROM_THERE:
            raise Broken(f"a frame that only this machine sends: {frame.kind.name.lower()}")
        if frame.kind in (FrameKind.OUTPUT, FrameKind.ERRORS):
            self._shown.take(frame.kind, frame.payload)
        elif frame.kind is FrameKind.QUESTION:
            if len(frame.payload) > _MOST_QUESTION:
                raise Broken(f"a question of {len(frame.payload)} bytes")
            question = parsed(frame.payload)
            if not isinstance(question, dict):
                raise Broken("invalid question")
            self._sources.append(self._answered(question))
            if len(self._sources) > _MOST_QUESTIONS:
                raise Broken(f"more than {_MOST_QUESTIONS} questions at once")
        else:
            code = frame.payload
            if not (code.isdigit() and len(code) <= 3 and int(code) <= 255):
                raise Broken("invalid exit code")
            self._code = int(code)

    def _answered(self, question: dict[str, Any]) -> Iterator[bytes]:
        for piece in self._callbacks.answer(question):
            if piece:
                yield Frame(FrameKind.DATA, piece).packed()
        yield Frame(FrameKind.DATA, b"").packed()


def _frames_of_file(descriptor: int) -> Iterator[bytes]:
    while data := os.read(descriptor, CHUNK):
        yield Frame(FrameKind.INPUT, data).packed()
    yield Frame(FrameKind.INPUT, b"").packed()


def _read(descriptor: int) -> bytes | None:
    """Available data; empty at the end of the stream, None if nothing is available yet."""
    try:
        return os.read(descriptor, CHUNK)
    except BlockingIOError:
        return None


def _not_understood(error: Exception) -> HostError:
    return HostError(f"invalid data from the other clusterctl: {error}", "run the command again")


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

    output: Callable[[bytes], object]
    errors: Callable[[bytes], object]
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

    def _pass(self, kind: FrameKind, data: bytes) -> None:
        if data:
            self._past[kind] += len(data)
            (self._callbacks.output if kind is FrameKind.OUTPUT else self._callbacks.errors)(data)


_NO_PYTHON = 93  # exit code of the install command
_SSH_FAILED = 255
_MOST_TRIES = 5  # to start a command
_MOST_KILLS = 3
_FIRST_PAUSE_SECONDS = 0.5
_WHAT_BECAME = "check the result: clusterctl status"
_LONGEST_WORD = 100_000  # on a command line: Linux allows 131,071
_PATIENCE_SECONDS = 60.0  # how long to try to reconnect, unless the user is watching
_LONGEST_PAUSE_SECONDS = 30.0
_PYTHONS = "python3.14 python3.13 python3.12 python3.11 python3"


@dataclass
class Conversation:
    """One request to one host, over as many connections as necessary."""

    host: str
    python: str | None
    request: RemoteRequest
    callbacks: Callbacks
    repeat: Repeat = Repeat.HELD
    patience: float = _PATIENCE_SECONDS
    _tries: int = field(default=0, init=False)
    _kills: int = field(default=0, init=False)
    _shown: ShownSoFar = field(init=False)

    def __post_init__(self) -> None:
        self._shown = ShownSoFar(self.callbacks, self.repeat)

    def result(self) -> int:
        """Run the command; returns its exit code. Raises HostError."""
        carried = package()
        installed = False
        while True:
            try:
                return self._once(carried.name)
            except NotStarted as failed:
                if failed.code == _SSH_FAILED:
                    self._connect(failed.complaint)
                elif not installed:
                    installed = self._install(carried.name, carried.path)
                else:
                    raise _unusable(self.host, failed.complaint) from None
            except SessionEnded as lost:
                self._reconnect(lost)

    def _once(self, name: str) -> int:
        folder = '"${XDG_DATA_HOME:-$HOME/.local/share}'
        packed = base64.b64encode(self.request.packed()).decode()
        # sshd accepts input only after the command has started, which costs a round trip
        is_early = self.request.is_public and len(packed) < _LONGEST_WORD
        words = f'{folder}/clusterctl/remote/{name}/start" {packed if is_early else ""}'
        process = ssh.session(self.host, f"exec sh -c 'exec sh {words}'")
        session = Session(process, self.request, self.callbacks, self._shown, is_sent=is_early)
        try:
            code = session.until_the_end()
        finally:
            session.close()
        if self.repeat is Repeat.ONCE and code == GONE:
            raise HostError(f"the command was killed on {self.host} and left no answer", _WHAT_BECAME)
        self._shown.release()
        return code

    def _connect(self, complaint: str) -> None:
        """Connect for the first time or again; nothing has been started there. `complaint` is ssh's error output."""
        if self._tries:
            if self._tries == _MOST_TRIES:
                raise ssh.failure(self.host, complaint, terminal=False)
            time.sleep(_FIRST_PAUSE_SECONDS * 2 ** (self._tries - 1))
        self._tries += 1
        ssh.connect(self.host, ask=self.callbacks.ask)

    def _reconnect(self, lost: SessionEnded) -> None:
        """Wait for a new connection. Raises HostError if the command cannot be repeated, or after the timeout."""
        if self.callbacks.signals and self.callbacks.signals.interrupted:
            raise KeyboardInterrupt
        if lost.code != _SSH_FAILED:
            raise _ended(self.host, lost.complaint, self.repeat)
        self._shown.begin_again(self.host)
        watched = self.repeat in (Repeat.REDRAWN, Repeat.LINES)
        deadline, pause = time.monotonic() + self.patience, _FIRST_PAUSE_SECONDS
        self.callbacks.notice(f"the connection to {self.host} broke; reconnecting")
        while True:
            try:
                is_new = ssh.connect(self.host, ask=self.callbacks.ask)
            except HostError as error:
                if not watched and time.monotonic() > deadline:
                    hint = _WHAT_BECAME if self.repeat is Repeat.ONCE else error.hint
                    raise HostError(f"the connection broke and cannot be restored: {error.message}", hint) from None
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            else:
                self._tries = 1
                self._kills = 0 if is_new else self._kills + 1
                if self._kills == _MOST_KILLS:  # the connection works, but the remote process was killed
                    raise _ended(self.host, lost.complaint, self.repeat)
                self.callbacks.notice(f"reconnected to {self.host}")
                return

    def _install(self, name: str, archive: Path) -> bool:
        """Copy clusterctl there; False if the connection broke. Raises HostError without a Python or disk space."""
        import hashlib

        data = archive.read_bytes()
        program = Path(__file__).with_name("install.py").read_bytes()
        words = f"{name} {hashlib.sha256(data).hexdigest()} {len(data)}"
        self.callbacks.notice(f"copying clusterctl to {self.host} (once): {len(data) / 2**20:.1f} MiB")
        candidates = self.python or _PYTHONS
        is_new = "import sys; sys.exit(sys.version_info < (3, 11))"
        reads = f"import sys; exec(sys.stdin.buffer.read({len(program)}))"
        loop = (
            f'for p in {candidates}; do q=$(command -v "$p" 2>/dev/null) && "$q" -I -c "{is_new}" 2>/dev/null'
            f' && exec "$q" -I -c "{reads}" {words}; done; exit {_NO_PYTHON}'
        )
        process = ssh.session(self.host, f"exec sh -c '{loop}'")
        _, complaint = process.communicate(program + data)
        if process.returncode == _NO_PYTHON:
            wanted = f"no Python 3.11 at {self.python}" if self.python else "no Python 3.11 or later on its PATH"
            raise HostError(
                f"{self.host} has {wanted}", 'set it in the cluster file: remote_python = "/path/to/python3"'
            )
        if process.returncode not in (0, _SSH_FAILED):
            raise _unusable(self.host, complaint.decode(errors="replace"))
        return process.returncode == 0


def _unusable(host: str, complaint: str) -> HostError:
    return HostError(
        f"clusterctl does not start on {host}: {_last(complaint)}", "check your disk quota there: quota -s"
    )


def _ended(host: str, complaint: str, repeat: Repeat) -> HostError:
    hint = _WHAT_BECAME if repeat is Repeat.ONCE else "run the command again"
    return HostError(f"clusterctl ended on {host} before the command did: {_last(complaint)}", hint)


def _last(complaint: str) -> str:
    """The last line of the error output, without control sequences."""
    from clusterctl.shared.record.plain_text import plain

    return plain(next((line for line in reversed(complaint.splitlines()) if line.strip()), "no reason given").strip())
