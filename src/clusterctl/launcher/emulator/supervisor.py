"""The process behind each job: it waits for slots, runs the batch script, and ends the job."""

from __future__ import annotations

import math
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.launcher.emulator import fifo, jobs, process_trees, sbatch, scheduling
from clusterctl.launcher.emulator.jobs import HELD, EmulatedJob, EmulatedState
from clusterctl.launcher.emulator.output import expand, open_output, symbols
from clusterctl.launcher.emulator.scheduling import Dependency
from clusterctl.launcher.emulator.variables import batch_environment
from clusterctl.launcher.emulator.virtual_cluster import Machine, name_nodes, node_name
from clusterctl.shared.node.processes import descendants, stats

if TYPE_CHECKING:
    from collections.abc import Sequence

_CONTROL = 0  # standard input is the job's pipe
_LOOK_AGAIN_SECONDS = 1.0  # a killed supervisor frees its slots without notifying the others
_GRACE_SECONDS = 10.0  # from the preemption warning to the end of the job, as in the sandbox's slurm.conf
_NO_OUTPUT = 53  # the wait status that Slurm gives a job whose log cannot be opened
_REASONS = {
    EmulatedState.FAILED: "NonZeroExitCode",
    EmulatedState.TIMEOUT: "TimeLimit",
    EmulatedState.NODE_FAIL: "NodeDown",
}


def main(machine: Machine, arguments: list[str]) -> int:
    os.closerange(3, 1 << 16)  # descriptors inherited from sbatch's caller would stay open as long as the job
    os.chdir("/")
    process_trees.adopt_orphans()
    name_nodes(machine)  # for everything that the job starts
    Supervisor(machine, jobs.find(machine, arguments[0])).supervise()
    return 0


class Supervisor:
    """Takes one job from the queue to its end. The only writer of its record."""

    def __init__(self, machine: Machine, job: EmulatedJob) -> None:
        self.machine = machine
        self.job = job
        self.request = job.request
        self.record = job.record
        self.signals = process_trees.signal_bytes(signal.SIGCHLD)
        self.becomes: EmulatedState | None = None  # once all processes are gone; PENDING: requeued
        self.batch = 0  # pid of the batch script
        self.status: int | None = None  # its wait status, once it has ended
        self.warn_at = self.limit_at = self.yield_at = self.kill_at = math.inf  # on the monotonic clock

    def supervise(self) -> None:
        while True:
            self.becomes = None
            while self.record.state is EmulatedState.PENDING:
                if self.record.reason != HELD and self._may_start() and self._place():
                    break
                if self.record.state is EmulatedState.PENDING:
                    self._wait(time.monotonic() + _LOOK_AGAIN_SECONDS)
            if self.record.state is EmulatedState.CANCELLED:  # before it had its nodes
                break
            state = self._run()
            if state is not EmulatedState.PENDING:
                self._note(state=state, reason=_REASONS.get(state, "None"), ended=time.time(), status=self.status or 0)
                break
            again = self.record.restarts + 1
            self._note(state=state, reason="None", started=None, preempted=None, nodes=(), gpus=(), restarts=again)
            jobs.nudge(self.machine)
        self.job.control.unlink()
        jobs.nudge(self.machine)

    # While pending

    def _may_start(self) -> bool:
        """Whether all dependencies are satisfied; if one never can be, end the job if it was submitted so."""
        if not self.record.dependencies:
            return True
        left = scheduling.open_dependencies(self.machine, [Dependency(*one) for one in self.record.dependencies])
        never = any(one.failed for one in left)
        reason = scheduling.NEVER if never else scheduling.WAITS if left else "None"
        if (reason, left) != (self.record.reason, self.record.dependencies):
            self._note(reason=reason, dependencies=left)
        if never and self.request.kill_on_invalid_dependency:
            self._end(EmulatedState.CANCELLED)
        return not left

    def _place(self) -> bool:
        """Take the nodes if they are free; else record why not. The first in line asks jobs to make room."""
        reason = "Priority"
        if not scheduling.is_behind(self.machine, self.job):
            with scheduling.lease(self.machine):
                if placed := scheduling.place(self.machine, self.job):
                    started = {"state": EmulatedState.RUNNING, "reason": "None", "started": time.time()}
                    self._split(self.record.tasks[:1], **started, nodes=placed[0], gpus=placed[1])
            if placed:
                jobs.nudge(self.machine)  # another job is now first in line
                return self.record.state is EmulatedState.RUNNING
            jobs.bury_lost(self.machine)
            if scheduling.is_throttled(self.machine, self.job):
                reason = "JobArrayTaskLimit"
            else:
                for victim in scheduling.victims(self.machine, self.job):
                    fifo.send(victim.control, "-", "preempt")
                # With a node down it may never fit; then the jobs behind it must not wait.
                possible = scheduling.place(self.machine, self.job, alone=True)
                reason = "Resources" if possible else "ReqNodeNotAvail"
        if reason != self.record.reason:
            self._note(reason=reason)
            jobs.nudge(self.machine)
        return False

    def _split(self, tasks: Sequence[int], **changes: object) -> None:
        """Change only these elements of the array: they become a job of their own unless they are all that is left.

        So the last element keeps the id of the array.
        """
        left = [task for task in self.record.tasks if task not in tasks]
        if not left:
            self._note(**changes)
            return
        record = self.record._replace(tasks=tasks, **changes)  # type: ignore[arg-type]
        script = (self.job.folder / "script").read_bytes()
        sbatch.start(self.machine, self.request, self.job.environment, script, record)
        self._note(tasks=left)

    # While running

    def _run(self) -> EmulatedState:
        """Run the batch script; returns the state that the job ends in, or PENDING to requeue it."""
        for old in self.job.steps.iterdir():
            old.unlink()
        self.status = None
        request, now = self.request, time.monotonic()
        self.kill_at = self.yield_at = math.inf
        self.limit_at = now + request.time_limit if request.time_limit else math.inf
        self.warn_at = max(now, self.limit_at - request.warning_lead) if request.warning_signal else math.inf
        environment = batch_environment(self.machine, self.job, request, self.record, self.job.environment)
        script = [os.fspath(self.job.folder / "script"), *request.arguments]
        try:
            self.log = self._open(request.output)
            error = os.dup(self.log) if request.error == request.output else self._open(request.error)
        except OSError as refusal:
            print(f"Could not open a log of job {self.job.id}: {refusal}", flush=True)
            self.log = os.open(os.devnull, os.O_WRONLY)
            self.status = _NO_OUTPUT
        else:
            self.batch = process_trees.spawn(script, environment, request.folder, self.log, error)
            os.close(error)
        steps = self.job.steps
        while self.becomes is None or self.status is None or any(map(fifo.has_reader, steps.iterdir())):
            if self.status is None or self.becomes is not None:
                self._wait(min(self.warn_at, self.limit_at, self.yield_at, self.kill_at))
                self._watch_the_clock()
            else:
                self._end(EmulatedState.COMPLETED if self.status == 0 else EmulatedState.FAILED)
        while remaining := self._processes():
            self._kill(remaining)
            fifo.wait([self.signals], 0.1)
            self._reap()
        os.close(self.log)
        return self.becomes

    def _open(self, pattern: str) -> int:
        names = symbols(self.job.id, self.record, self.request.name, self.record.nodes[0])
        path = Path(self.request.folder, expand(pattern, names))
        return open_output(os.fspath(path), append=self.request.append)

    def _watch_the_clock(self) -> None:
        now = time.monotonic()
        if now >= self.warn_at:
            batch_only = self.request.warn_batch_only
            sent = self._signal(self.request.warning_signal, steps=not batch_only, batch=batch_only)
            self.warn_at = math.inf if sent else now + _LOOK_AGAIN_SECONDS  # no step is running yet
        if now >= self.limit_at:
            self.limit_at = math.inf
            self._say("DUE TO TIME LIMIT")
            self._end(EmulatedState.TIMEOUT)
        if now >= self.yield_at:
            self.yield_at = math.inf
            self._say("DUE TO PREEMPTION")
            self._end(EmulatedState.PENDING if self.request.requeue else EmulatedState.PREEMPTED)
        if now >= self.kill_at:
            self.kill_at = math.inf
            self._kill(self._processes())
            self._signal(signal.SIGKILL, steps=True, batch=False)  # steps started from outside the job

    def _preempt(self) -> None:
        """Another job needs the room: warn, as with preempt_send_user_signal, and end after the grace time.

        Without a signal to warn with, the steps get TERM.
        """
        if self.record.state is EmulatedState.RUNNING and self.yield_at == math.inf:
            self.yield_at = time.monotonic() + _GRACE_SECONDS
            self._note(preempted=time.time())
            if self.request.warning_signal:
                batch_only = self.request.warn_batch_only
                self._signal(self.request.warning_signal, steps=not batch_only, batch=batch_only)
            else:
                for number in (signal.SIGCONT, signal.SIGTERM):
                    self._signal(number, steps=True, batch=False)

    def _end(self, becomes: EmulatedState) -> None:
        """Ask all processes to exit, and KILL those still alive after KillWait."""
        if self.record.state is EmulatedState.PENDING:
            self._note(state=becomes, ended=time.time())
            return
        if self.becomes in (None, EmulatedState.PENDING):  # a job that is being requeued can still be cancelled
            self.becomes = becomes
        if self.record.state is EmulatedState.RUNNING:
            self._note(state=EmulatedState.COMPLETING)
            self.warn_at = self.limit_at = self.yield_at = math.inf
            self.kill_at = time.monotonic() + self.machine.kill_wait
            for number in (signal.SIGTERM, signal.SIGCONT):
                self._signal(number, steps=True, batch=True)

    def _lose_node(self, node: int) -> None:
        """Like a power failure: nothing there can exit cleanly. srun and the batch script run on the first node."""
        if self.request.no_kill and node != self.record.nodes[0]:
            left = [place for place, held in enumerate(self.record.nodes) if held != node]
            nodes, gpus = ([held[place] for place in left] for held in (self.record.nodes, self.record.gpus))
            self._signal(signal.SIGKILL, steps=True, batch=False, node=str(node))
            self._note(nodes=nodes, gpus=gpus)
            return
        if node == self.record.nodes[0]:
            self._kill(self._processes())
        else:
            self._signal(signal.SIGKILL, steps=True, batch=False, node=str(node))
        self._say("DUE TO NODE FAILURE")
        self._end(EmulatedState.PENDING if self.request.requeue else EmulatedState.NODE_FAIL)

    def _signal(self, number: int, *, steps: bool, batch: bool, node: str = "all") -> bool:
        """Signal the steps, the batch script, or both; False if there was none.

        Only the shell of the batch script is signalled, as with proctrack/cgroup: its helpers (date, mkdir) finish.
        """
        paths = list(self.job.steps.iterdir()) if steps else []
        reached = [fifo.send(path, str(int(number)), node) for path in paths]
        if batch and self.status is None:
            os.kill(self.batch, number)
            return True
        return any(reached)

    # Commands and events

    def _wait(self, until: float) -> None:
        """Wait for a command, the end of a process, or the time `until`, and handle it."""
        fifo.wait([_CONTROL, self.signals], max(0.0, until - time.monotonic()) if until < math.inf else None)
        self._reap()
        for line in fifo.drain(_CONTROL).decode().splitlines():
            mailbox, *words = line.split()
            fifo.send(self.job.folder / mailbox, self._answer(words))

    def _answer(self, words: list[str]) -> str:
        """Carry out a command; returns an empty string, or Slurm's error message."""
        pending = self.record.state is EmulatedState.PENDING
        match words:
            case ["cancel"]:
                self._say("")
                self._end(EmulatedState.CANCELLED)
            case ["split", indices] if pending:
                if tasks := [task for task in jobs.parse_indices(indices) if task in self.record.tasks]:
                    self._split(tasks)
            case ["throttle", number] if self.record.array:
                self._note(throttle=int(number))
                jobs.nudge(self.machine)
            case ["signal", *_] if pending and self.record.array:
                pass
            case ["requeue" | "signal", *_] if pending:
                return "Job is pending execution"
            case ["requeue"] if not self.request.requeue:
                return "Requested operation is presently disabled"
            case ["requeue"]:
                self._say("DUE TO JOB REQUEUE")
                self._end(EmulatedState.PENDING)
            case ["signal", number, scope]:
                self._signal(int(number), steps=scope != "batch", batch=scope != "steps")
            case ["exclude", *nodes] if pending or self.becomes is EmulatedState.PENDING:
                self._note(excluded=tuple(map(int, nodes)))
            case ["exclude", *_]:
                return "Job is no longer pending execution"
            case ["wait-for", text] if pending:
                waits_for = scheduling.open_dependencies(self.machine, scheduling.parse_dependencies(text))
                self._note(dependencies=waits_for, reason=scheduling.WAITS if waits_for else "None")
            case ["wait-for", _]:
                return "Job is no longer pending execution"
            case ["hold"] if not pending and not self.record.array:
                return "Job is no longer pending execution"
            case ["hold"] if pending:
                self._note(reason=HELD)
                jobs.nudge(self.machine)
            case ["release"] if self.record.reason == HELD:
                self._note(reason="None")
            case ["preempt"]:
                self._preempt()
            case ["node-down", node] if int(node) in self.record.nodes:
                self._lose_node(int(node))
        return ""

    def _reap(self) -> None:
        fifo.drain(self.signals)
        for pid, status in process_trees.reaped():
            if pid == self.batch:
                self.status = status

    def _processes(self) -> list[int]:
        """All processes of the job. Jobs that it submitted are descendants too, but continue."""

        def is_supervisor(pid: int) -> bool:
            try:
                return Path(f"/proc/{pid}/fd/{_CONTROL}").readlink().is_relative_to(self.machine.jobs)
            except OSError:
                return False

        parents = {pid: stat.parent for pid, stat in stats().items() if not stat.has_ended}
        return sorted(descendants(parents, {os.getpid()}, is_supervisor) - {os.getpid()})

    def _kill(self, pids: list[int]) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _say(self, why: str) -> None:
        """What slurmstepd writes into the batch script's log when it ends a job."""
        if self.record.state is not EmulatedState.RUNNING:
            return
        words = " ".join(filter(None, [time.strftime("%Y-%m-%dT%H:%M:%S"), why]))
        node = node_name(self.record.nodes[0])
        message = f"slurmstepd: error: *** JOB {self.job.id} ON {node} CANCELLED AT {words} ***\n"
        os.write(self.log, message.encode())

    def _note(self, **changes: object) -> None:
        self.record = self.record._replace(**changes)  # type: ignore[arg-type]
        self.job.write(self.record)
