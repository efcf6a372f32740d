"""What a run's tasks use on their node: processors, memory, disk and network, from /proc and the job's cgroup.

`MemoryNeed` is the most memory that a run has needed on a node: what the kernel could not have taken back. With
less than that, the run would have been killed. Cached files do not count, since the kernel drops them first; a shared
memory segment, a tmpfs file and the kernel's own tables do. `MemoryNeed.look` is cheap, so that it can be called twice
a second: a spike between two samples of the telemetry is what a job dies of.

In the job's cgroup, the kernel counts the peak itself, but with cached files, so `look` subtracts them when the peak
has risen. Without a cgroup, the need is the sum of the processes' proportional sets (what several processes share
counts once), and a process's own peak since the last look is added. Reading a proportional set makes the process wait,
so it is read only if the processes' plain sizes exceed the need so far.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


_V1 = ("memory.usage_in_bytes", "memory.max_usage_in_bytes", "total_")
_V2 = ("memory.current", "memory.peak", "")
_CACHED = ("inactive_file", "active_file", "slab_reclaimable")
_MOST_PROCESSES = 256  # whose sizes one look reads


class MemoryNeed:
    """`bytes` is the need until the last `look`. `cgroup` is the folder of the job's cgroup, None without one."""

    def __init__(self, cgroup: Path | None) -> None:
        self._cgroup = cgroup
        self._peak = self._cached = 0
        self._peaks: dict[Path, int] = {}  # of processes
        self.bytes = 0
        if cgroup:  # the job's earlier attempts have left their peak there
            current, self._peak, self._cached = _counted(cgroup)
            self.bytes = max(0, current - self._cached)

    def look(self, processes: Iterable[Path] = ()) -> None:
        """Update `bytes`. `processes` are the folders in /proc of the run's processes, used without a cgroup.

        Raises OSError if the cgroup cannot be read.
        """
        if self._cgroup is None:
            self._look_at(processes)
            return
        current, peak, cached = _counted(self._cgroup)
        needed = current - cached
        if peak > self._peak:
            needed = max(needed, peak - max(cached, self._cached))
        self._peak, self._cached = max(peak, self._peak), cached
        self.bytes = max(self.bytes, needed)

    def _look_at(self, processes: Iterable[Path]) -> None:
        sizes, gone_by, peaks = {}, 0, {}
        for process, _ in zip(processes, range(_MOST_PROCESSES), strict=False):
            with suppress(OSError, KeyError, ValueError):
                size = _kibibytes(process / "status")
                sizes[process] = size["RssAnon"] + size["RssShmem"]
                peaks[process] = size["VmHWM"]
                if size["VmHWM"] > self._peaks.get(process, 0):  # it has given memory back since
                    gone_by += size["VmHWM"] - size["VmRSS"]
        self._peaks = peaks
        if 1024 * (sum(sizes.values()) + gone_by) > self.bytes:
            self.bytes = max(self.bytes, 1024 * (gone_by + sum(_own(*one) for one in sizes.items())))


def _own(process: Path, size: int) -> int:
    """The proportional set of a process in KiB, without files; its whole `size` if the kernel does not tell.

    0 if it has just ended: what it shared still counts where the others have it.
    """
    with suppress(OSError, KeyError, ValueError):
        found = _kibibytes(process / "smaps_rollup")
        return found["Pss_Anon"] + found["Pss_Shmem"]
    try:
        return size if "RssAnon" in _kibibytes(process / "status") else 0
    except (OSError, ValueError):
        return 0


def _kibibytes(path: Path) -> dict[str, int]:
    """The sizes in a file of /proc, by name."""
    lines = (line.partition(":") for line in path.read_text().splitlines() if line.endswith(" kB"))
    return {name: int(value.split()[0]) for name, _, value in lines}


def _counted(folder: Path) -> tuple[int, int, int]:
    """The bytes in use in a cgroup, the peak of that, and the cached files in it."""
    current, peak, prefix = _V1 if (folder / _V1[0]).exists() else _V2
    named = {prefix + name for name in _CACHED}
    lines = (line.partition(" ") for line in (folder / "memory.stat").read_text().splitlines())
    cached = sum(int(value) for name, _, value in lines if name in named)
    used = int((folder / current).read_text())
    try:
        return used, int((folder / peak).read_text()), cached
    except OSError:  # before Linux 5.19, version 2 has no peak
        return used, used, cached


_MARKS = ("CLUSTERCTL_RUN_DIR", "CLUSTERCTL_ATTEMPT", "SLURM_NODEID")
_OF_ATTEMPT = b"CLUSTERCTL_ATTEMPT="
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
        self.need = MemoryNeed(None)
        with suppress(*_GONE):
            self.need = MemoryNeed(self._memory)

    def read(self) -> Usage:
        """The current usage."""
        memory = self._add_up_processes()
        ticks, read, written = self._totals
        cpu_seconds = ticks / _TICKS
        if folder := self._processors:
            usage = folder / "cpuacct.usage"
            in_v1 = usage.exists()
            cpu_seconds = int(usage.read_text()) / 1e9 if in_v1 else _named(folder / "cpu.stat", "usage_usec") / 1e6
        if folder := self._memory:  # without cached files, which the kernel would reclaim first
            first = folder / "memory.usage_in_bytes"
            if first.exists():
                memory = int(first.read_text()) - _named(folder / "memory.stat", "total_inactive_file")
            else:
                memory = int((folder / "memory.current").read_text()) - _named(folder / "memory.stat", "inactive_file")
        self.look_at_memory()
        return Usage(cpu_seconds, memory, self._memory_limit(), read, written, *self._network())

    def look_at_memory(self) -> None:
        """Update `need`, from the processes of the last `read` if there is no cgroup."""
        ours = (self.root / "proc" / str(pid) for pid, counters in self._seen.items() if counters.ours)
        with suppress(*_GONE):
            self.need.look(ours)

    @property
    def in_cgroup(self) -> bool:
        """Whether the kernel counts the job's memory."""
        return self._memory is not None

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
        with os.scandir(self.root / "proc") as entries:
            for entry in entries:
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
            # Of this run and node, and of this attempt, or of none, like a standby and its pages.
            of_attempt = any(word.startswith(_OF_ATTEMPT) for word in environment)
            ours = bool(self._marks) and all(
                mark in environment or (mark.startswith(_OF_ATTEMPT) and not of_attempt) for mark in self._marks
            )
            before = Counters(started, ours)
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


def _named(path: Path, name: str) -> int:
    """The number after `name` in a file of names and numbers; 0 if it is missing."""
    lines = (line.partition(" ") for line in path.read_text().splitlines())
    return next((int(value) for key, _, value in lines if key == name), 0)
