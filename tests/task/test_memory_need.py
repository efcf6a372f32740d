"""The memory that a run needed: what counts, what does not, and spikes between two looks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.engine.task.node_usage import MemoryNeed

MIB = 2**20


def counted(folder: Path, version: int, *, used: int, peak: int | None, cached: int = 0, shared: int = 0) -> Path:
    """The files of a cgroup, sizes in MiB."""
    folder.mkdir(exist_ok=True)
    names = (
        ("memory.usage_in_bytes", "memory.max_usage_in_bytes") if version == 1 else ("memory.current", "memory.peak")
    )
    for name, size in zip(names, (used, peak), strict=True):
        if size is not None:
            (folder / name).write_text(f"{size * MIB}\n")
    prefix = "total_" if version == 1 else ""
    of_files = {"inactive_file": cached * MIB, "active_file": 0, "shmem": shared * MIB}
    lines = [f"{prefix}{name} {size}" for name, size in of_files.items()]
    (folder / "memory.stat").write_text("\n".join(["cache 99999999999" if version == 1 else "anon 1", *lines]) + "\n")
    return folder


@pytest.mark.parametrize("version", [1, 2])
def test_cached_files_do_not_count_and_shared_memory_does(tmp_path: Path, version: int) -> None:
    folder = counted(tmp_path / "job", version, used=100, peak=100)
    need = MemoryNeed(folder)
    counted(folder, version, used=900, peak=900, cached=700, shared=50)
    need.look()
    assert need.bytes == 200 * MIB


@pytest.mark.parametrize("version", [1, 2])
def test_a_spike_between_two_looks_counts(tmp_path: Path, version: int) -> None:
    folder = counted(tmp_path / "job", version, used=100, peak=100)
    need = MemoryNeed(folder)
    counted(folder, version, used=120, peak=620, cached=20)
    need.look()
    assert need.bytes == 600 * MIB
    counted(folder, version, used=130, peak=620, cached=20)
    need.look()
    assert need.bytes == 600 * MIB, "the peak has not risen again"


def test_the_peak_of_an_earlier_attempt_of_the_job_does_not_count(tmp_path: Path) -> None:
    folder = counted(tmp_path / "job", 2, used=100, peak=5000)
    need = MemoryNeed(folder)
    need.look()
    assert need.bytes == 100 * MIB


def test_a_kernel_without_a_peak_gives_what_is_in_use(tmp_path: Path) -> None:
    need = MemoryNeed(counted(tmp_path / "job", 2, used=300, peak=None, cached=100))
    counted(tmp_path / "job", 2, used=500, peak=None, cached=150)
    need.look()
    assert need.bytes == 350 * MIB


def process(folder: Path, *, now: int, peak: int, own: int | None = None, files: int = 0) -> Path:
    """The files of a process in /proc, sizes in MiB; `own` is its proportional set."""
    folder.mkdir(exist_ok=True)
    sizes = {"VmHWM": peak + files, "VmRSS": now + files, "RssAnon": now, "RssFile": files, "RssShmem": 0}
    (folder / "status").write_text(
        "Name:\tx\n" + "".join(f"{name}:\t{1024 * size} kB\n" for name, size in sizes.items())
    )
    if own is not None:
        (folder / "smaps_rollup").write_text(f"0-1 ---p\nPss_Anon: {1024 * own} kB\nPss_Shmem: 0 kB\n")
    return folder


def test_what_forked_processes_share_counts_once(tmp_path: Path) -> None:
    need = MemoryNeed(None)
    need.look([process(tmp_path / str(pid), now=400, peak=400, own=110, files=70) for pid in range(4)])
    assert need.bytes == 440 * MIB


def test_what_a_process_has_given_back_since_the_last_look_counts_once(tmp_path: Path) -> None:
    need = MemoryNeed(None)
    for peak in (900, 900):
        need.look([process(tmp_path / "1", now=200, peak=peak, own=200)])
    assert need.bytes == 900 * MIB
    need.look([process(tmp_path / "1", now=300, peak=900, own=300)])
    assert need.bytes == 900 * MIB


def test_a_kernel_that_hides_proportional_sets_gives_plain_sizes(tmp_path: Path) -> None:
    need = MemoryNeed(None)
    need.look([process(tmp_path / "1", now=400, peak=400), tmp_path / "gone"])
    assert need.bytes == 400 * MIB


class Ending(type(Path())):  # type: ignore[misc]
    """The folder of a process that ends after its sizes have been read, and before its proportional set is."""

    def __truediv__(self, name: str) -> Path:
        if name == "smaps_rollup":
            super().__truediv__("status").write_text("Name:\tx\nState:\tZ (zombie)\n")
        return Path(super().__truediv__(name))


def test_what_a_process_shared_does_not_count_twice_when_it_ends(tmp_path: Path) -> None:
    need = MemoryNeed(None)
    process(tmp_path / "2", now=400, peak=400)
    need.look([process(tmp_path / "1", now=400, peak=400, own=250), Ending(tmp_path / "2")])
    assert need.bytes == 250 * MIB


def test_real_forked_processes_count_their_shared_pages_once() -> None:
    program = """
import os, sys
held = bytearray(os.urandom(1 << 20)) * 96
children = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        sys.stdin.read()
        os._exit(0)
    children.append(child)
print(os.getpid(), *children, flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as started:
        assert started.stdout
        assert started.stdin
        need = MemoryNeed(None)
        need.look([Path("/proc", pid) for pid in started.stdout.readline().split()])
        started.stdin.close()
    assert 96 * MIB < need.bytes < 160 * MIB


@pytest.mark.skipif(not os.access("/sys/fs/cgroup/memory", os.W_OK), reason="needs root and version 1 of cgroups")
def test_a_real_cgroup_counts_a_spike_but_not_the_files_it_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(64 * MIB))
    folder = Path(f"/sys/fs/cgroup/memory/need-{os.getpid()}")
    folder.mkdir()
    try:
        need = MemoryNeed(folder)
        program = f"""
open({str(folder / "cgroup.procs")!r}, "w").write("0")
open({str(file)!r}, "rb").read(1 << 20)
with open({str(tmp_path / "copy")!r}, "wb") as copy:
    copy.write(bytes(64 << 20))
bytearray(b"x") * (150 << 20)
"""
        subprocess.run([sys.executable, "-c", program], check=True)
        need.look()
        assert 150 * MIB < need.bytes < 240 * MIB
    finally:
        folder.rmdir()
