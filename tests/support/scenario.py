"""The stage of a scenario: the real command line, in its own folders, with one back end; and guides to follow."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from getpass import getuser
from pathlib import Path
from typing import Any

import pytest

from clusterctl.launcher.emulator.install import ensure_stand_ins
from clusterctl.shared.record.layout import Attempt, RunDir
from clusterctl.shared.spec import Emulator

# Where both back ends behave alike, `make test` uses one of them, and `make test-long` the other too. Files with
# THROUGH_A_HOST also run there on the emulator of a remote machine.
BACK_ENDS = ["emulator", pytest.param("sandbox", marks=pytest.mark.long)]
FAR = pytest.param("far", marks=pytest.mark.long)
_ON_SLURM = [pytest.param("emulator", marks=pytest.mark.long), "sandbox"]
ON_SLURM = pytest.mark.parametrize("back_end", _ON_SLURM, indirect=True)
ON_SLURM_AND_FAR = pytest.mark.parametrize("back_end", [*_ON_SLURM, FAR], indirect=True)
ON_BOTH = pytest.mark.parametrize("back_end", ["emulator", "sandbox"], indirect=True)
CLUSTERCTL = str(Path(sys.executable).with_name("clusterctl"))

# Stages of runs that have ended, and the seconds until that is certain: files of an end may be half a minute late.
_ENDED = {"finished": 0, "failed": 45, "timed-out": 45, "cancelled": 45}


def wait_until(
    condition: Callable[[], object], seconds: float = 60, what: str = "the condition", every: float = 0.05
) -> Any:
    """Wait until `condition` is true, and return its value. A busy machine gets three times as long."""
    deadline = time.monotonic() + 3 * seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(every)
    raise AssertionError(f"waited {3 * seconds} s for {what}")


def _marks(run: RunDir) -> dict[Path, int]:
    """The mtimes of the files that change when an attempt or the run starts or ends."""
    found = {}
    for path in (run.path, run.attempts_folder, *(attempt.host_json for attempt in run.attempts())):
        with suppress(OSError):  # it does not exist yet, or the file system is late
            found[path] = path.stat().st_mtime_ns
    return found


@dataclass
class Stage:
    """One back end and a folder: everything that a scenario touches."""

    cluster: str
    folder: Path
    environment: dict[str, str]
    begun: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def runs(self) -> Path:
        return Path(self.environment["CLUSTERCTL_RUNS"])

    def keep_runs_in(self, folder: Path) -> None:
        self.environment["CLUSTERCTL_RUNS"] = str(folder)

    def write_job(self, name: str, text: str) -> str:
        """Write a job file to the project's folder, and return the path to type."""
        (self.folder / f"{name}.toml").write_text(text, encoding="utf-8")
        return f"./{name}.toml"

    def call(self, *words: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [CLUSTERCTL, *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """Start a command in the background; it is killed when the scenario ends."""
        process = subprocess.Popen(
            [CLUSTERCTL, *words],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # In CI the tests may run with SIGINT ignored, which children inherit: Ctrl-C must work.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        self.begun.append(process)
        return process

    def submit(self, job: str, *words: str) -> RunDir:
        done = self.call("submit", job, "--cluster", self.cluster, *words)
        assert done.returncode == 0, done.stderr
        return RunDir(self.runs / done.stdout.strip())

    def status(self, run: RunDir) -> dict[str, Any]:
        done = self.call("status", run.id, "--cluster", self.cluster, "-o", "json")
        assert done.returncode == 0, done.stderr
        (record,) = json.loads(done.stdout)["runs"]
        return dict(record)

    def wait_for_state(self, run: RunDir, *states: str, seconds: float = 90) -> dict[str, Any]:
        asked, seen, pause, ended = -math.inf, None, 1.0, math.inf

        def status() -> dict[str, Any] | None:
            """Ask at once when an attempt starts or the run ends, otherwise rarely: each call is a process."""
            nonlocal asked, seen, pause, ended
            marks = _marks(run)
            if marks == seen and time.monotonic() < asked + pause:
                return None
            pause = min(3, 1.5 * pause) if marks == seen else 1
            seen, found = marks, self.status(run)
            asked = time.monotonic()
            if (state := found["stage"]) in states:
                return found
            ended = min(ended, asked) if state in _ENDED else math.inf
            if asked >= ended + _ENDED.get(state, 0):
                raise AssertionError(f"{run.id} has ended: {state}, not {' or '.join(states)}: {found}")
            return None

        return dict(wait_until(status, seconds, f"{run.id} to be {' or '.join(states)}", every=0.1))

    def slurm(self, command: str, *words: str) -> str:
        """Run a Slurm command, or the emulator's, and return its output."""
        found = sorted(Path(self.environment["XDG_STATE_HOME"]).glob(f"clusterctl/emulator/bin-*/{command}"))
        path = str(found[-1]) if self.cluster in ("local", "emulated") else command
        words = (path, *words)
        return subprocess.run(
            words, env=self.environment, capture_output=True, text=True, errors="replace", check=True
        ).stdout

    def job_id(self, run: RunDir) -> str:
        return str(json.loads(run.submission_json.read_text())["job_id"])

    def log(self, run: RunDir, rank: int, stream: str = "out", attempt: int = 0) -> str:
        return run.attempt(attempt).log(rank, stream).read_text()


@contextmanager
def ending(stage: Stage) -> Iterator[Stage]:
    """End the commands and runs of `stage` with the block."""
    try:
        yield stage
    finally:
        for process in stage.begun:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        found = [*stage.runs.glob("[!.]*")] if stage.runs.is_dir() else []
        if left := [path.name for path in found if not RunDir(path).finished_json.exists()]:
            stage.call("cancel", "--yes", "--cluster", stage.cluster, *left)
        if "SLURM_CONF" in stage.environment:  # elements of arrays, which have no run yet; the nodes are shared
            words = ["scancel", f"--user={getuser()}"]
            subprocess.run(words, env=stage.environment, capture_output=True, check=False)


FIELDS = "State:|,Reason:|,Dependency:"
ELEMENTS = "%i %K %T %r"


class NamedJobs:
    """Job IDs differ: `<name>` in a command is replaced by the job ID, and the ID by the name in squeue's output."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.numbers: dict[str, str] = {}
        if stage.cluster == "local":
            ensure_stand_ins(Path(stage.environment["XDG_STATE_HOME"]) / "clusterctl", Emulator())

    def submit(self, name: str, text: str, *options: str) -> None:
        script = self.stage.folder / f"{name}.sh"
        script.write_text(f"#!/bin/bash\n{text}\n")
        words = [self._numbered(option) for option in options]
        folder = f"--chdir={self.stage.folder}"
        answer = self.stage.slurm("sbatch", "--parsable", "--output=/dev/null", folder, *words, str(script))
        self.numbers[name] = answer.strip()

    def state(self, name: str) -> str:
        return self._named(self.stage.slurm("squeue", "-h", "--states=all", "-j", self.numbers[name], "-O", FIELDS))

    def rows(self, *words: str) -> set[str]:
        """The lines of squeue, by default for jobs that have not ended."""
        return set(self._named(self.do("squeue", "-h", "-o", ELEMENTS, *words)).splitlines())

    def until(self, name: str, *shown: str) -> None:
        wait_until(lambda: self.state(name) in shown, 30, f"{name} to be {shown}", every=0.2)

    def until_rows(self, words: str, *rows: str) -> None:
        """Wait until squeue shows exactly these lines for the jobs in `words`."""
        wait_until(lambda: self.rows("-j", words) == set(rows), 30, f"{words} to be {rows}", every=0.2)

    def do(self, *words: str) -> str:
        return self.stage.slurm(*(self._numbered(word) for word in words))

    def _named(self, shown: str) -> str:
        for name, number in self.numbers.items():
            shown = re.sub(rf"(?m)(?:^|(?<=:)){number}(?=[_( ])", name, shown)
        return shown.strip()

    def _numbered(self, text: str) -> str:
        for name, number in self.numbers.items():
            text = text.replace(f"<{name}>", number)
        return text


def alive(run: RunDir, rank: int | None = None) -> list[int]:
    """The running processes of the run's tasks, found by their environment, as nodes may have their own PID namespaces.

    A batch script and its srun have the environment of a task 0. With `rank`, only those of an attempt: not its node's
    standby, nor a task whose rank that has forked.
    """
    marks = {f"CLUSTERCTL_RUN_DIR={run.path}"} | ({f"SLURM_PROCID={rank}"} if rank is not None else set())
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
            name = (folder / "comm").read_text().strip()
        except OSError:
            continue
        of_task = any(variable.startswith("SLURM_PROCID=") for variable in variables) and name != "srun"
        of_attempt = any(variable.startswith("CLUSTERCTL_ATTEMPT=") for variable in variables)
        if of_task and marks <= set(variables) and (of_attempt or rank is None):
            found.append(int(folder.name))
    return sorted(found)


def writers(attempt: Attempt) -> list[int]:
    """The writers of the attempt's nodes, on this machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:  # it has just ended
            continue
        if os.fsencode(attempt.path) in words and any(b"node_writer" in word for word in words):
            found.append(int(path.parent.name))
    return found
