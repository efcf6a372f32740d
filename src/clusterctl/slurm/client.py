"""The one place that runs Slurm's commands on the login side (sbatch through submitit excepted)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clusterctl.errors import SlurmError
from clusterctl.slurm import arrays, queue
from clusterctl.slurm.accounting import SACCT, SHOW_JOB, Accounted, parse_accounting, parse_shown
from clusterctl.slurm.nodes import SINFO, Inventory, parse_nodes
from clusterctl.slurm.shared import SharedAnswers, Told, shared_folder

if TYPE_CHECKING:
    from clusterctl.slurm.queue import Allocation, Snapshot, Step, WaitingJob
    from clusterctl.spec import Cluster

TIMEOUT_SECONDS = 10.0  # Slurm's own MessageTimeout: what has not answered by then will not

Run = Callable[[Sequence[str], Mapping[str, str]], "subprocess.CompletedProcess[str]"]
"""Runs a command line in an environment. Raises subprocess.TimeoutExpired when no answer comes."""

_CONFIGURATION_SECONDS = 3600.0  # it changes when an administrator restarts Slurm
_MOST_ELEMENTS = re.compile(r"^MaxArraySize\s*=\s*([0-9]{1,9})$", re.MULTILINE)  # the largest index is one less
_USUAL_ELEMENTS = 1001

_CONTROLLER_DOWN = "the controller may be down; ask it with: scontrol ping"
# These beat `#SBATCH` lines, filter what squeue and scancel see, or containerise the batch script.
# TORCHELASTIC_RUN_ID would make the tasks believe that torchrun started them.
_STEERING = ("SBATCH_", "SRUN_", "SALLOC_", "SLURM_", "SQUEUE_", "SCANCEL_", "PYXIS_", "ENROOT_", "TORCHELASTIC_")
# What scancel says of a job that ended before it was asked to: that is what was wanted.
_ALREADY_GONE = ("Invalid job id specified", "Job/step already completing or completed")


def built_environment(base: Mapping[str, str], slurm_conf: str | None) -> dict[str, str]:
    """`base` without the variables that steer Slurm, pyxis, enroot and torch behind our back.

    SLURM_CONF alone stays, for it says where the controller is; the cluster's `slurm_conf` wins over it.
    """
    kept = {name: value for name, value in base.items() if name == "SLURM_CONF" or not name.startswith(_STEERING)}
    return kept | ({"SLURM_CONF": slurm_conf} if slurm_conf else {})


def run_command(
    argv: Sequence[str], environment: Mapping[str, str], timeout: float = TIMEOUT_SECONDS
) -> subprocess.CompletedProcess[str]:
    """Run `argv` and keep what it says; it is killed when `timeout` seconds have passed."""
    return subprocess.run(
        argv,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",  # as Python reads paths: a run is found by its folder
        timeout=timeout,
        check=False,
    )


@dataclass(frozen=True)
class Slurm:
    """The Slurm commands of one cluster. Nothing is retried: the caller knows whether to ask again.

    What many would ask for is asked once for all processes of the user (`recent`, `snapshot`); without `shared` every
    question goes to Slurm.
    """

    locate: Callable[[str], str | None]  # a command's name -> its absolute path
    environment: Mapping[str, str] = field(default_factory=dict)
    run: Run = run_command
    clock: Callable[[], float] = time.time
    shared: SharedAnswers | None = None

    @classmethod
    def of(cls, cluster: Cluster) -> Slurm:
        """The commands on PATH - told where the sandbox's controller is - or the emulator's stand-ins for them."""
        locate, environment = _commands(cluster)
        if cluster.polling_floor == 0:
            return cls(locate, environment)
        from clusterctl.config.places import state_folder

        folder = shared_folder((locate("squeue"), environment.get("SLURM_CONF")), state_folder)
        return cls(locate, environment, shared=SharedAnswers(folder, float(cluster.polling_floor)))

    def path_of(self, command: str) -> str:
        """The absolute path of a Slurm command; raises SlurmError where there is none."""
        path = self.locate(command)
        if path is None:
            raise SlurmError(f"no {command} on PATH", "this is no login node of a Slurm cluster; try: --cluster local")
        return path

    def snapshot(self) -> Snapshot:
        """All jobs of this user, those included that ended within Slurm's MinJobAge (300 s).

        It may be as old as the cluster's polling floor, and older where Slurm does not answer any more.
        """
        told = self.recent(*queue.SQUEUE)
        return queue.parse_queue(told.text, told.taken_at, told.problem)

    def recent(self, command: str, *arguments: str, max_age: float | None = None) -> Told:
        """What `command` printed not long ago, to whichever process of this user: at most `max_age` seconds.

        The cluster's polling floor is the least of ages. Raises SlurmError where nobody ever got an answer.
        """
        if self.shared is None:
            taken_at = self.clock()  # before the question: what happened since may be missing
            return Told(self.answer(command, *arguments), taken_at)
        return self.shared.told((command, *arguments), lambda: self.answer(command, *arguments), max_age)

    def forget(self) -> None:
        """Answers from before what this process has just done are not good enough for anybody."""
        if self.shared is not None:
            self.shared.forget()

    def nodes(self, max_age: float | None = None) -> Inventory:
        """All nodes and partitions that this user may see, at most `max_age` seconds ago, or as old as `snapshot`."""
        told = self.recent(*SINFO, max_age=max_age)
        return parse_nodes(told.text, told.taken_at)

    def waiting(self, job_id: str) -> WaitingJob | None:
        """One job that waits, and why; None where Slurm knows no such job."""
        return queue.parse_waiting(self.answer(*queue.WAITING_JOB, job_id))

    def most_elements(self) -> int:
        """How many elements an array may have (MaxArraySize). Raises SlurmError."""
        told = self.recent("scontrol", "show", "config", max_age=_CONFIGURATION_SECONDS)
        match = _MOST_ELEMENTS.search(told.text)
        return int(match[1]) if match else _USUAL_ELEMENTS

    def accounted(self, job_ids: Sequence[str]) -> tuple[Accounted, ...]:
        """What the database keeps of these jobs and their steps; raises SlurmError where there is no accounting."""
        return parse_accounting(self.answer(*SACCT, ",".join(job_ids)))

    def shown(self, job_id: str) -> tuple[Accounted, ...]:
        """What the controller knows of one job, for some minutes (MinJobAge) after its end."""
        answer = self._ask(*SHOW_JOB, job_id)
        if answer.returncode and "Invalid job id" not in answer.stderr:
            raise _refusal("scontrol", answer.stderr, answer.returncode)
        return parse_shown(answer.stdout)

    def allocation(self, job_id: str) -> Allocation | None:
        """The job with this number, if it is this user's own and Slurm knows it."""
        answer = self._ask(*queue.OWN_JOB, job_id)
        if answer.returncode and "Invalid job id" not in answer.stderr:
            raise _refusal("squeue", answer.stderr, answer.returncode)
        return queue.parse_allocation(answer.stdout)

    def steps(self, job_id: str) -> tuple[Step, ...]:
        """The steps of one job that run now."""
        return queue.parse_steps(self.answer(*queue.STEPS, job_id))

    def signal(self, signal: str, targets: Sequence[str], *, batch: bool = False) -> None:
        """Send a signal, named as in "TERM", to steps such as 123.4, or to the batch scripts of jobs."""
        self._scancel(f"--signal={signal}", *(["--batch"] if batch else []), *targets)

    def cancel(self, job_ids: Sequence[str]) -> None:
        """End these jobs, pending or running, with one scancel; those that have ended already are no error."""
        self._scancel(*arrays.together(job_ids))

    def _scancel(self, *words: str) -> None:
        answer = self._ask("scancel", *words)
        complaints = [line for line in answer.stderr.splitlines() if not any(known in line for known in _ALREADY_GONE)]
        self.forget()
        if answer.returncode < 0 or (answer.returncode and complaints):
            raise _refusal("scancel", "\n".join(complaints), answer.returncode)

    def release(self, job_ids: Sequence[str]) -> None:
        """Let jobs start that were submitted with --hold."""
        self.answer("scontrol", "release", *arrays.together(job_ids))
        self.forget()

    def requeue(self, job_ids: Sequence[str]) -> None:
        """Send jobs back to the queue, to be started again from their last checkpoint."""
        self.answer("scontrol", "requeue", *job_ids)
        self.forget()

    def answer(self, command: str, *arguments: str) -> str:
        """What `command` prints; raises SlurmError where there is none, or it fails, or takes too long."""
        answer = self._ask(command, *arguments)
        if answer.returncode:
            raise _refusal(command, answer.stderr, answer.returncode)
        return answer.stdout

    def _ask(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        # Times as seconds since the epoch: no locale and no time zone to parse.
        # And all indices of an array that wait, however many: squeue cuts them at 64 letters.
        environment = {**self.environment, "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
        try:
            return self.run([self.path_of(command), *arguments], environment)
        except subprocess.TimeoutExpired as error:
            message = f"{command} did not answer within {error.timeout:.0f} s"
            raise SlurmError(message, _CONTROLLER_DOWN) from error
        except OSError as error:
            raise SlurmError(f"{command} cannot be run: {error}", f"try it by hand: {command} --version") from error


def _commands(cluster: Cluster) -> tuple[Callable[[str], str | None], dict[str, str]]:
    """Where the commands of `cluster` are, and their environment."""
    if cluster.kind == "sandbox":
        from clusterctl.sandbox.description import commands

        return shutil.which, built_environment(os.environ, str(commands()))
    environment = built_environment(os.environ, cluster.slurm_conf)
    if not cluster.is_slurm:  # on a cluster none of this is there to be imported
        from clusterctl.config.places import state_folder
        from clusterctl.emulator.install import ensure_stand_ins

        stand_ins = ensure_stand_ins(state_folder(), cluster.emulator)
        return lambda command: str(stand_ins / command), environment
    return shutil.which, environment


def _refusal(command: str, complaint: str, code: int) -> SlurmError:
    lines = [line.strip().removeprefix(f"{command}: ").removeprefix("error: ") for line in complaint.splitlines()]
    message = "; ".join(line for line in lines if line) or f"exit code {code}"
    down = "contact slurm controller" in message
    by_hand = "run it directly: srun --help" if command == "srun" else "list your jobs: squeue --me"
    return SlurmError(f"{command}: {message}", _CONTROLLER_DOWN if down else by_hand)
