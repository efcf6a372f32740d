"""srun: the tasks of one step as processes, N a node, each told where it stands."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.emulator import fifo, processes
from clusterctl.emulator.environment import gpu_environment, task_environment, user_name
from clusterctl.emulator.filenames import expand
from clusterctl.emulator.jobs import JOB_MARK, Job
from clusterctl.emulator.machine import node_name
from clusterctl.emulator.options import Options
from clusterctl.emulator.request import spread
from clusterctl.errors import SlurmError

if TYPE_CHECKING:
    from clusterctl.emulator.machine import Machine

_EFFECTIVE = """
    nodes=/N ntasks=/n ntasks-per-node= cpus-per-task=/c kill-on-bad-exit?/K chdir=/D output=/o error=/e open-mode=
"""
_WITHOUT_EFFECT = """
    mpi= unbuffered/u input=/i export= job-name=/J overlap exact exclusive? gpus-per-node= gres= mem= time=/t quiet/Q
    cpu-bind= wait=/W
"""
_CONTAINER = """
    container-image= container-mounts= container-workdir= container-name= container-env= container-mount-home
    no-container-mount-home container-writable container-readonly container-remap-root no-container-remap-root
    container-entrypoint no-container-entrypoint
"""
_SRUN = Options(_EFFECTIVE + _WITHOUT_EFFECT + _CONTAINER)
_CONTAINER_OPTIONS = Options(_CONTAINER).names


def main(machine: Machine, arguments: list[str]) -> int:
    options, command = _SRUN.parse(arguments)
    if not command:
        raise SlurmError("No command given to execute.")
    if JOB_MARK not in os.environ:
        raise SlurmError("the emulator runs steps inside a batch script alone")
    if _CONTAINER_OPTIONS & set(options):
        raise SlurmError("the emulator does not run container images yet")
    return Step(machine, Job(Path(os.environ[JOB_MARK])), options, command).run()


class Task(NamedTuple):
    rank: int
    node: int


class Step:
    """One srun. It lives until its last task has ended; the supervisor tells it which signals to pass on."""

    def __init__(self, machine: Machine, job: Job, options: dict[str, str], command: list[str]) -> None:
        self.machine = machine
        self.job = job
        self.request, self.record = job.request, job.record
        self.options = options
        self.command = command
        self.id, self.control = self._register()
        self.signals = processes.signal_bytes(signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)
        self.running: dict[int, Task] = {}
        self.code = 0
        self.kill_at = math.inf
        bad_exit = options.get("kill-on-bad-exit", os.environ.get("SLURM_KILL_BAD_EXIT", "0"))
        self.kill_on_bad_exit = bad_exit != "0"

    def run(self) -> int:
        """Start the tasks and wait for all; returns the highest exit code, 128 + N for a death by signal N."""
        self._start()
        while self.running:
            timeout = max(0.0, self.kill_at - time.monotonic()) if self.kill_at < math.inf else None
            fifo.wait([self.control, self.signals], timeout)
            for line in fifo.drain(self.control).decode().splitlines():
                number, node = line.split()
                self._signal(int(number), None if node == "all" else int(node))
            if set(fifo.drain(self.signals)) - {signal.SIGCHLD}:
                self._abort()
            self._reap()
            if time.monotonic() >= self.kill_at:
                self._signal(signal.SIGKILL)
        return self.code

    def _register(self) -> tuple[int, int]:
        """The step's number, the next that is free, and the pipe that it listens on."""
        number = 0
        while True:
            try:
                return number, fifo.create(self.job.steps / str(number))
            except FileExistsError:
                number += 1

    def _start(self) -> None:
        nodes, counts = self._shape()
        step_wide = {"PATH": os.environ.get("PATH", os.defpath)}
        if "cpus-per-task" in self.options:
            step_wide["SLURM_CPUS_PER_TASK"] = self.options["cpus-per-task"]
        if "ntasks-per-node" in self.options:
            step_wide["SLURM_NTASKS_PER_NODE"] = self.options["ntasks-per-node"]
        folder = self.options.get("chdir", str(Path.cwd()))
        files: dict[str, int] = {}
        rank = 0
        for index, (node, count) in enumerate(zip(nodes, counts, strict=True)):
            gpus = gpu_environment(self.record.gpus[self.record.nodes.index(node)])
            for local in range(count):
                place = task_environment(self.id, nodes, counts, index, local)
                out = self._open(self.options.get("output"), rank, index, node, files, 1)
                err = self._open(self.options.get("error", self.options.get("output")), rank, index, node, files, 2)
                pid = processes.spawn(self.command, {**os.environ, **step_wide, **gpus, **place}, folder, out, err)
                self.running[pid] = Task(rank, node)
                rank += 1
        for descriptor in files.values():
            os.close(descriptor)

    def _shape(self) -> tuple[list[int], list[int]]:
        """The step's nodes and how many tasks each gets; what srun is not told it takes from the job."""
        nodes = list(self.record.nodes)[: int(self.options.get("nodes", self.request.nodes))]
        if "ntasks" in self.options:
            tasks = int(self.options["ntasks"])
        elif "ntasks-per-node" in self.options:
            tasks = len(nodes) * int(self.options["ntasks-per-node"])
        elif len(nodes) == self.request.nodes:
            tasks = self.request.tasks
        else:
            tasks = len(nodes) * max(self.request.tasks_on_nodes)
        nodes = nodes[:tasks]
        counts = spread(tasks, len(nodes))
        if int(self.options.get("nodes", 1)) > self.request.nodes or max(counts) > max(self.request.tasks_on_nodes):
            job = self.job.id
            raise SlurmError(f"Unable to create step for job {job}: More processors requested than permitted")
        return nodes, counts

    def _open(
        self, pattern: str | None, rank: int, index: int, node: int, files: dict[str, int], inherited: int
    ) -> int:
        """The task's output: srun's own, or the file that the pattern names, which tasks may have in common."""
        if pattern is None:
            return inherited
        job = str(self.job.id)
        numbers = {"j": job, "A": job, "J": f"{job}.{self.id}", "s": str(self.id), "t": str(rank), "n": str(index)}
        name = expand(pattern, {**numbers, "N": node_name(node), "x": self.request.name, "u": user_name()})
        if name not in files:
            append = self.options.get("open-mode", os.environ.get("SLURM_OPEN_MODE", "t")).startswith("a")
            mode = os.O_APPEND if append else os.O_APPEND | os.O_TRUNC
            try:
                files[name] = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | mode, 0o666)
            except OSError as error:
                self._signal(signal.SIGKILL)
                raise SlurmError(f"Could not open stdout file {name}: {error.strerror}") from None
        return files[name]

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if task := self.running.pop(pid, None):
                self._ended(task, os.waitstatus_to_exitcode(status))

    def _ended(self, task: Task, code: int) -> None:
        if code == 0:
            return
        self.code = max(self.code, code if code > 0 else 128 - code)
        how = f"Exited with exit code {code}" if code > 0 else signal.strsignal(-code)
        self._say(f"srun: error: {node_name(task.node)}: task {task.rank}: {how}")
        if self.kill_on_bad_exit:
            self._abort()

    def _abort(self) -> None:
        """TERM to what still runs, KILL after KillWait: ranks that ignore TERM live until then."""
        if self.kill_at == math.inf and self.running:
            when, first = time.strftime("%Y-%m-%dT%H:%M:%S"), node_name(self.record.nodes[0])
            self._say(f"slurmstepd: error: *** STEP {self.job.id}.{self.id} ON {first} CANCELLED AT {when} ***")
            self.kill_at = time.monotonic() + self.machine.kill_wait
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)

    def _signal(self, number: int, node: int | None = None) -> None:
        for pid, task in self.running.items():
            if node in (None, task.node):
                processes.send_signal(pid, number)

    def _say(self, message: str) -> None:
        print(message, file=sys.stderr, flush=True)
