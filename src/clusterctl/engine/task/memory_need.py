"""The most memory that a run has needed on a node: what the kernel could not have taken back.

With less than that, the run would have been killed. Cached files do not count, since the kernel drops them first; a
shared memory segment, a tmpfs file and the kernel's own tables do. `MemoryNeed.look` is cheap, so that it can be called
twice a second: a spike between two samples of the telemetry is what a job dies of.

In the job's cgroup, the kernel counts the peak itself, but with cached files, so `look` subtracts them when the peak
has risen. Without a cgroup, the need is the sum of the processes' proportional sets (what several processes share
counts once), and a process's own peak since the last look is added. Reading a proportional set makes the process wait,
so it is read only if the processes' plain sizes exceed the need so far.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

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
