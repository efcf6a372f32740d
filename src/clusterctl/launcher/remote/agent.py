"""The remote side: executes a request, only once even if it is sent again, and relays its input and output.

Output meant for a terminal goes through a pseudo-terminal here, so that it looks the same as locally. The relay
outlives the connection if a command must not be executed twice.
"""

from __future__ import annotations

import base64
import json
import os
import re
import selectors
import shutil
import signal
import socket
import struct
import sys
import time
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from clusterctl.launcher.config.client_data import set_client_data
from clusterctl.launcher.config.places import data_folder
from clusterctl.launcher.config.sent import ClientData
from clusterctl.launcher.remote.frames import CHUNK, GONE, Frame, FrameKind, Reader, RemoteRequest
from clusterctl.shared.errors import HostError, UsageError
from clusterctl.shared.record.files import exists
from clusterctl.shared.record.once import Watch
from clusterctl.shared.record.ownership import make_private

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from typing import NoReturn

_LOOK_SECONDS = 1.0
LOST = 75  # the exit code of a command that lost the connection to the machine that answers its questions


def serve(perform: Callable[[RemoteRequest, Asker], int]) -> NoReturn:
    """Execute the request with `perform` in a separate process; exits with its exit code.

    The request is the first argument of this program, or at the beginning of stdin.
    """
    reader = Reader()
    rest: list[Frame] = []
    if sys.argv[1:]:
        packed = base64.b64decode(sys.argv[1])
    else:
        while not rest:
            received = os.read(0, CHUNK)
            if not received:
                raise SystemExit(LOST)
            rest += reader.fed(received)
        packed = rest.pop(0).payload
    request = RemoteRequest.unpacked(packed)
    connection = _Connection(reader, rest)
    connection.send_raw(request.mark.encode())
    answers = None
    if request.once:
        try:
            answers = LastingAnswer.begun(request.once)
        except Replayed as earlier:
            for frame in earlier.frames:
                connection.send(frame)
            raise SystemExit from None
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    code = _Relay(connection, request, answers).carry_out(perform)
    raise SystemExit(code)


class Asker:
    """Sends questions to the user's machine, from the process that executes the command."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._reader = connection, Reader()
        self._frames: list[Frame] = []
        self._is_answering = False
        self.lost = False

    def ask(self, question: Mapping[str, object]) -> Iterator[bytes]:
        """Send the question; returns the pieces of the answer. Raises HostError if the connection broke."""
        for _ in self._pieces():  # skip unread pieces of an earlier answer
            pass
        self.send(Frame(FrameKind.QUESTION, json.dumps(question).encode()))
        self._is_answering = True
        return self._pieces()

    def _pieces(self) -> Iterator[bytes]:
        while self._is_answering:
            while not self._frames:
                received = self._connection.recv(CHUNK)
                if not received:
                    self.lost = True
                    raise HostError("the connection broke during the transfer", "run the command again")
                self._frames += self._reader.fed(received)
            if piece := self._frames.pop(0).payload:
                yield piece
            else:
                self._is_answering = False

    def send(self, frame: Frame) -> None:
        self._connection.sendall(frame.packed())


class _Connection:
    """The ssh session: stdin and stdout of this process."""

    def __init__(self, reader: Reader, frames: list[Frame]) -> None:
        self.reader, self.frames = reader, frames
        self.lost = False

    def send(self, frame: Frame) -> None:
        self.send_raw(frame.packed())

    def send_raw(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view and not self.lost:
                view = view[os.write(1, view) :]
        except OSError:
            self.lost = True


class _Relay:
    """Relays between the connection and the process that executes the request."""

    def __init__(self, connection: _Connection, request: RemoteRequest, answers: LastingAnswer | None) -> None:
        self._connection, self._request, self._answers = connection, request, answers
        self._selector = selectors.DefaultSelector()
        self._open: dict[int, FrameKind] = {}  # the command's output streams
        self._terminals: list[int] = []
        self._input: int | None = None
        self._waiting = bytearray()  # input for the command
        self._input_ends = False

    def carry_out(self, perform: Callable[[RemoteRequest, Asker], int]) -> int:
        """Execute the command; returns its exit code."""
        ours, theirs = socket.socketpair()
        wake, waker = os.pipe()
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        child = self._start(perform, ours, theirs)
        theirs.close()
        ours.setblocking(True)
        self._selector.register(wake, selectors.EVENT_READ, "wake")
        self._selector.register(0, selectors.EVENT_READ, "connection")
        self._selector.register(ours, selectors.EVENT_READ, "question")
        asked = Reader()
        for frame in self._connection.frames:
            self._take(frame, child, ours)
        status = None
        while status is None:
            self._watch_input()
            for key, _ in self._selector.select(_LOOK_SECONDS):
                if key.data == "wake":
                    os.read(wake, CHUNK)
                elif key.data == "connection":
                    self._hear(child, ours)
                elif key.data == "question":
                    self._pass_on(asked, ours)
                elif key.data == "input":
                    self._write_input()
                else:
                    self._print(int(key.fd))
            if self._answers:
                self._answers.beat()
            done, code = os.waitpid(child, os.WNOHANG)
            status = os.waitstatus_to_exitcode(code) if done else None
        self._drain()
        code = status if status >= 0 else 128 - status
        if self._answers:
            if code == LOST and self._connection.lost:
                self._answers.forget()  # nothing was done, so the request may be repeated
            else:
                self._answers.finish(code)
        self._connection.send(Frame(FrameKind.EXIT, str(code).encode()))
        return code

    def _start(self, perform: Callable[[RemoteRequest, Asker], int], ours: socket.socket, theirs: socket.socket) -> int:
        """Start the process; its streams are pipes, or terminals if they were on the user's machine."""
        terminal = self._request.terminal
        streams: dict[int, int] = {}
        if self._request.interactive and terminal.input and terminal.output:
            master, slave = _terminal(terminal.columns, terminal.lines, raw=False)
            streams = dict.fromkeys((0, 1, 2), slave)
            self._watch(master, FrameKind.OUTPUT, terminal=True)
            self._input = master
        else:
            for number, kind, is_terminal in (
                (1, FrameKind.OUTPUT, terminal.output),
                (2, FrameKind.ERRORS, terminal.errors),
            ):
                ends = _terminal(terminal.columns, terminal.lines, raw=True) if is_terminal else os.pipe()
                streams[number] = ends[1]
                self._watch(ends[0], kind, terminal=is_terminal)
            if self._request.interactive:
                streams[0], self._input = os.pipe()
        child = os.fork()
        if child == 0:
            code = 70
            try:
                ours.close()
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.default_int_handler)  # sshd may have been started with it ignored
                _take_streams(streams)
                asker = Asker(theirs)
                os.environ.update(self._request.environment)
                set_client_data(ClientData(self._request.sent, asker.ask))
                code = perform(self._request, asker)
                code = LOST if asker.lost else code
            except KeyboardInterrupt:  # before it had started
                code = 128 + signal.SIGINT
            except Exception:  # a bug: its traceback, as Python prints it for a command that runs here
                traceback.print_exc()
            finally:
                with suppress(OSError, ValueError):
                    sys.stdout.flush()
                    sys.stderr.flush()
                os._exit(code)
        for end in set(streams.values()):
            os.close(end)
        if self._input is not None:
            os.set_blocking(self._input, False)
        return child

    def _watch(self, descriptor: int, kind: FrameKind, *, terminal: bool) -> None:
        self._open[descriptor] = kind
        self._selector.register(descriptor, selectors.EVENT_READ, "print")
        if terminal:
            self._terminals.append(descriptor)

    def _hear(self, child: int, ours: socket.socket) -> None:
        """Handle incoming data; when the connection ends, end a command that only displays something."""
        with suppress(OSError):
            received = os.read(0, CHUNK)
            if received:
                for frame in self._connection.reader.fed(received):
                    self._take(frame, child, ours)
                return
        self._connection.lost = True
        self._selector.unregister(0)
        with suppress(OSError):
            ours.shutdown(socket.SHUT_WR)  # stop waiting for answers
        if not self._answers:
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGHUP)

    def _take(self, frame: Frame, child: int, ours: socket.socket) -> None:
        if frame.kind is FrameKind.DATA:
            with suppress(OSError):
                ours.sendall(frame.packed())
        elif frame.kind is FrameKind.INPUT:
            self._waiting += frame.payload
            self._input_ends |= not frame.payload
        elif frame.kind is FrameKind.SIGNAL:
            try:
                os.killpg(child, int(frame.payload))
            except ProcessLookupError:  # it does not lead a group yet
                os.kill(child, int(frame.payload))
        elif frame.kind is FrameKind.SIZE:
            columns, lines = json.loads(frame.payload)
            for terminal in self._terminals:
                _resize(terminal, columns, lines)
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGWINCH)

    def _pass_on(self, asked: Reader, ours: socket.socket) -> None:
        received = b""
        with suppress(ConnectionResetError):  # it ended without reading the whole answer
            received = ours.recv(CHUNK)
        if not received:
            self._selector.unregister(ours)
        for frame in asked.fed(received):
            self._connection.send(frame)

    def _print(self, descriptor: int) -> None:
        try:
            printed = os.read(descriptor, CHUNK)
        except OSError:  # the terminal has been closed
            printed = b""
        if not printed:
            self._selector.unregister(descriptor)
            del self._open[descriptor]
            return
        frame = Frame(self._open[descriptor], printed)
        if self._answers:
            self._answers.keep(frame)
        self._connection.send(frame)

    def _drain(self) -> None:
        """Relay the command's last output; processes it left running may keep its streams open."""
        while any(key.data in ("print", "question") for key in self._selector.get_map().values()):
            events = self._selector.select(0)
            found = [key for key, _ in events if key.data in ("print", "question")]
            if not found:
                return
            for key in found:
                if key.data == "print":
                    self._print(int(key.fd))
                else:
                    assert isinstance(key.fileobj, socket.socket)
                    self._pass_on(Reader(), key.fileobj)

    def _watch_input(self) -> None:
        """Wait until the command can read, if there is input."""
        if self._input is None:
            return
        map_ = self._selector.get_map()
        registered = self._input in map_ and map_[self._input].data == "input"
        if self._waiting and not registered and self._input not in map_:
            self._selector.register(self._input, selectors.EVENT_WRITE, "input")
        elif self._waiting and not registered:
            self._write_input()  # a terminal, which is already watched for output
        elif not self._waiting and registered:
            self._selector.unregister(self._input)
        if self._input_ends and not self._waiting and self._input not in self._open:
            if registered:
                self._selector.unregister(self._input)
            os.close(self._input)
            self._input = None

    def _write_input(self) -> None:
        assert self._input is not None
        try:
            del self._waiting[: os.write(self._input, memoryview(self._waiting)[:4096])]
        except BlockingIOError:
            pass
        except OSError:
            self._waiting.clear()


def _take_streams(streams: Mapping[int, int]) -> None:
    """Make `streams` those of this process in a new session, so that signals reach all its children."""
    import fcntl
    import termios

    os.setsid()
    if 0 in streams and os.isatty(streams[0]):
        fcntl.ioctl(streams[0], termios.TIOCSCTTY, 0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number in (0, 1, 2):
        os.dup2(streams.get(number, nothing), number)
    for end in {*streams.values(), nothing}:
        if end > 2:
            os.close(end)
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        stream = open(number, mode, 1 if os.isatty(number) else -1, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
    sys.stderr.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _terminal(columns: int, lines: int, *, raw: bool) -> tuple[int, int]:
    """A new pseudo-terminal; a `raw` one does not convert newlines."""
    import termios

    master, slave = os.openpty()
    _resize(master, columns, lines)
    if raw:
        modes: list[Any] = termios.tcgetattr(slave)
        modes[1] &= ~termios.OPOST
        modes[3] &= ~termios.ECHO
        termios.tcsetattr(slave, termios.TCSANOW, modes)
    return master, slave


def _resize(terminal: int, columns: int, lines: int) -> None:
    import fcntl
    import termios

    with suppress(OSError):
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


# Stored answers of commands that must not be executed twice: one folder each, kept while a client may ask again. The
# process that creates the folder executes the command, and touches the folder meanwhile. A client that asks again after
# its connection broke waits for the answer and relays it.

_BEAT_SECONDS = 2.0
_STALE_SECONDS = 20.0  # without an update: its machine is down, or it was killed
_KEPT_SECONDS = 86400.0
_WAIT_SECONDS = 0.2
_NAME = re.compile(r"[0-9a-f]{32}")


class Replayed(Exception):
    """The command was started earlier and has ended: `frames` contain its output and exit code."""

    def __init__(self, frames: list[Frame]) -> None:
        super().__init__()
        self.frames = frames


class LastingAnswer:
    """The answer of a command while it is being executed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._frames = bytearray()
        self._touched = time.monotonic()

    @classmethod
    def begun(cls, name: str) -> LastingAnswer:
        """Start the command called `name`, 32 hexadecimal digits.

        If it was started earlier, wait for its end; then raises Replayed, unless it has done nothing.
        """
        if not _NAME.fullmatch(name):
            raise UsageError(f"invalid request name: {name}", "run the command again")
        all_of_them = make_private(data_folder() / "remote-answers")
        with suppress(OSError):
            for old in all_of_them.iterdir():
                if time.time() - old.stat().st_mtime > _KEPT_SECONDS:
                    shutil.rmtree(old, ignore_errors=True)
        folder = all_of_them / name
        while True:
            try:
                folder.mkdir(mode=0o700)
            except FileExistsError:
                if frames := _awaited(folder):
                    raise Replayed(frames) from None
            else:
                return cls(folder)

    def beat(self) -> None:
        """Show that the command is still running."""
        if time.monotonic() - self._touched > _BEAT_SECONDS:
            self._touched = time.monotonic()
            with suppress(OSError):
                os.utime(self._folder)

    def keep(self, frame: Frame) -> None:
        self._frames += frame.packed()

    def finish(self, code: int) -> None:
        """The command has ended."""
        aside = self._folder / ".answer"
        aside.write_bytes(self._frames + Frame(FrameKind.EXIT, str(code).encode()).packed())
        aside.rename(self._folder / "answer")

    def forget(self) -> None:
        """Discard the answer: nothing was done."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _awaited(folder: Path) -> list[Frame]:
    """Wait for the answer; empty if the command disappeared without having done anything."""
    watch = Watch(folder, _STALE_SECONDS)
    while not watch.is_stale():
        with suppress(FileNotFoundError):
            return [*Reader().fed((folder / "answer").read_bytes())]
        if not exists(folder):
            return []
        time.sleep(_WAIT_SECONDS)
    return [Frame(FrameKind.EXIT, str(GONE).encode())]
