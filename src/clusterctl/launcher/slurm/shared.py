"""Slurm's answers, cached for all processes of a user on this machine, so that the controller is asked only once.

One file per question in a private folder on a local disk. A process that finds the answer too old takes a lease and
asks; the others wait for it. After an error nobody asks for a while, with exponential backoff; meanwhile the last good
answer is returned with its time and the problem.
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

from clusterctl.shared.errors import SlurmError
from clusterctl.shared.record.files import write_text
from clusterctl.shared.record.ownership import make_private

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LONGEST_PAUSE_SECONDS = 60.0  # between two questions while Slurm does not answer
LEASE_SECONDS = 20.0  # a question takes at most 10 s: a process that holds a lease for longer is stuck
_RARE = ".rare"  # suffix for answers that rarely change
_LOOK_SECONDS = 0.02


@dataclass(frozen=True)
class CachedAnswer:
    """Slurm's output, and when it was requested. `problem` is the error of a later, failed request, if any."""

    text: str
    taken_at: float
    problem: SlurmError | None = None


@dataclass(frozen=True)
class _Kept:
    """The content of a cache file: the last good answer, if any, and the failures since."""

    taken_at: float | None = None
    failures: int = 0
    failed_at: float = 0.0
    message: str = ""
    hint: str = ""
    text: str = ""

    def answer(self) -> CachedAnswer:
        """The answer. Raises SlurmError if there has never been a good one."""
        problem = SlurmError(self.message, self.hint) if self.failures else None
        if self.taken_at is None:
            raise problem or SlurmError("no answer from Slurm yet")
        return CachedAnswer(self.text, self.taken_at, problem)


@dataclass(frozen=True)
class SharedAnswers:
    """The answers of one controller. `floor` is the minimum number of seconds between two equal questions."""

    folder: Path
    floor: float
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False)

    def answer(self, question: Sequence[str], ask: Callable[[], str], max_age: float | None = None) -> CachedAnswer:
        """The answer to `question`, at most `max_age` seconds old (or `floor` if longer), else the last good one.

        `max_age` marks an answer that rarely changes, which `forget` does not discard. `ask` is called in one process
        at a time and may raise SlurmError. Raises the last SlurmError if there has never been an answer.
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
                    kept = _read(path)  # another process may have asked meanwhile
                    return (self._asked(path, kept, ask) if self._is_due(kept, age) else kept).answer()
                finally:
                    lease.unlink(missing_ok=True)
            if time.monotonic() > patience and kept.taken_at is not None:
                break
            self.sleep(_LOOK_SECONDS)
        return kept.answer()

    def forget(self) -> None:
        """Discard the cached answers, after a change that affects them."""
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
        began = self.clock()  # before the question: later changes may be missing
        try:
            fresh = _Kept(taken_at=began, text=ask())
        except SlurmError as error:
            failures = kept.failures + 1
            fresh = replace(kept, failures=failures, failed_at=self.clock(), message=error.message, hint=error.hint)
        header = {name: value for name, value in asdict(fresh).items() if name != "text"}
        with suppress(OSError):  # with a full disk the others have to ask too
            write_text(path, json.dumps(header) + "\n" + fresh.text)
        return fresh


def shared_folder(controller: Sequence[str | None], state: Callable[[], Path]) -> Path:
    """The folder for the answers of `controller`: in XDG_RUNTIME_DIR if we own it, else below the state folder.

    The state folder may be on a home file system shared by several login nodes, hence the host name.
    """
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or "/nonexistent")
    is_private = False
    with suppress(OSError):
        status = runtime.stat()
        is_private = status.st_uid == os.geteuid() and status.st_mode & 0o077 == 0
    root = runtime / "clusterctl" if is_private else state()
    name = hashlib.sha256(json.dumps([socket.gethostname(), *controller]).encode()).hexdigest()[:16]
    return make_private(make_private(root) / f"slurm-{name}")


def _read(path: Path) -> _Kept:
    try:
        header, _, text = path.read_text(encoding="utf-8", errors="surrogateescape").partition("\n")
        return _Kept(**json.loads(header), text=text)
    except (OSError, ValueError, TypeError):  # missing, or of another version
        return _Kept()


def _take(lease: Path) -> bool:
    """Try to take the file `lease`. It names its holder, so that the lease of a dead process can be removed."""
    aside = lease.with_name(f"{lease.name}.{os.getpid()}.{time.monotonic_ns()}")
    aside.write_text(str(os.getpid()))
    try:
        os.link(aside, lease)  # atomic, including the content
    except FileExistsError:
        with suppress(FileNotFoundError):
            holder, age = lease.read_text(), time.time() - lease.stat().st_mtime
            if not 0 <= age < LEASE_SECONDS or not Path(f"/proc/{holder}").exists():
                lease.replace(aside)  # if several processes try, one succeeds
        return False
    finally:
        aside.unlink(missing_ok=True)
    return True
