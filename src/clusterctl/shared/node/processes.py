"""This machine from /proc: its processes, what a tree of them uses and waits for, and its available memory.

Each of the emulator's commands imports it, hence it imports little.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_PROC = Path("/proc")
_PR_SET_PDEATHSIG = 1  # prctl(2)
_TICKS = os.sysconf("SC_CLK_TCK")
_GONE = (OSError, ValueError, IndexError)  # the process has just ended
_WAITS_FOR_DISK = "D"
_STATES = {"R": "running", "S": "sleeping", "D": "waiting for a disk", "T": "stopped", "t": "traced", "Z": "a zombie"}
_LONGEST_PROGRAM = 100
_MOST_DESCRIBED = 32


class Stat(NamedTuple):
    """One line of /proc/PID/stat (proc(5)). `cpu_seconds` includes children that have ended.

    `started` is in ticks since boot: with the process ID, it identifies a process.
    """

    name: str
    state: str
    parent: int
    cpu_seconds: float
    started: int

    @property
    def has_ended(self) -> bool:
        return self.state in "ZX"


def process_ids(proc: Path = _PROC) -> set[int]:
    return {int(name) for name in os.listdir(proc) if name.isdigit()}  # noqa: PTH208 - only names are needed


def stat_in(folder: Path) -> Stat | None:
    """The process or thread whose folder in /proc this is; None if it has ended and been waited for."""
    with suppress(*_GONE):
        name, _, rest = (folder / "stat").read_text(errors="replace").partition("(")[2].rpartition(")")
        state, parent, *fields = rest.split()
        return Stat(name, state, int(parent), sum(map(int, fields[9:13])) / _TICKS, int(fields[17]))
    return None


def stat_of(pid: int) -> Stat | None:
    return stat_in(_PROC / str(pid))


def stats() -> dict[int, Stat]:
    """Process ID -> status of all processes, including those that have ended but have not been waited for."""
    return {pid: stat for pid in process_ids() if (stat := stat_of(pid))}


def command_of(pid: int, proc: Path = _PROC) -> list[bytes]:
    """The words of a process's command line; none if it has ended, or for a thread of the kernel."""
    with suppress(OSError):
        if block := (proc / str(pid) / "cmdline").read_bytes():
            return block.removesuffix(b"\0").split(b"\0")
    return []


def available_memory() -> int | None:
    """The bytes that this machine can give to programs without swapping; None if the kernel does not report them."""
    with suppress(OSError):
        found = re.search(r"^MemAvailable:\s+(\d+) kB", (_PROC / "meminfo").read_text(), re.MULTILINE)
        return int(found[1]) << 10 if found else None
    return None


def carriers(*marks: str) -> list[tuple[int, dict[str, str]]]:
    """The processes started with one of `marks` ("NAME=value") in their environment, each with its variables.

    Another user's cannot be read.
    """
    wanted = {os.fsencode(mark) for mark in marks}
    found = []
    for pid in sorted(process_ids()):
        with suppress(OSError):
            pairs = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
            if not wanted.isdisjoint(pairs):
                found.append((pid, dict(os.fsdecode(pair).partition("=")[::2] for pair in reversed(pairs))))
    return found


def tied_to_this() -> Callable[[], None]:
    """What a process that this one forks calls first, so that the kernel kills it when this one has ended."""
    import ctypes  # late: the emulator's commands do not need it

    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()  # looked up before the fork

    def die_with_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, SIGKILL)
        if os.getppid() != parent:  # the parent died before the line above
            os._exit(128 + SIGKILL)

    return die_with_parent


def descendants(
    parents: Mapping[int, int], known: set[int], apart_from: Callable[[int], bool] = lambda _: False
) -> set[int]:
    """Those of `known` that are still alive, and all their descendants; `parents`: process ID -> parent's.

    The trees of descendants for which `apart_from` holds are left out.
    """
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found, left = set[int](), [pid for pid in known if pid in parents]
    while left:
        pid = left.pop()
        if pid not in found:
            found.add(pid)
            left += [child for child in children.get(pid, ()) if not apart_from(child)]
    return found


class Used(NamedTuple):
    """Totals of a tree since its start."""

    cpu_seconds: float
    disk_bytes: int  # read from and written to storage, without the page cache


class ProcessTree:
    """The process `root` and its descendants, including those whose parent has ended.

    Processes outside the tree are read only once: a node may have thousands.
    """

    def __init__(self, root: int, proc: Path = _PROC) -> None:
        self.proc = proc
        self._members: set[int] = {root}
        self._others: set[int] = set()

    def members(self) -> dict[int, Stat]:
        """Process ID -> status of the live members."""
        now = process_ids(self.proc)
        self._others &= now
        stats = {pid: stat for pid in now - self._others if (stat := stat_in(self.proc / str(pid)))}
        found = self._members = descendants({pid: stat.parent for pid, stat in stats.items()}, self._members)
        self._others |= stats.keys() - found
        return {pid: stats[pid] for pid in sorted(found)}

    def listeners(self, number: int) -> set[tuple[int, int]]:
        """The members that a signal is meant for: those that handle it, or block it for now. Each with its start.

        Left out are launchers that handle it themselves, if a program below them does, too (`uv run` would pass it on),
        and copies of a program that handles it (a forked data loader's worker inherits the handler).
        """
        members = self.members()
        parents = {pid: stat.parent for pid, stat in members.items()}
        taking = {pid for pid in members if has_signal(pid, number, "SigCgt", "SigBlk")}
        programs = {
            pid
            for pid in taking
            if parents[pid] not in taking or command_of(pid, self.proc) != command_of(parents[pid], self.proc)
        }
        above: set[int] = set()
        for pid in programs:
            over = pid
            while (over := parents.get(over, 0)) > 0:
                above.add(over)
        return {(pid, members[pid].started) for pid in programs - above}

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
            return {int(name): stat_in(folder / name) for name in os.listdir(folder)}  # noqa: PTH208
        return {}

    def _sleeps_in(self, folder: Path) -> str:
        with suppress(OSError):
            name = (folder / "wchan").read_text().partition(".")[0]
            return f" in {name}" if name.strip("0") else ""
        return ""


def has_signal(pid: int, number: int, *masks: str) -> bool:
    """Whether a signal is in one of a process's masks; SigCgt has the handled signals (proc(5), status)."""
    try:
        status = (_PROC / str(pid) / "status").read_text(errors="replace")
    except OSError:
        return False
    found = re.findall(r"^(Sig\w+):\s*([0-9a-f]+)$", status, re.MULTILINE)
    return any(int(mask, 16) >> (number - 1) & 1 for name, mask in found if name in masks)
