"""Slurm's answers, shared by all processes of a user on this machine: the controller is asked once for everybody.

One file a question in a private folder on node-local disk. Who finds the answer too old takes a lease and asks; the
others wait for it. After an error nobody asks for a while, twice as long after each further one; the last good answer
is handed out meanwhile, with its time and what is wrong.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.errors import SlurmError
from clusterctl.runs.files import make_private, write_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LONGEST_PAUSE_SECONDS = 60.0  # between two questions to a Slurm that does not answer
LEASE_SECONDS = 20.0  # a question takes 10 s at most: who holds a lease for longer is stuck
_RARE = ".rare"  # answers about what changes rarely
_LOOK_SECONDS = 0.02


@dataclass(frozen=True)
class Told:
    """What Slurm printed, and when it was asked. With a `problem` it was asked again since, in vain."""

    text: str
    taken_at: float
    problem: SlurmError | None = None


@dataclass(frozen=True)
class _Kept:
    """The content of a file: the last good answer, if any, and the failures since."""

    taken_at: float | None = None
    failures: int = 0
    failed_at: float = 0.0
    message: str = ""
    hint: str = ""
    text: str = ""

    def told(self) -> Told:
        """Raises SlurmError where there never was a good answer."""
        problem = SlurmError(self.message, self.hint) if self.failures else None
        if self.taken_at is None:
            raise problem or SlurmError("Slurm was not asked yet")
        return Told(self.text, self.taken_at, problem)


@dataclass(frozen=True)
class SharedAnswers:
    """The answers of one controller. `floor` is the number of seconds between two questions, whoever asks."""

    folder: Path
    floor: float
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False)

    def told(self, question: Sequence[str], ask: Callable[[], str], max_age: float | None = None) -> Told:
        """The answer to `question`, at most `max_age` (the floor, if that is longer) seconds old, or what is known.

        With `max_age` it is about what changes rarely: `forget` leaves it.
        `ask` is called by one process of all, and raises SlurmError. Raises the last SlurmError where there never was
        an answer.
        """
        path = self.folder / hashlib.sha256(json.dumps(list(question)).encode()).hexdigest()[:16]
        if max_age is not None:
            path = path.with_suffix(_RARE)
        age = max(self.floor, max_age or 0.0)
        patience = time.monotonic() + LEASE_SECONDS
        while self._is_due(kept := _read(path), age):
            lease = path.with_suffix(".lease")
            if _take(lease):
                try:
                    kept = _read(path)  # another may have asked since
                    return (self._asked(path, kept, ask) if self._is_due(kept, age) else kept).told()
                finally:
                    lease.unlink(missing_ok=True)
            if time.monotonic() > patience and kept.taken_at is not None:
                break
            self.sleep(_LOOK_SECONDS)
        return kept.told()

    def forget(self) -> None:
        """Let the next question be asked: for who has just changed what the answers are about."""
        for path in self.folder.glob("*"):
            if not path.suffix:
                path.unlink(missing_ok=True)

    def _is_due(self, kept: _Kept, age: float) -> bool:
        now = self.clock()
        if kept.failures:
            pause = min(max(LONGEST_PAUSE_SECONDS, self.floor), self.floor * 2 ** min(kept.failures - 1, 20))
            return not 0 <= now - kept.failed_at < pause
        return kept.taken_at is None or not 0 <= now - kept.taken_at < age

    def _asked(self, path: Path, kept: _Kept, ask: Callable[[], str]) -> _Kept:
        began = self.clock()  # before the question: what happened since may be missing
        try:
            fresh = _Kept(taken_at=began, text=ask())
        except SlurmError as error:
            failures = kept.failures + 1
            fresh = replace(kept, failures=failures, failed_at=self.clock(), message=error.message, hint=error.hint)
        header = {name: value for name, value in asdict(fresh).items() if name != "text"}
        with suppress(OSError):  # a full disk costs the others a question, not us the answer
            write_text(path, json.dumps(header) + "\n" + fresh.text)
        return fresh


def shared_folder(controller: Sequence[str | None], state: Callable[[], Path]) -> Path:
    """The folder for the answers of `controller`: in XDG_RUNTIME_DIR where that is ours, else below the state folder.

    The state folder may be on a home file system that several login nodes share; the host's name parts them.
    """
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or "/nonexistent")
    root = runtime / "clusterctl" if _is_private(runtime) else state()
    name = hashlib.sha256(json.dumps([socket.gethostname(), *controller]).encode()).hexdigest()[:16]
    return make_private(make_private(root) / f"slurm-{name}")


def _is_private(folder: Path) -> bool:
    try:
        status = folder.stat()
    except OSError:
        return False
    return status.st_uid == os.geteuid() and status.st_mode & 0o077 == 0


def _read(path: Path) -> _Kept:
    try:
        header, _, text = path.read_text(encoding="utf-8", errors="surrogateescape").partition("\n")
        return _Kept(**json.loads(header), text=text)
    except (OSError, ValueError, TypeError):  # none yet, or another version's
        return _Kept()


def _take(lease: Path) -> bool:
    """Whether this process holds the file `lease` from now on; it names its holder, so a dead one's can be removed."""
    aside = lease.with_name(f"{lease.name}.{os.getpid()}.{time.monotonic_ns()}")
    aside.write_text(str(os.getpid()))
    try:
        os.link(aside, lease)  # with its content, or not at all
    except FileExistsError:
        if _is_abandoned(lease):
            with suppress(FileNotFoundError):
                lease.replace(aside)  # of several that try, one succeeds
        return False
    finally:
        aside.unlink(missing_ok=True)
    return True


def _is_abandoned(path: Path) -> bool:
    try:
        holder, age = path.read_text(), time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return False
    return not 0 <= age < LEASE_SECONDS or not Path(f"/proc/{holder}").exists()
