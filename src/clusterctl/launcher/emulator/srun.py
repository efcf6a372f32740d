"""srun: run the tasks of one step as processes, N per node, each with its rank in the environment."""

from __future__ import annotations

import itertools
import math
import os
import shutil
import signal
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

from clusterctl.launcher.emulator import fifo, jobs, process_trees
from clusterctl.launcher.emulator.job_request import Options, count, spread
from clusterctl.launcher.emulator.jobs import JOB_MARK, EmulatedJob, EmulatedState
from clusterctl.launcher.emulator.output import expand, open_output, symbols
from clusterctl.launcher.emulator.variables import (
    EXPORTS,
    batch_environment,
    exported,
    gpu_environment,
    task_environment,
)
from clusterctl.launcher.emulator.virtual_cluster import Machine, name_nodes, node_name, node_names
from clusterctl.shared.errors import SlurmError

_EFFECTIVE = """
    jobid= nodelist=/w pty job-name=/J nodes=/N ntasks=/n ntasks-per-node= cpus-per-task=/c kill-on-bad-exit?/K chdir=/D
    output=/o error=/e open-mode= label/l input=/i
"""
_WITHOUT_EFFECT = """
    mpi= unbuffered/u export= overlap overcommit/O distribution=/m gpus=/G gpus-per-task= gpu-bind= hint= mem-per-cpu=
    threads-per-core= verbose/v no-kill?/k disable-status/X propagate? overlap exact exclusive? gpus-per-node= gres=
    mem= time=/t quiet/Q cpu-bind= wait=/W relative=/r signal=
"""
_SRUN = Options(_EFFECTIVE + _WITHOUT_EFFECT)


def main(machine: Machine, arguments: list[str]) -> int:
    options, command = _SRUN.parse(arguments)
    if not command:
        raise SlurmError("No command given to execute.")
    if "jobid" not in options and JOB_MARK not in os.environ:
        raise SlurmError("the emulator runs steps only inside a job: name one with --jobid")
    job = jobs.find(machine, options["jobid"]) if "jobid" in options else EmulatedJob(Path(os.environ[JOB_MARK]))
    if "jobid" in options:
        jobs.bury_lost(machine)
        if job.record.state is not EmulatedState.RUNNING:
            raise SlurmError(f"Unable to confirm allocation for job {job.id}: Job is not running")
        added = batch_environment(machine, job, job.request, job.record, os.environ)
        os.environ.update((name, value) for name, value in added.items() if name != "ENVIRONMENT")
        name_nodes(machine)  # as the supervisor has for steps from inside the job
    if job.record.state is not EmulatedState.RUNNING:
        raise SlurmError(f"Unable to create step for job {job.id}: Job/step already completing or completed")
    step = EmulatedStep(machine, job, options, command)
    return step.take_over_terminal() if "pty" in options else step.run()


class StepTask(NamedTuple):
    rank: int
    local: int
    node: int
    position: int  # of the node within the step


class Stream(NamedTuple):
    """Where the output of a task goes, and with --label what precedes its lines, and a line without an end."""

    target: int
    label: bytes
    torn: bytes = b""


_PATIENCE_SECONDS = 2.0


class EmulatedStep:
    """One srun. It runs until its last task has ended; the supervisor sends it the signals to forward."""

    def __init__(self, machine: Machine, job: EmulatedJob, options: dict[str, str], command: list[str]) -> None:
        self.machine = machine
        self.job = job
        self.request, self.record = job.request, job.record
        self.options = options
        program = command[0]  # srun itself looks for it
        if program.startswith("."):
            program = f"{Path(options.get('chdir', os.curdir)).absolute()}/{program}"
        elif "/" not in program:
            program = shutil.which(program) or program
        self.command = [program, *command[1:]]
        self.nodes, self.counts = self._shape()
        for self.id in itertools.count():  # the step's number: the next free one
            with suppress(FileExistsError):
                self.control = fifo.create(job.steps / str(self.id))
                break
        (job.step_names / str(self.id)).write_text(options.get("job-name", Path(program).name))
        self.signals = process_trees.signal_bytes(signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)
        self.files: dict[str, int] = {}
        self.streams: dict[int, Stream] = {}  # what tasks write where srun itself writes, by the reader of a pipe
        self.running: dict[int, StepTask] = {}
        self.code = 0
        self.aborted = False
        self.kill_at = math.inf  # on the monotonic clock

    def run(self) -> int:
        """Start the tasks and wait for them; returns the highest exit code, 128 + N for a task killed by signal N."""
        out, folder = self.options.get("output"), self.options.get("chdir", os.curdir)
        rank, stdin = itertools.count(), self._input()
        for position, (node, tasks) in enumerate(zip(self.nodes, self.counts, strict=True)):
            for local in range(tasks):
                task = StepTask(next(rank), local, node, position)
                outputs = self._open(out, task, 1), self._open(self.options.get("error", out), task, 2)
                given = stdin if self.options.get("input", "all") in ("all", str(task.rank)) else os.devnull
                pid = process_trees.spawn(self.command, self._environment(task), folder, *outputs, given)
                self.running[pid] = task
                for descriptor in {*outputs} - {1, 2, *self.files.values()}:
                    os.close(descriptor)
        for descriptor in self.files.values():
            os.close(descriptor)
        patience = math.inf  # after the last task, with what its own children may still write
        while self.running or (self.streams and time.monotonic() < patience):
            until = min(self.kill_at, patience)
            timeout = max(0.0, until - time.monotonic()) if until < math.inf else None
            fifo.wait([self.control, self.signals, *self.streams], timeout)
            self._pass_on()
            for line in fifo.drain(self.control).decode().splitlines():
                number, target = line.split()
                self._signal(int(number), None if target == "all" else int(target))
            if set(fifo.drain(self.signals)) - {signal.SIGCHLD}:
                self._abort()
            self._reap()
            if not self.running and patience == math.inf:
                patience = time.monotonic() + _PATIENCE_SECONDS
            if time.monotonic() >= self.kill_at:
                self.kill_at = math.inf
                self._signal(signal.SIGKILL)
        if "jobid" in self.options:  # the supervisor is notified only when its own descendants end
            os.close(self.control)
            fifo.send(self.job.control, "-", "nudge")
        return self.code

    def take_over_terminal(self) -> NoReturn:
        """With --pty, this process becomes the only task: the terminal is on this machine anyway."""
        environment = self._environment(StepTask(0, 0, self.nodes[0], 0))
        os.chdir(self.options.get("chdir", os.curdir))
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.execvpe(self.command[0], self.command, environment)

    def _shape(self) -> tuple[list[int], list[int]]:
        """The step's nodes, and how many tasks each gets; missing options are taken from the job."""
        request = self.request
        nodes = count(self.options, "nodes") or request.nodes
        per_node = count(self.options, "ntasks-per-node") or max(request.tasks_on_nodes)
        whole = nodes == request.nodes and "ntasks-per-node" not in self.options
        tasks = count(self.options, "ntasks") or (request.tasks if whole else nodes * per_node)
        counts = spread(tasks, min(nodes, tasks))
        if nodes > request.nodes or max(counts) > max(request.tasks_on_nodes):
            raise SlurmError(f"Unable to create step for job {self.job.id}: More processors requested than permitted")
        held = list(self.record.nodes)
        if "nodelist" in self.options:
            wanted = node_names(self.options["nodelist"])
            named = [node for node in held if node_name(node) in wanted]
            if not len(named) == len(wanted) == len(counts):
                words = self.options["nodelist"]
                raise SlurmError(f"the emulator takes as many of the job's nodes as the step has: {words}")
            return named, counts
        return held[: len(counts)], counts

    def _environment(self, task: StepTask) -> dict[str, str]:
        """srun's own environment, what Slurm adds, and the task's rank and node."""
        environment = {
            **batch_environment(self.machine, self.job, self.request, self.record, {}),
            **exported(os.environ, self.options.get("export", os.environ.get(EXPORTS))),
            **gpu_environment(self.record.gpus[self.record.nodes.index(task.node)]),
            **task_environment(self.id, self.nodes, self.counts, task.position, task.local),
        }
        if "cpus-per-task" in self.options:
            environment["SLURM_CPUS_PER_TASK"] = self.options["cpus-per-task"]
        return environment

    def _open(self, pattern: str | None, task: StepTask, inherited: int) -> int:
        """The task's output: a pipe to that of srun, or the file that the pattern names, which tasks may share."""
        if pattern is None:  # a pipe, as with Slurm: a task's output does not end with srun's own
            reader, writer = os.pipe()
            os.set_blocking(reader, False)
            self.streams[reader] = Stream(inherited, f"{task.rank}: ".encode() if "label" in self.options else b"")
            return writer
        step = {"J": f"{self.job.id}.{self.id}", "s": str(self.id), "t": str(task.rank), "n": str(task.position)}
        name = expand(pattern, symbols(self.job.id, self.record, self.request.name, task.node) | step)
        if name not in self.files:
            mode = self.options.get("open-mode", os.environ.get("SLURM_OPEN_MODE", ""))
            try:
                self.files[name] = open_output(name, append=mode.startswith("a"))
            except OSError as error:
                self._signal(signal.SIGKILL)
                raise SlurmError(f"Could not open {name}: {error.strerror}") from None
        return self.files[name]

    def _pass_on(self) -> None:
        """Write what tasks have written."""
        for reader, stream in sorted(self.streams.items(), key=lambda item: -item[1].target):  # stderr first
            try:
                block = os.read(reader, 65536)
            except BlockingIOError:
                continue
            text = block
            if "unbuffered" not in self.options:  # like Slurm, whole lines
                *lines, torn = (stream.torn + block).split(b"\n")
                self.streams[reader] = stream._replace(torn=torn)
                text = b"".join(stream.label + line + b"\n" for line in lines)
                if torn and not block:  # the end; with a label, srun adds the newline
                    text = stream.label + torn + b"\n" * bool(stream.label)
            while text:
                text = text[os.write(stream.target, text) :]
            if not block:
                os.close(reader)
                del self.streams[reader]

    def _input(self) -> str:
        """What all tasks read: srun's own standard input, read to its end first if it is a pipe to several tasks."""
        mode = os.fstat(0).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)) or self.options.get("input", "all") == "none":
            return os.devnull
        if sum(self.counts) == 1:  # as it arrives
            return f"/proc/{os.getpid()}/fd/0"
        copy = os.memfd_create("stdin")
        while block := os.read(0, 65536):
            os.write(copy, block)
        return f"/proc/{os.getpid()}/fd/{copy}"

    def _reap(self) -> None:
        for pid, status in process_trees.reaped():
            task, code = self.running.pop(pid, None), os.waitstatus_to_exitcode(status)
            if task is None or code == 0:
                continue
            self.code = max(self.code, code if code > 0 else 128 - code)
            how = f"Exited with exit code {code}" if code > 0 else signal.strsignal(-code)
            self._say(f"srun: error: {node_name(task.node)}: task {task.rank}: {how}")
            if self.options.get("kill-on-bad-exit", os.environ.get("SLURM_KILL_BAD_EXIT", "0")) != "0":
                self._abort()

    def _abort(self) -> None:
        """TERM the remaining tasks, then KILL after KillWait: tasks that ignore TERM live until then."""
        if self.running and not self.aborted:
            self.aborted = True
            when, first = time.strftime("%Y-%m-%dT%H:%M:%S"), node_name(self.record.nodes[0])
            self._say(f"slurmstepd: error: *** STEP {self.job.id}.{self.id} ON {first} CANCELLED AT {when} ***")
            self.kill_at = time.monotonic() + self.machine.kill_wait
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)

    def _signal(self, number: int, node: int | None = None) -> None:
        for pid, task in self.running.items():
            if node in (None, task.node):
                process_trees.send_signal(pid, number)

    def _say(self, message: str) -> None:
        print(message, file=sys.stderr, flush=True)
