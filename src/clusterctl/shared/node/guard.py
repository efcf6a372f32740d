"""Notices that a node of the job is off, minutes before Slurm does. It runs on each node, beside all attempts.

    python -I -S .../clusterctl/shared/node/guard.py FOLDER JOB HOST

Each guard writes a number to its own file in FOLDER every second, and watches the file of the next node in `nodes`. A
node is lost if its file has stopped changing and two connections to it get no answer. Then its name is appended to
`lost`, where the batch script looks. If the lost one is HOST, where that script runs, the first guard that is left
ends the job: Slurm would let it run on without its script (docs/decisions/recovery-and-resume.md).

A node that answers is not lost, whatever has happened to its guard: connecting to a closed port of a machine that is on
is refused. Where a firewall drops such packets, the next node never answers while its file changes; then no guard calls
it lost, and Slurm notices. One that has answered before and stops, although its file still changes, is cut off from the
network but not from the disk. The guard that still reaches Slurm calls the other one lost: its own node may be the one.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:  # run as a script, which `-I` keeps from finding the package
    sys.path.insert(0, os.path.abspath(f"{__file__}/../../../.."))  # noqa: PTH100

from clusterctl.shared.record.fields import read_fields
from clusterctl.shared.record.files import append, read_beginning
from clusterctl.shared.record.layout import RunDir

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_EVERY_SECONDS = 1.0
SILENT_SECONDS = 3.0  # without a change in the file
START_SECONDS = 60.0  # until there is one
_LOOKS = 2  # that must agree
_TOUCH_SECONDS = 5.0  # between connections to a node whose file changes
_TOUCHES = 6  # without an answer
_ANSWER_SECONDS = 1.5
_PORT = 9  # discard: nobody listens there
_ASK_SECONDS = 60  # for a command of Slurm
_MOST_BYTES = 1 << 20
_JOB = re.compile("[0-9]+")


@dataclass
class Guard:
    """The guard of node `own` in `folder`, which has the files described above."""

    folder: Path
    own: str
    job: str
    host: str
    answers: Callable[[str], bool | None]
    clock: Callable[[], float] = time.monotonic
    run: Callable[[Sequence[str]], bool] = field(default=lambda words: _run(words))
    _number: int = 0
    _watched: str = ""
    _seen: str = ""
    _still: float = 0.0
    _looked: float = 0.0
    _asked: str = ""  # the node that was last connected to while it was on, and whether it answered
    _answered: bool | None = None
    _unanswered: int = 0
    _touched: float = 0.0
    _cut: int = 0

    def look(self) -> bool:
        """Called every second; whether this guard goes on."""
        self._number += 1
        _write(self.folder / self.own, f"{self._number:012}\n")
        nodes = _words(self.folder / "nodes")
        lost = _words(self.folder / "lost")
        if self.own in lost:
            return False
        left = [node for node in nodes if node not in lost]
        if self.host in lost and left[:1] == [self.own]:
            return not self._end_job()
        after = left[left.index(self.own) + 1 :] + left if self.own in left else []
        if after and after[0] != self.own:
            self._look_at(after[0])
        return True

    def _look_at(self, node: str) -> None:
        now, seen = self.clock(), "".join(_words(self.folder / node))
        if node != self._watched:
            self._watched, self._seen, self._looked = node, "", now
            self._still = self._unanswered = self._cut = 0
        if seen and seen != self._seen:
            if self._seen and self._asked != node:
                self._asked, self._answered, self._touched = node, bool(self.answers(node)), now
            self._seen, self._still, self._unanswered = seen, 0.0, 0
            self._touch(node, now)
        else:  # time in which this process was stopped, or waited for the file system, does not count
            self._still += min(now - self._looked, 3 * _EVERY_SECONDS)
        self._looked = now
        if self._still < (SILENT_SECONDS if self._seen else START_SECONDS) or self._answered is False:
            return
        if self.answers(node):
            self._still = self._unanswered = 0
            return
        self._unanswered += 1
        if self._unanswered >= _LOOKS:
            append(self.folder / "lost", f"{node}\n".encode())

    def _touch(self, node: str, now: float) -> None:
        """Look now and then whether a node that answered is cut off although it still writes its file."""
        if not self._answered or now - self._touched < _TOUCH_SECONDS:
            return
        self._touched = now
        self._cut = self._cut + 1 if self.answers(node) is False else 0
        if self._cut >= _TOUCHES and self.run(["scontrol", "ping"]):
            append(self.folder / "lost", f"{node}\n".encode())

    def _end_job(self) -> bool:
        """End the job, whose script is gone, so that the run goes on in the queue or in its successor.

        Slurm completes the job once it has noticed the loss itself, and a successor waits for that: its dependency is
        removed. What the lost node still runs leaves as soon as it sees the next attempt. Returns whether Slurm agreed.
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        record = read_fields(RunDir(self.folder.parents[2]).successor_json)
        jobs = record.text("jobs").split() or [record.text("of"), record.text("job_id")]
        successor = dict(itertools.pairwise(jobs)).get(self.job, "")
        if not _JOB.fullmatch(successor):
            return self.run(["scontrol", "requeue", self.job]) or self.run(["scancel", self.job])
        ended = self.run(["scancel", self.job])
        return ended and self.run(["scontrol", "update", f"JobId={successor}", "Dependency="])


def answers(node: str) -> bool | None:
    """Whether the machine is on: it accepts or refuses a connection. None if no name is resolved at the moment."""
    try:
        socket.create_connection((node, _PORT), _ANSWER_SECONDS).close()
    except socket.gaierror:
        return None
    except OSError as error:
        return error.errno == errno.ECONNREFUSED
    return True


def _words(path: Path) -> list[str]:
    """The words of a file; none if it cannot be read at the moment."""
    with suppress(OSError):
        return read_beginning(path, _MOST_BYTES).decode(errors="replace").split()
    return []


def _write(path: Path, text: str) -> None:
    """Overwrite a file by text of the same length."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, text.encode(), 0)
    finally:
        os.close(descriptor)


def _run(words: Sequence[str]) -> bool:
    with suppress(OSError, subprocess.TimeoutExpired):
        devnull = subprocess.DEVNULL
        done = subprocess.run(words, stdin=devnull, stdout=devnull, timeout=_ASK_SECONDS, check=False)
        return done.returncode == 0
    return False


def main(words: Sequence[str]) -> None:
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # the warning is for the ranks
    folder, job, host = words
    guard = Guard(Path(folder), os.environ["SLURMD_NODENAME"], job, host, answers)
    goes_on = True
    while goes_on:
        with suppress(OSError):  # the file system may be unavailable for a while
            goes_on = guard.look()
        time.sleep(_EVERY_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1:])
