"""A virtual cluster in a folder with a hostile name, driven only through its stand-ins."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from clusterctl.launcher.emulator.install import ensure_stand_ins
from clusterctl.launcher.emulator.jobs import JOB_MARK
from clusterctl.shared.spec import Emulator
from clusterctl.shared.spec.values import GpuCount

HOSTILE = "a b'c\"d $HOME ü"


class VirtualCluster:
    def __init__(self, folder: Path, settings: Emulator) -> None:
        self.work = folder / "work" / HOSTILE
        self.work.mkdir(parents=True, exist_ok=True)
        self.bin = ensure_stand_ins(folder / HOSTILE, settings)
        self.state = self.bin.parent

    def run(self, command: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "CUDA"))}
        words = [os.fspath(self.bin / command), *arguments]
        return subprocess.run(
            words, cwd=self.work, env={**clean, **environment}, capture_output=True, text=True, timeout=120, check=False
        )

    def call(self, command: str, *arguments: str, **environment: str) -> str:
        """The output of a command that must succeed."""
        done = self.run(command, *arguments, **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def submit(self, text: str, *options: str, **environment: str) -> str:
        script = self.work / "job.sh"
        script.write_text(f"#!/bin/bash\n{text}\n")
        return self.call("sbatch", "--parsable", *options, os.fspath(script), **environment).strip()

    def field(self, job: str, letter: str = "T") -> str:
        return self.call("squeue", "-h", "--states=all", f"--jobs={job}", "-o", f"%{letter}").strip()

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline, seen, again = time.monotonic() + 60, None, 0.0
        while True:
            # Most conditions start a process. They change with the files of the jobs, or with their processes.
            marks = self.marks()
            if marks != seen or time.monotonic() > again:
                if condition():
                    return
                seen, again = marks, time.monotonic() + 0.3
            assert time.monotonic() < deadline, f"timed out waiting for {what}"
            time.sleep(0.02)

    def marks(self) -> list[tuple[str, int, int]]:
        """What changes when a job does: the names, sizes and times of files."""
        found = list(self.work.iterdir())
        for job in self.state.glob("jobs/*"):
            with suppress(FileNotFoundError, NotADirectoryError):  # renamed meanwhile
                found += job.iterdir()
        return [(path.name, stat.st_size, stat.st_mtime_ns) for path in found if (stat := _stat(path))]

    def wait(self, job: str, state: str = "") -> str:
        """Wait for `state`, or for the job to end; returns the state."""
        running, found = ("PENDING", "RUNNING", "COMPLETING"), ""

        def reached() -> bool:
            nonlocal found
            found = self.field(job)
            return found == state if state else found not in running

        self.until(reached, f"{job} {state}")
        return found

    def wait_for_ready(self) -> None:
        """Wait for the file that a script touches once it is running."""
        self.until((self.work / "ready").exists, "ready")

    def log(self, job: str) -> str:
        return (self.work / f"slurm-{job}.out").read_text()

    def finish(self, text: str, *options: str, **environment: str) -> tuple[str, str]:
        """Submit and wait; returns (state, log)."""
        job = self.submit(text, *options, **environment)
        return self.wait(job), self.log(job)

    def supervisor(self, job: str) -> int:
        """The pid of the job's supervisor: the process whose standard input is the job's pipe."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if (entry / "fd/0").readlink() == self.state / "jobs" / job / "control":
                        return int(entry.name)
                except OSError:
                    continue
        raise AssertionError(f"job {job} has no supervisor")

    def processes(self) -> list[str]:
        """The command lines of all processes of all jobs."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if f"{JOB_MARK}={self.state}/".encode() in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        return found


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:  # it has just been removed, or is a link to nothing
        return None


MakeCluster = Callable[..., VirtualCluster]


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[MakeCluster]:
    """Virtual clusters of any size. At teardown, all their jobs are cancelled, and no process may survive."""
    made: list[VirtualCluster] = []

    def make(nodes: int = 2, cpus: int = 2, gpus: int | str = 0, kill_wait: int = 1) -> VirtualCluster:
        settings = Emulator(nodes=nodes, cpus_per_node=cpus, gpus_per_node=GpuCount(gpus), kill_wait=kill_wait)
        made.append(VirtualCluster(tmp_path, settings))
        return made[-1]

    yield make
    for cluster in made:
        if live := cluster.call("squeue", "-h", "-o", "%i").split():
            cluster.run("scancel", *live)
            cluster.until(lambda: not cluster.call("squeue", "-h"), "no jobs")  # noqa: B023 - called at once
        cluster.until(lambda: not cluster.processes(), f"no processes of jobs: {cluster.processes()}")  # noqa: B023


@pytest.fixture
def cluster(make_cluster: MakeCluster) -> VirtualCluster:
    """A cluster of two nodes with two CPUs each."""
    return make_cluster()
