"""A process and its descendants, from /proc: their resource use, and what they wait for."""

from __future__ import annotations

import os
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_TICKS = os.sysconf("SC_CLK_TCK")
_GONE = (OSError, ValueError, IndexError)  # the process has just ended
_WAITS_FOR_DISK = "D"
_STATES = {"R": "running", "S": "sleeping", "D": "waiting for a disk", "T": "stopped", "t": "traced", "Z": "a zombie"}
_LONGEST_PROGRAM = 100
_MOST_DESCRIBED = 32


class Stat(NamedTuple):
    """One line of /proc/PID/stat. `cpu_seconds` and the bytes of `used` include children that have ended."""

    state: str
    parent: int
    cpu_seconds: float


class Used(NamedTuple):
    """Totals of a tree since its start."""

    cpu_seconds: float
    disk_bytes: int  # read from and written to storage, without the page cache


@dataclass
class ProcessTree:
    """The process `root` and its descendants, including those whose parent has ended.

    Processes outside the tree are read only once: a node may have thousands.
    """

    root: int
    proc: Path = Path("/proc")

    def __post_init__(self) -> None:
        self._members: set[int] = {self.root}
        self._others: set[int] = set()

    def members(self) -> dict[int, Stat]:
        """Process ID -> status of the live members."""
        now = {int(name) for name in os.listdir(self.proc) if name.isdigit()}  # noqa: PTH208 - only names are needed
        self._others &= now
        stats = {pid: stat for pid in now - self._others if (stat := self._stat(self.proc / str(pid)))}
        found = self._members = descendants({pid: stat.parent for pid, stat in stats.items()}, self._members)
        self._others |= stats.keys() - found
        return {pid: stats[pid] for pid in sorted(found)}

    def used(self) -> Used:
        """The total use of the tree so far."""
        members = self.members()
        disk = 0
        for pid in members:
            with suppress(*_GONE):  # or not readable
                lines = (self.proc / str(pid) / "io").read_text().splitlines()
                numbers = dict(line.split(": ") for line in lines)
                disk += int(numbers["read_bytes"]) + int(numbers["write_bytes"])
        return Used(sum(stat.cpu_seconds for stat in members.values()), disk)

    def waits_for_disk(self) -> bool:
        """Whether a thread is in uninterruptible sleep, for example while reading from a slow file system."""
        return any(
            stat.state == _WAITS_FOR_DISK for pid in self.members() for stat in self._threads(pid).values() if stat
        )

    def describe(self) -> Iterator[str]:
        """For each process its program, and where its main thread and its other threads (grouped) sleep in the kernel.

        Reading the kernel function needs no ptrace permission; the full kernel stack needs root. Arguments are left out
        since they may contain secrets.
        """
        members = self.members()
        for pid, stat in list(members.items())[:_MOST_DESCRIBED]:
            folder = self.proc / str(pid)
            program = ""
            with suppress(OSError):  # `python train.py`: the first word, and the next one unless it is an option
                first, *more = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
                script = more[:1] if more and not more[0].startswith("-") else []
                program = " ".join([first, *script])[:_LONGEST_PROGRAM]
            yield f"process {pid}: {program}"
            yield f"  main thread {_STATES.get(stat.state, stat.state)}{self._sleeps_in(folder)}"
            with suppress(*_GONE):
                yield from (f"    {line}" for line in (folder / "stack").read_text().splitlines())
            threads = Counter(
                f"{_STATES.get(thread.state, thread.state)}{self._sleeps_in(folder / 'task' / str(tid))}"
                for tid, thread in self._threads(pid).items()
                if tid != pid and thread
            )
            yield from (f"  {count} more {what}" for what, count in threads.most_common())
        if len(members) > _MOST_DESCRIBED:
            yield f"and {len(members) - _MOST_DESCRIBED} more processes"

    def _threads(self, pid: int) -> Mapping[int, Stat | None]:
        folder = self.proc / str(pid) / "task"
        with suppress(*_GONE):
            return {int(name): self._stat(folder / name) for name in os.listdir(folder)}  # noqa: PTH208
        return {}

    def _stat(self, folder: Path) -> Stat | None:
        with suppress(*_GONE):
            state, parent, *fields = (folder / "stat").read_text().rpartition(")")[2].split()
            return Stat(state, int(parent), sum(map(int, fields[9:13])) / _TICKS)
        return None

    def _sleeps_in(self, folder: Path) -> str:
        with suppress(OSError):
            name = (folder / "wchan").read_text().partition(".")[0]
            return f" in {name}" if name.strip("0") else ""
        return ""


def descendants(parents: Mapping[int, int], known: set[int]) -> set[int]:
    """Those of `known` that are still alive, and all their descendants; `parents`: process ID -> parent's."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found, left = set[int](), [pid for pid in known if pid in parents]
    while left:
        pid = left.pop()
        if pid not in found:
            found.add(pid)
            left += children.get(pid, ())
    return found


def has_signal(pid: int, number: int, *masks: str) -> bool:
    """Whether a signal is in one of a process's masks; SigCgt has the handled signals (proc(5), status)."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    found = re.findall(r"^(Sig\w+):\s*([0-9a-f]+)$", status, re.MULTILINE)
    return any(int(mask, 16) >> (number - 1) & 1 for name, mask in found if name in masks)
