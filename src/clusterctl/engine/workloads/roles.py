"""Roles: several programs of the user's own side by side in one job, each on its ranks (docs/guides/roles.md).

A rank runs the program of its role as workload `command` would run it, with the variables of torch.distributed for the
ranks of its role. When it starts, starts again and ends is decided by rank 0 for all of them (engine/task/roles.py).
"""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from clusterctl.engine.task import meeting
from clusterctl.engine.task.node_telemetry import start_telemetry
from clusterctl.engine.task.roles import Actor, probe
from clusterctl.engine.workloads import command
from clusterctl.engine.workloads.command import CommandJob, Program
from clusterctl.program import LEADS, ROLE
from clusterctl.shared.errors import Cause, ClusterctlError, RoleFailed, TaskError
from clusterctl.shared.node.leftovers import end_own
from clusterctl.shared.node.role_plan import How, Part, Roles
from clusterctl.shared.node.signals import EXIT_TERMINATED, KilledBy, LeftForNow
from clusterctl.shared.record.fields import Fields
from clusterctl.shared.record.marks import EXIT_RESTART, asked_for_restart, go_back_unasked
from clusterctl.shared.record.place import Place
from clusterctl.shared.record.roles import OF_A_ROLE, Address, Seat, filled, values_of, variable
from clusterctl.shared.record.stamp import LogTimes
from clusterctl.shared.record.states import State

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping
    from pathlib import Path

    from clusterctl.shared.node.events import Context, Events
    from clusterctl.shared.record.layout import Attempt

_PROBE_EVERY_SECONDS = 0.25
_LAST_PROBE_SECONDS = 3.0
_AFTER_SECONDS = 0.5  # the ranks that failed leave first, which srun reports in this order
_GPUS = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def main(context: Context) -> None:
    """Run this rank's program until it has finished, or until the job ends. Raises what `command.main` raises."""
    place, attempt, events = context.place, context.attempt, context.events
    roles = Roles.of(Fields(context.record))
    if roles is None or attempt is None:
        raise TaskError("a job with roles runs only as a run", "start it with clusterctl submit")
    seated = roles.seating
    if (place.nodes, place.world_size) != (seated.nodes, seated.nodes * seated.tasks_per_node):
        started = f"{place.world_size} ranks on {place.nodes} nodes"
        needed = f"{seated.nodes * seated.tasks_per_node} on {seated.nodes}"
        raise TaskError(f"Slurm has started {started}, the roles need {needed}", "", Cause.LAUNCH)
    events.state(State.RENDEZVOUS)
    with ExitStack() as stack:
        stack.callback(start_telemetry(events.link, place))
        host = meeting.own_address(place)
        ports = [stack.enter_context(meeting.reserve_port(host)).getsockname()[1] for _ in range(2)]
        own = Address(host, *ports)
        actor = Actor(roles, place, attempt, own)
        seat = seated.seats.get(place.rank)
        events.heart.observer = _WithoutProgram(waits=seat is not None)
        if seat is None:
            end = actor.wait_for_end()
            actor.leave()
            _leave_as_told(end, events)
            return
        leads, stop_file = seat.role == roles.leading, command.own_folder(stack) / "stop"
        _Performance(context, attempt, roles.parts[seat.role], seat, own, actor, leads, stop_file).run()


def _leave_as_told(end: Fields, events: Events) -> None:
    """Leave after the ranks that failed; recorded before, since srun may kill this rank as soon as they have left."""
    if end.text("how") != How.FINISHED:
        events.exit(EXIT_TERMINATED)
        time.sleep(_AFTER_SECONDS)
        raise SystemExit(EXIT_TERMINATED)


@dataclass
class _Performance:
    """One rank's part: the program of its role, started again as often as rank 0 orders."""

    context: Context
    attempt: Attempt
    part: Part
    seat: Seat
    own: Address
    actor: Actor
    leads: bool
    stop_file: Path
    argv: list[str] = field(default_factory=list)
    asked: bool = False

    def __post_init__(self) -> None:
        self.job = CommandJob.of(self.context)._replace(argv=self.part.program, gpus=self.part.gpus)

    def run(self) -> None:
        """See `main`."""
        context, actor = self.context, self.actor
        code = 0
        if actor.wait_for_start():
            values = values_of(self.seat, self.own, actor.addresses)
            self.argv = command.with_python([filled(word, values) for word in self.part.program])
            variables, seat = self._variables(values), self.seat
            place = Place(seat.rank, seat.local_rank, seat.node, seat.ranks, seat.nodes)
            hostfile = self.attempt.hostfile.with_name(f"{self.attempt.hostfile.name}.{seat.role}")
            if seat.rank == 0:
                command.write_hostfile(hostfile, self.argv, self.part.gpus, place, seat.first_node)
            command_line = command.completed(self.argv, self.part.gpus, place, variables, hostfile)
            context.events.state(State.TRAINING)
            # Keep to the role's CPUs, if this task may use all CPUs of the job on its node.
            allowed, own = sorted(os.sched_getaffinity(0)), self.seat.cpus
            if str(len(allowed)) == os.environ.get("SLURM_CPUS_ON_NODE") and len(allowed) >= own.stop:
                with suppress(OSError):
                    os.sched_setaffinity(0, allowed[own.start : own.stop])
            try:
                code = self._perform(command_line, variables, filled(self.part.ready, values))
            except TaskError as error:  # it cannot run at all
                context.events.exception(error)
                actor.ended(1, error.message, asked=False)
                actor.leave()
                raise
        self._take_leave(code)

    def _perform(self, command_line: list[str], variables: Mapping[str, str], ready: str) -> int:
        """Run the program again and again; returns its last exit code when the job ends."""
        context, stop = self.context, self.context.stop
        times = LogTimes(self.attempt, context.place.rank)
        ports = [self.own.port, *([self.own.meeting] if self.seat.rank == 0 else [])]
        while True:
            logs = {log: _size(log) for log in (self.attempt.log(context.place.rank, one) for one in ("out", "err"))}
            program = Program(command_line, variables, self.job, context)
            child = program.child
            self.actor.on_end = partial(self._end, child)
            if self.actor.end is not None:
                self._end(child)
            watch = threading.Thread(target=self._watch, args=(ready, logs, child), name="ready", daemon=True)
            watch.start()
            code = program.wait(self.stop_file, ports, times, self.part.grace)
            watch.join(_LAST_PROBE_SECONDS)
            if stop.leaving:  # the program was killed by the thread that ends this process
                threading.Event().wait()
            end_own([child.pid])  # what it has left would keep its port
            by_term = code in (-signal.SIGTERM, EXIT_TERMINATED) or (code == 0 and program.handles_term)
            if self.actor.end is None and (stop.terminated or (by_term and command.hear_of_term(stop))):
                if code == 0:  # TERM from outside, which all ranks get
                    raise SystemExit(EXIT_TERMINATED)
                command.exit_like(code, self.argv, self.context, asked=False)
            if self.actor.end is not None:
                return 0  # it was ended, whatever it says
            self.asked = code == EXIT_RESTART and asked_for_restart(self.attempt)
            unasked = stop.warned and not self.asked and program.means_restart(code)
            if unasked:
                go_back_unasked(self.attempt, 0)
            why = f"{textwrap.shorten(' '.join(self.argv), 60)} {command.outcome(code, command.killing_signal(code))}"
            order = self.actor.ended(code, why, asked=self.asked or unasked)
            if unasked:
                self.actor.leave()
                raise LeftForNow
            if order is None:
                return code
            again = f"started again ({order.whole('number')}): {order.text('why')}"
            print(f"clusterctl: {again}", file=sys.stderr, flush=True)
            context.events.record("again", why=order.text("why"))

    def _take_leave(self, code: int) -> None:
        """Exit as the end of the job demands, once all programs have ended."""
        actor = self.actor
        end = actor.wait_for_end()
        mine = end.whole("rank") == self.context.place.rank
        left: BaseException | None = None
        if mine and end.text("how") == How.RESTART:
            left = SystemExit(code)
        elif mine and code != 0:
            try:
                command.exit_like(code, self.argv, self.context, self.asked)
            except KilledBy as killed:  # without a restart, its mark must not read "running"
                left = SystemExit(killed.code) if self.part.restart == "never" else killed
            except (SystemExit, ClusterctlError) as error:
                left = error
        elif mine:
            waits = self.part.serves and not actor.was_ready
            hint = "let it listen on {host} or 0.0.0.0, at {port}; a longer time: ready_within" if waits else ""
            left = RoleFailed(end.text("why"), hint)
            self.context.events.exception(left)
        else:
            by = f": {whose}" if (whose := actor.culprit) else ""
            print(f"clusterctl: the job ends{by}: {end.text('why')}", file=sys.stderr, flush=True)
        actor.leave()
        if left is not None:
            raise left
        _leave_as_told(end, self.context.events)

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        """End the program because the job ends: TERM, and SIGKILL after the role's grace period."""
        deadline = time.monotonic() + self.part.grace
        with suppress(ProcessLookupError):
            child.terminate()
        while child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        end_own([child.pid])

    def _watch(self, ready: str, logs: dict[Path, int], child: subprocess.Popen[bytes]) -> None:
        """Report when the program is ready, and until then what its `ready` shows."""
        last = None
        while ready and self.actor.end is None:
            has_ended = child.poll() is not None
            if not (answer := probe(ready, logs)):
                self.actor.ready()
                self.context.events.record("ready")
                return
            if answer != last:
                last = answer
                self.actor.waiting(answer)
            if has_ended:
                return
            time.sleep(_PROBE_EVERY_SECONDS)

    def _variables(self, values: Mapping[str, str]) -> dict[str, str]:
        """The variables of torch.distributed for the ranks of this role, the addresses of all, and the role's own."""
        seat, actor = self.seat, self.actor
        first = actor.addresses[seat.role][0]
        addresses = {variable(role, what): values[f"{role}.{what}"] for role in actor.addresses for what in OF_A_ROLE}
        threads = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(self._cpus_of_a_worker())}
        return {
            **threads,
            "RANK": str(seat.rank),
            "WORLD_SIZE": str(seat.ranks),
            "LOCAL_RANK": str(seat.local_rank),
            "LOCAL_WORLD_SIZE": str(seat.local_ranks),
            "NODE_RANK": str(seat.node),
            "GROUP_RANK": str(seat.node),
            "MASTER_ADDR": first.host,
            "MASTER_PORT": str(first.meeting),
            ROLE: seat.role,
            **({LEADS: "1"} if self.leads else {}),
            "CLUSTERCTL_ROLE_RANK": str(seat.rank),
            "CLUSTERCTL_HOST": self.own.host,
            "CLUSTERCTL_PORT": str(self.own.port),
            **addresses,
            **self._visible_gpus(),
            **command.paths_of(self.attempt, self.job, self.stop_file),
            **{name: filled(text, values) for name, text in self.part.env.items()},
        }

    def _cpus_of_a_worker(self) -> int:
        from clusterctl.shared.node.launch_command import LaunchedJob, find_launch

        launch = find_launch(self.argv) if command.mentions_launcher(self.argv) else None
        workers = (
            launch.workers(LaunchedJob(self.seat.nodes, self.part.gpus)) if launch and self.seat.local_ranks == 1 else 1
        )
        return max(1, len(self.seat.cpus) // workers)

    def _visible_gpus(self) -> dict[str, str]:
        """Only those of the role's on this node, out of the job's. Raises TaskError if there are too few."""
        gpus, found = self.seat.gpus, {}
        for name in _GPUS:
            devices = [one for one in os.environ.get(name, "").split(",") if one]
            if devices and len(devices) < gpus.stop:
                message = f"{self.seat} needs GPUs {gpus.start}-{gpus.stop - 1} of its node, which has {len(devices)}"
                raise TaskError(message, f"{name}={os.environ[name]}", Cause.LAUNCH)
            if devices or name == _GPUS[0]:
                found[name] = ",".join(devices[gpus.start : gpus.stop] or map(str, gpus))
        return found


class _WithoutProgram:
    """What the watchdog sees of a rank whose program does not run: one that waits for others is not idle.

    How long it may wait depends on the `ready_within` of the others. A rank without a role is idle all the time.
    """

    def __init__(self, *, waits: bool) -> None:
        self._waits, self._since = waits, time.monotonic()

    @property
    def idle(self) -> float:
        return 0.0 if self._waits else time.monotonic() - self._since

    def stacks(self) -> str:
        return "waits for other roles" if self._waits else "has no role"


def _size(log: Path) -> int:
    with suppress(OSError):
        return log.stat().st_size
    return 0
