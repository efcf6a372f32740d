"""A login node in the hands of an attacker: it answers a command with any bytes, and keeps what it receives."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import tarfile
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

from clusterctl.launcher.remote import conversation, ssh
from clusterctl.launcher.remote.frames import Frame, FrameKind, Reader

_IN_COMMAND_LINE = re.compile(r'start" ([A-Za-z0-9+/=]+)')


class HostileNode:
    """Takes the place of ssh. `play` is what it does once a command has sent its request."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.play: Callable[[HostileNode], None] = lambda _: None
        self.lines: list[str] = []  # ssh's command lines, which every user of both machines can read
        self.requests: list[dict[str, Any]] = []
        self.received = b""  # everything after the requests
        self.ports: list[int] = []
        self._thread: threading.Thread | None = None
        monkeypatch.setattr(ssh, "session", self._session)
        monkeypatch.setattr(ssh, "connect", lambda *_, **__: True)
        for name in ("bring_port", "leave_port"):
            monkeypatch.setattr(
                f"clusterctl.launcher.api.remote.request.{name}", lambda _, __, there: self.ports.append(there)
            )
        made = SimpleNamespace(name="package", path=Path(__file__))
        monkeypatch.setattr(conversation, "package", lambda: made)

    def send(self, data: bytes) -> None:
        with suppress(OSError):
            self._output.write(data)
            self._output.flush()

    def frame(self, kind: FrameKind, payload: bytes = b"") -> None:
        self.send(Frame(kind, payload).packed())

    def ask(self, question: object) -> bytes:
        """The answer to a question; empty as well if the connection was closed."""
        self.frame(FrameKind.QUESTION, question if isinstance(question, bytes) else json.dumps(question).encode())
        answer = b""
        while frame := self._next():
            if frame.kind is FrameKind.DATA:
                if not frame.payload:
                    return answer
                answer += frame.payload
        return answer

    def settle(self) -> None:
        """Wait until it has noticed the end of the last session."""
        if self._thread:
            self._thread.join(20)
            assert not self._thread.is_alive()

    def end(self, code: int = 0) -> None:
        self.frame(FrameKind.EXIT, str(code).encode())

    def _next(self) -> Frame | None:
        while not self._frames:
            data = os.read(self._input.fileno(), 2**16)
            if not data:
                return None
            found = [*self._reader.fed(data)]
            if not self.requests or self._waits:
                self._waits = False
                self.requests.append(json.loads(found.pop(0).payload))
            self.received += b"".join(frame.payload for frame in found)
            self._frames += found
        return self._frames.pop(0)

    def _session(self, host: str, command: str) -> _Process:
        self.settle()
        self.lines.append(command)
        process = _Process()
        self._input, self._output = process.there
        self._reader, self._frames, self._waits = Reader(), list[Frame](), False
        self._thread = threading.Thread(target=self._serve, args=(command,), daemon=True)
        self._thread.start()
        return process

    def _serve(self, command: str) -> None:
        with suppress(OSError), self._input, self._output:
            if not command.startswith("exec sh -c 'exec sh "):
                return  # it installs clusterctl
            if found := _IN_COMMAND_LINE.search(command):
                self.requests.append(json.loads(base64.b64decode(found[1])))
            else:
                self._waits = True
                while self._waits:
                    data = os.read(self._input.fileno(), 2**20)
                    if not data:
                        return
                    for frame in self._reader.fed(data):
                        if self._waits:
                            self._waits = False
                            self.requests.append(json.loads(frame.payload))
                        else:
                            self.received += frame.payload
                            self._frames.append(frame)
            with suppress(OSError):
                self.play(self)

    @property
    def mark(self) -> bytes:
        return str(self.requests[-1]["mark"]).encode()


class _Process:
    """ssh, as far as a session uses it."""

    def __init__(self) -> None:
        ends = [os.pipe() for _ in range(3)]
        self.stdin: IO[bytes] = os.fdopen(ends[0][1], "wb", 0)
        self.stdout: IO[bytes] = os.fdopen(ends[1][0], "rb", 0)
        self.stderr: IO[bytes] = os.fdopen(ends[2][0], "rb", 0)
        os.close(ends[2][1])
        self.there = os.fdopen(ends[0][0], "rb", 0), os.fdopen(ends[1][1], "wb", 0)
        self.returncode = 0

    def wait(self, timeout: float | None = None) -> int:
        return 0

    def kill(self) -> None:
        """Its streams are closed next, which ends the other side."""

    def communicate(self, data: bytes) -> tuple[bytes, bytes]:
        for stream in (self.stdin, self.stdout, self.stderr):
            stream.close()
        return b"", b""


def archive(members: Iterable[tuple[str, bytes, dict[str, Any]]]) -> bytes:
    """A .tar.gz of files: name, content, and attributes of its TarInfo."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz", format=tarfile.PAX_FORMAT) as file:
        for name, content, others in members:
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o644
            for key, value in others.items():
                setattr(info, key, value)
            file.addfile(info, io.BytesIO(content))
    return made.getvalue()
