"""Command: the user's own program, with the variables that torch.distributed and similar libraries read.

    clusterctl submit command --follow -- python train.py

The program gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, NODE_RANK, MASTER_ADDR and MASTER_PORT; its output is
the rank's log, its exit code is the task's. Needs no torch, and imports little: a large run has thousands of these
processes next to the programs (docs/decisions/programs-and-their-environment.md).
"""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
import textwrap
import threading
import time
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from clusterctl.engine.task import meeting
from clusterctl.engine.task.node_telemetry import GpuReadings, start_telemetry
from clusterctl.program import CHECKPOINTS, KEEP, RESTART_FILE, STOP_FILE
from clusterctl.shared.errors import Cause, ProgramEnded, TaskError
from clusterctl.shared.node.idleness import observe
from clusterctl.shared.node.leftovers import end_own
from clusterctl.shared.node.processes import ProcessTree, has_signal, tied_to_this
from clusterctl.shared.node.signals import EXIT_TERMINATED, WARNING_SIGNAL, KilledBy, LeftForNow
from clusterctl.shared.record.fields import Fields
from clusterctl.shared.record.files import with_retries, write_text
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.marks import EXIT_RESTART, asked_for_restart, go_back_unasked, restart_file
from clusterctl.shared.record.stamp import LogTimes
from clusterctl.shared.record.states import State

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.shared.node.events import Context
    from clusterctl.shared.node.signals import StopRequest
    from clusterctl.shared.record.layout import Attempt
    from clusterctl.shared.record.place import Place


_LOOK_SECONDS = 1.0
_TAKE_SECONDS = 0.1  # between checks whether the program handles the warning
_TERM_SECONDS = 1.0  # Slurm ends the processes of a step one by one
_LINE_PREFIX = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"  # torchrun's and accelerate's
_LAUNCHER = re.compile(r"\b(torchrun|torch\.distributed\.(run|launch)|accelerate|deepspeed)\b")
_SAVING_SECONDS = 20.0  # after TERM, for a program that saves then: below Slurm's KillWait, 30 s by default
_LEAVING_SECONDS = 5.0  # from TERM to SIGKILL for a program that has not left before the time limit
_SUMMARY_SECONDS = 1.5  # torchrun looks at its workers every 0.1 s, and ends the others of its node first
# deepspeed exits with -n, as a byte, if signal n ended a worker.
_OF_DEEPSPEED = frozenset(256 - number for number in signal.Signals)
# Signals that end a crashing program; a shell that ran it exits with 128 + n.
_CRASHES = frozenset(
    {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGKILL, signal.SIGSEGV, signal.SIGSYS}
)


class CommandJob(NamedTuple):
    """What a task needs from its job, because importing `spec` would double the size of this process."""

    argv: tuple[str, ...]
    checkpoints_kept: int
    saves_on: signal.Signals
    seconds_to_leave: float | None  # after the warning, for a program whose run goes back to the queue unasked
    gpus: int = 0  # of each node, all visible to a task that is alone on its node

    @classmethod
    def of(cls, context: Context) -> CommandJob:
        record = Fields(context.record)
        restart, warning = record.table("restart"), record.table("resources").whole("warning") or 0
        saves_on = getattr(signal, f"SIG{restart.text('signal')}", WARNING_SIGNAL)
        to_leave = warning - min(30.0, max(2 * _LEAVING_SECONDS, warning / 4)) if restart.flag("at_limit") else None
        kept = record.table("checkpoint").whole("keep") or 1
        resources = record.table("resources")
        gpus = resources.whole("gpus_per_node") or int(resources.text("gpus_per_node").rpartition(":")[2] or 0)
        gpus *= not resources.text("gpus_per_task")
        return cls(record.texts("argv"), kept, saves_on, to_leave, gpus)


class Program:
    """The program of a rank. While `wait` waits for it, it is signalled to save before its job ends.

    If `restart.at_limit` is set, it is ended before the time limit.
    """

    def __init__(self, argv: list[str], variables: Mapping[str, str], job: CommandJob, context: Context) -> None:
        """Start it, and observe it for the watchdog. Raises TaskError."""
        self._job, self._context = job, context
        try:
            # Keep srun's descriptors open: MPI finds its ranks through the one in PMI_FD.
            self.child = subprocess.Popen(
                argv, env={**os.environ, **variables}, preexec_fn=tied_to_this(), close_fds=False
            )
        except OSError as error:
            hint = "argv[0] is a program on the nodes' PATH, or a path seen from the job's code folder"
            if isinstance(error, PermissionError) and Path(argv[0]).is_file():
                hint = f"make it executable: chmod +x {shlex.quote(argv[0])}"
            raise TaskError(f"cannot run {argv[0]}: {error.strerror}", hint) from None
        context.stop.before_leaving = partial(end_own, [self.child.pid])
        if mentions_launcher(argv):
            context.stop.hear_out = partial(hear_out, self.child)
        if context.attempt is not None:
            gpus, events = GpuReadings(), context.events
            if events.link is not None:
                events.link.handlers["gpus"] = gpus.take
            events.heart.observer = observe(self.child.pid, context.attempt, context.place, gpus)
        self._tree = ProcessTree(self.child.pid)
        self._told: set[tuple[int, int]] = set()
        self._tell_at = 0.0
        self._leave_at: float | None = None
        self._asked_to_leave = False
        self.handles_term = False

    def wait(self, stop_file: Path, ports: Sequence[int], times: LogTimes | None, grace: float = 0.0) -> int:
        """Wait for it to end, and pass on the warning, the job's end and Ctrl-C meanwhile; returns its `returncode`.

        The warning also creates a file, for programs that do not handle the signal. A program that has not installed
        its handler yet gets the signal once it has. If another user listens on one of `ports`, which other ranks would
        trust, the program is killed. After TERM it has `grace` seconds, by default those of any task. Raises TaskError.
        """
        child, stop, ending, checked = self.child, self._context.stop, False, 0.0

        def reap() -> None:
            child.wait()
            stop.changed.set()

        threading.Thread(target=reap, name="program", daemon=True).start()
        while child.poll() is None:
            try:
                stop.changed.wait(_TAKE_SECONDS if stop.warned and not self._told else _LOOK_SECONDS)
            except KeyboardInterrupt:
                child.send_signal(signal.SIGINT)
            stop.changed.clear()
            self.handles_term = self.handles_term or takes(child.pid, signal.SIGTERM)
            if times:
                times.look()
            if ports and time.monotonic() - checked > _LOOK_SECONDS:
                checked = time.monotonic()
                if taken := next(filter(meeting.taken_by_another, ports), None):
                    child.kill()
                    child.wait()
                    message = f"another user is listening on a port of this run: {taken}"
                    raise TaskError(message, "report it, and submit again; see docs/security.md", Cause.NETWORK)
            if stop.warned:
                _show_warning(stop_file)
                self._see_to_warning()
            if stop.terminated and not ending:
                ending = True
                # It saves now, by the signal that its job names, unless nobody will resume the run.
                saves = self._job.saves_on != WARNING_SIGNAL and self._tell()
                if not saves:
                    child.send_signal(signal.SIGTERM)
                attempt = self._context.attempt
                saves = saves and (attempt is None or not RunDir(attempt.path.parents[1]).cancel_json.exists())
                if saves or grace:
                    stop.hold(max(grace, _SAVING_SECONDS * saves))
        if times:
            times.look(last=True)
        return child.wait()

    def _tell(self) -> bool:
        """Signal those of the program's processes that save on it, each once; returns whether there were any so far."""
        for pid, started in self._tree.listeners(self._job.saves_on) - self._told:
            with suppress(ProcessLookupError):
                os.kill(pid, self._job.saves_on)
            self._told.add((pid, started))
        return bool(self._told)

    def _see_to_warning(self) -> None:
        """Called again and again after the warning."""
        now = time.monotonic()
        if now >= self._tell_at or takes(self.child.pid, self._job.saves_on):
            self._tell_at = now + _LOOK_SECONDS
            self._tell()
        if self._job.seconds_to_leave is None:
            return
        self._leave_at = self._leave_at or now + self._job.seconds_to_leave
        if now >= self._leave_at + _LEAVING_SECONDS:
            end_own([self.child.pid])
        elif now >= self._leave_at and not self._asked_to_leave:
            self._asked_to_leave = True
            self.child.terminate()

    def means_restart(self, code: int) -> bool:
        """Whether a program that has ended with `code` after the warning left because of it."""
        return self._job.seconds_to_leave is not None and (code != 0 or bool(self._told) or self._asked_to_leave)


def main(context: Context) -> None:
    """Run the program and exit with its exit code, or 128 + n after signal n."""
    place, attempt, events, stop = context.place, context.attempt, context.events, context.stop
    job = CommandJob.of(context)
    if not job.argv:
        raise TaskError("workload command needs a program", 'set argv, such as argv = ["python", "train.py"]')
    end_telemetry = start_telemetry(events.link, place)
    events.state(State.RENDEZVOUS)
    with ExitStack() as stack:
        stop_file = own_folder(stack) / "stop"
        argv, hostfile = with_python(job.argv), attempt.hostfile if attempt else None
        if hostfile is not None and place.rank == 0:
            write_hostfile(hostfile, argv, job.gpus, place)  # before the others learn the address
        variables = _variables(context, job, stop_file, stack)
        events.state(State.TRAINING)
        argv = completed(argv, job.gpus, place, variables, hostfile)
        program = Program(argv, variables, job, context)
        ports = [int(variables["MASTER_PORT"])] if place.rank == 0 else []
        code = program.wait(stop_file, ports, LogTimes(attempt, place.rank) if attempt else None)
    end_telemetry()
    if stop.leaving:  # the program was killed by the thread that ends this process
        threading.Event().wait()
    asked = code == EXIT_RESTART and attempt is not None and asked_for_restart(attempt)
    if attempt and stop.warned and not stop.terminated and not asked and program.means_restart(code):
        go_back_unasked(attempt, place.rank)
        raise LeftForNow
    if code == 0 and (stop.terminated or (program.handles_term and hear_of_term(stop))):
        raise SystemExit(EXIT_TERMINATED)  # it has left because of TERM, perhaps after saving: it has not finished
    if code != 0:
        exit_like(code, job.argv, context, asked)


def _variables(context: Context, job: CommandJob, stop_file: Path, stack: ExitStack) -> dict[str, str]:
    """torchrun's variables for this rank, with rank 0's address, whose port stays reserved within `stack`.

    Also paths for programs that save and resume (`clusterctl.program`); a shell script can use them, too.
    """
    place, attempt = context.place, context.attempt
    if attempt is None or place.rank == 0:
        holder = stack.enter_context(meeting.reserve_port(meeting.own_address(place)))
        host, port = holder.getsockname()
        if attempt is not None:
            meeting.publish(attempt, host, port)
    else:
        host, port = meeting.find(attempt)
    return {
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.world_size),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(local_world_size(place)),
        "NODE_RANK": str(place.node_rank),
        "GROUP_RANK": str(place.node_rank),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        **(paths_of(attempt, job, stop_file) if attempt else {}),
    }


def paths_of(attempt: Attempt, job: CommandJob, stop_file: Path) -> dict[str, str]:
    """The variables with what a program needs to save and resume."""
    folder = RunDir(attempt.path.parents[1]).checkpoints
    with_retries(lambda: folder.mkdir(mode=0o700, exist_ok=True))
    return {
        STOP_FILE: str(stop_file),
        RESTART_FILE: str(restart_file(attempt)),
        CHECKPOINTS: str(folder),
        KEEP: str(job.checkpoints_kept),
    }


def mentions_launcher(argv: Sequence[str]) -> bool:
    """Whether a command, or the line of a shell in it, names a program that starts workers itself."""
    return bool(_LAUNCHER.search(shlex.join(argv)))


def completed(argv: list[str], gpus: int, place: Place, variables: dict[str, str], hostfile: Path | None) -> list[str]:
    """The program's command with what its launcher must know and the user left out; adds to `variables` for launchers.

    Unless several tasks of a node start one each: then only the user knows what they are for.
    """
    if not mentions_launcher(argv):
        return argv
    variables["CLUSTERCTL_HOSTFILE"] = str(hostfile) if hostfile else ""
    if _LINE_PREFIX not in os.environ:  # by default `--tee 3` names the worker of each line by its local rank
        variables[_LINE_PREFIX] = "[rank${rank}]: "
    from clusterctl.shared.node.launch_command import LaunchedJob, find_launch  # late: only for launchers

    launch = find_launch(argv)
    if launch is None or place.world_size != place.nodes:
        return argv
    names = ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "CLUSTERCTL_HOSTFILE")
    here = LaunchedJob(place.nodes, gpus, *(variables[name] for name in names))
    return launch.completed(launch.filled_in(here, os.environ))


def write_hostfile(path: Path, argv: list[str], gpus: int, place: Place, first_node: int | None = None) -> None:
    """Write the nodes in the order of their ranks, for deepspeed, and for scripts that use CLUSTERCTL_HOSTFILE."""
    if not mentions_launcher(argv):
        return
    from clusterctl.shared.node.launch_command import LaunchedJob, expanded, find_launch, hostfile

    launch = find_launch(argv)
    slots = launch.workers(LaunchedJob(place.nodes, gpus)) if launch else max(1, gpus)
    names = expanded(os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST", ""))
    if first_node is not None:  # of those of other roles
        names = names[first_node : first_node + place.nodes]
    if len(names) == place.nodes:
        write_text(path, hostfile(names, slots))


def local_world_size(place: Place, environment: Mapping[str, str] = os.environ) -> int:
    """The number of ranks on this node, from Slurm's list of tasks per node: "2(x3),1" means 2, 2, 2, 1."""
    counts: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", environment.get("SLURM_STEP_TASKS_PER_NODE", "")):
        counts += [int(count)] * int(times or 1)
    return counts[place.node_rank] if place.node_rank < len(counts) else place.world_size // place.nodes


def with_python(argv: Sequence[str]) -> list[str]:
    """The program's words; some systems have only python3."""
    no_python = argv[0] == "python" and shutil.which("python") is None
    return ["python3" if no_python else argv[0], *argv[1:]]


def hear_of_term(stop: StopRequest) -> bool:
    """Whether this task was terminated: TERM may reach it a moment after it has reached the program."""
    deadline = time.monotonic() + _TERM_SECONDS
    while not stop.terminated and time.monotonic() < deadline:
        time.sleep(0.05)
    return stop.terminated


def hear_out(launcher: subprocess.Popen[bytes]) -> None:
    """Let a launcher say which of its workers was killed, if that is why srun ends all tasks: TERM would stop it.

    The launchers of other nodes see that their workers have lost a peer just as early, and may be the first to leave.
    """
    deadline = time.monotonic() + _SUMMARY_SECONDS
    while launcher.returncode is None and time.monotonic() < deadline:  # another thread waits for it
        time.sleep(0.02)
    if launcher.returncode is not None:
        time.sleep(_TERM_SECONDS)  # until this task has left by itself, as if there had been no TERM


def _show_warning(stop_file: Path) -> None:
    """Create the file that a program looks for. Its folder may have been removed: temporary files are, after days."""
    with suppress(OSError):  # the program gets the signal anyway
        folder = stop_file.parent
        if not os.path.lexists(folder):
            folder.mkdir(mode=0o700)
        if folder.lstat().st_uid == os.geteuid() and stat.S_ISDIR(folder.lstat().st_mode) and not stop_file.exists():
            stop_file.touch()


def takes(pid: int, number: signal.Signals) -> bool:
    """Whether a process handles a signal, or blocks it for now."""
    return has_signal(pid, number, "SigCgt", "SigBlk")


def exit_like(code: int, argv: Sequence[str], context: Context, asked: bool) -> NoReturn:
    """Exit like the program, which has failed; first record why, unless it was asked to end, or asks for a restart."""
    attempt, stop = context.attempt, context.stop
    number, worker = killing_signal(code), None
    if attempt is not None and (code == 1 or code in _OF_DEEPSPEED):  # what launchers exit with for a killed worker
        from clusterctl.shared.node.launchers import read_summary  # late: only for a program that fails

        summary = read_summary(attempt.log(context.place.rank, "err" if code == 1 else "out"))
        if summary and killing_signal(summary.first.exit_code):
            worker, number = summary.first, killing_signal(summary.first.exit_code)
    if number == signal.SIGTERM:
        hear_of_term(stop)
    if not stop.terminated and not asked:
        name = textwrap.shorten(" ".join(argv), 60)
        if worker is not None:
            name += ": a worker" if worker.rank is None else f": worker {worker.rank}"
        context.events.exception(
            ProgramEnded(f"{name} {outcome(code, number)}", code if number is None else 128 + number, number)
        )
    if number == signal.SIGTERM:  # mostly from Slurm, which ends all ranks, on a machine too busy to tell this task
        raise SystemExit(EXIT_TERMINATED)
    raise SystemExit(code) if number is None else KilledBy(number)


def killing_signal(code: int) -> int | None:
    """The signal that killed the program, from Popen's code or that of a shell around it; None if it exited."""
    return -code if code < 0 else code - 128 if code - 128 in _CRASHES else None


def outcome(code: int, number: int | None) -> str:
    """How a program has ended, in words; `number` is the signal that killed it, if one did."""
    if number is None:
        return f"exited with {code}"
    name = next((one.name for one in signal.Signals if one == number), f"signal {number}")  # real-time: no name
    return f"was killed by {name}"


# A temporary folder on the node, which is removed when its process ends.


_PREFIX = "clusterctl-stop-"
_UNLOCKED_SECONDS = 60.0  # locking a new folder never takes that long


def own_folder(stack: ExitStack) -> Path:
    """Create a temporary folder for this process, within `stack`; remove those that killed processes left behind.

    Each process holds a lock on its folder, which the kernel releases however the process ends.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # in use, another user's, or gone meanwhile
            if time.time() - left.lstat().st_mtime > _UNLOCKED_SECONDS:
                os.close(_locked(left))
                shutil.rmtree(left, ignore_errors=True)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)))
    stack.callback(os.close, _locked(folder))
    return folder


def _locked(folder: Path) -> int:
    """Open and lock `folder`. Raises BlockingIOError if another process has locked it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
