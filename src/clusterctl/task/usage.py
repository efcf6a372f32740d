"""What a run's tasks use on their node: processors, memory, disk and network, from /proc and the job's cgroup.

Processors and memory come from the cgroup that Slurm created for the job. Without one, and for the disk, the run's
processes are added up: those whose environment names its folder, its attempt and this node. The network counters are
those of the whole node.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_MARKS = ("CLUSTERCTL_RUN_DIR", "CLUSTERCTL_ATTEMPT", "SLURM_NODEID")
_NO_LIMIT = 2**60  # cgroup v1 has a number near 2^63 for no limit
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_GONE = (OSError, ValueError, IndexError)  # the process has just ended, or this kernel lacks the counter


@dataclass(frozen=True)
class Usage:
    """Totals since an arbitrary start, but current memory. In bytes, and in seconds of one processor."""

    cpu_seconds: float
    memory: int
    memory_limit: int | None
    disk_read: int
    disk_write: int
    net_in: int
    net_out: int


@dataclass
class Counters:
    """One process: its start time, whether it belongs to the run, and its totals."""

    started: int
    ours: bool
    cpu: int = 0  # ticks
    read: int = 0
    written: int = 0


@dataclass
class NodeUsage:
    """Reads what the run in `environment` uses on this node. `root` is `/`, or a partial copy in tests."""

    environment: Mapping[str, str]
    root: Path = Path("/")
    _seen: dict[int, Counters] = field(default_factory=dict, init=False)
    _totals: list[int] = field(default_factory=lambda: [0, 0, 0], init=False)  # ticks, bytes read, bytes written

    def __post_init__(self) -> None:
        self._marks = [f"{name}={self.environment[name]}".encode() for name in _MARKS if name in self.environment]
        self._processors = self._cgroup("cpuacct", "cpu.stat")
        self._memory = self._cgroup("memory", "memory.current")

    def read(self) -> Usage:
        """The current usage."""
        memory = self._add_up_processes()
        ticks, read, written = self._totals
        cpu_seconds = _cpu_seconds(self._processors) if self._processors else ticks / _TICKS
        memory = _memory_in(self._memory) if self._memory else memory
        return Usage(cpu_seconds, memory, self._memory_limit(), read, written, *self._network())

    @property
    def cpus(self) -> int:
        """How many processors the job was given on this node."""
        given = self.environment.get("SLURM_CPUS_ON_NODE", "")
        return int(given) if given.isascii() and given.isdigit() else len(os.sched_getaffinity(0))

    # --- processes

    def _add_up_processes(self) -> int:
        """Update the totals; returns the memory of the run's processes, with shared pages counted once."""
        alone = shared = 0
        seen: dict[int, Counters] = {}
        for entry in os.scandir(self.root / "proc"):
            if not entry.name.isdigit():
                continue
            with suppress(*_GONE):
                if entry.stat().st_uid != os.geteuid():
                    continue
                counters = seen[int(entry.name)] = self._look_at(Path(entry.path), self._seen.get(int(entry.name)))
                if counters.ours:
                    pages, of_files = map(int, (Path(entry.path) / "statm").read_text().split()[1:3])
                    alone += pages - of_files
                    shared = max(shared, of_files)
        self._seen = seen
        return (alone + shared) * _PAGE

    def _look_at(self, process: Path, before: Counters | None) -> Counters:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        started = int(fields[19])
        if before is None or before.started != started:
            environment = (process / "environ").read_bytes().split(b"\0")
            before = Counters(started, bool(self._marks) and all(mark in environment for mark in self._marks))
        if not before.ours:
            return before
        now = Counters(started, True, int(fields[11]) + int(fields[12]), before.read, before.written)
        with suppress(*_GONE):  # may be hidden from us
            numbers = dict(line.split(": ") for line in (process / "io").read_text().splitlines())
            now.read, now.written = int(numbers["read_bytes"]), int(numbers["write_bytes"])
        for place, added in enumerate((now.cpu - before.cpu, now.read - before.read, now.written - before.written)):
            self._totals[place] += added
        return now

    # --- cgroups

    def _cgroup(self, controller: str, proof: str) -> Path | None:
        """The folder of the job's cgroup (version 1 or 2), if Slurm created one and it is visible from here."""
        with suppress(OSError):
            for line in (self.root / "proc/self/cgroup").read_text().splitlines():
                _, controllers, path = line.split(":", 2)
                job = re.match(r".*?/job_[0-9]+(?=/|$)", path)
                mounted = self.root / "sys/fs/cgroup"
                if job and controller in controllers.split(","):
                    folders = (mounted / name / job[0][1:] for name in (controllers, controller))
                    return next(filter(Path.is_dir, folders), None)
                if job and not controllers and (mounted / job[0][1:] / proof).exists():
                    return mounted / job[0][1:]
        return None

    def _memory_limit(self) -> int | None:
        for name in ("memory.limit_in_bytes", "memory.max") if self._memory else ():
            with suppress(OSError, ValueError):  # "max"
                limit = int((self._memory / name).read_text())  # type: ignore[operator]
                return limit if limit < _NO_LIMIT else None
        megabytes = self.environment.get("SLURM_MEM_PER_NODE", "")
        return int(megabytes) * 2**20 if megabytes.isascii() and megabytes.isdigit() and int(megabytes) else None

    # --- network

    def _network(self) -> tuple[int, int]:
        """Bytes received and sent by the node's adapters, including InfiniBand, which /proc/net/dev does not count."""
        received = sent = 0
        with suppress(OSError):
            lines = [line.partition(":") for line in (self.root / "proc/net/dev").read_text().splitlines()]
            names = {name.strip(): numbers.split() for name, colon, numbers in lines if colon and name.strip() != "lo"}
            hardware = {name for name in names if (self.root / "sys/class/net" / name / "device").exists()}
            for name in hardware or names:  # a bridge or bond counts its members' traffic again
                received, sent = received + int(names[name][0]), sent + int(names[name][8])
        for port in (self.root / "sys/class/infiniband").glob("*/ports/*/counters"):
            with suppress(*_GONE):
                received += 4 * int((port / "port_rcv_data").read_text())  # counted in words of four bytes
                sent += 4 * int((port / "port_xmit_data").read_text())
        return received, sent


def _cpu_seconds(cgroup: Path) -> float:
    usage = cgroup / "cpuacct.usage"
    return int(usage.read_text()) / 1e9 if usage.exists() else _named(cgroup / "cpu.stat", "usage_usec") / 1e6


def _memory_in(cgroup: Path) -> int:
    """The job's memory without cached files, which the kernel would reclaim first."""
    first = cgroup / "memory.usage_in_bytes"
    if first.exists():
        return int(first.read_text()) - _named(cgroup / "memory.stat", "total_inactive_file")
    return int((cgroup / "memory.current").read_text()) - _named(cgroup / "memory.stat", "inactive_file")


def _named(path: Path, name: str) -> int:
    """The number after `name` in a file of names and numbers; 0 if it is missing."""
    lines = (line.partition(" ") for line in path.read_text().splitlines())
    return next((int(value) for key, _, value in lines if key == name), 0)
