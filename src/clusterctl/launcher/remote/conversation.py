"""A request to a host, over as many connections as necessary."""

from __future__ import annotations

import base64
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.launcher.remote import ssh
from clusterctl.launcher.remote.answers import GONE
from clusterctl.launcher.remote.connection import NotStarted, Repeat, Session, SessionEnded, ShownSoFar
from clusterctl.launcher.remote.package import package
from clusterctl.shared.errors import HostError

if TYPE_CHECKING:
    from clusterctl.launcher.remote.connection import Callbacks
    from clusterctl.launcher.remote.frames import RemoteRequest

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
