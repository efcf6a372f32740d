"""The only module that runs Slurm's commands on the login node (except sbatch, which runs through submitit)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from clusterctl.launcher.slurm import queue
from clusterctl.launcher.slurm.jobs import (
    LISTED_JOBS,
    SACCT,
    SHOW_JOB,
    Accounted,
    SlurmJob,
    is_of,
    of_array,
    parse_accounted_jobs,
    parse_accounting,
    parse_jobs,
    parse_listed,
    parse_shown,
    sacct_jobs,
)
from clusterctl.launcher.slurm.nodes import SINFO, Inventory, configured_nodes, parse_nodes
from clusterctl.launcher.slurm.shared import CachedAnswer, SharedAnswers, shared_folder
from clusterctl.shared.errors import SlurmError

if TYPE_CHECKING:
    from clusterctl.launcher.slurm.queue import Allocation, ScriptEnd, Snapshot, Step, WaitingJob
    from clusterctl.launcher.slurm.rules import Rules
    from clusterctl.shared.spec import Cluster

TIMEOUT_SECONDS = 10.0  # Slurm's own MessageTimeout

Run = Callable[[Sequence[str], Mapping[str, str]], "subprocess.CompletedProcess[str]"]
"""Runs a command line in an environment. Raises subprocess.TimeoutExpired."""

_CONFIGURATION_SECONDS = 3600.0  # it only changes when an administrator restarts Slurm
_MOST_ELEMENTS = re.compile(r"^MaxArraySize\s*=\s*([0-9]{1,9})$", re.MULTILINE)  # the largest index is one less
_USUAL_ELEMENTS = 1001

_CONTROLLER_DOWN = "the controller may be down; ask it with: scontrol ping"
# These override `#SBATCH` lines, filter squeue and scancel, or run the batch script in a container.
# TORCHELASTIC_RUN_ID would make the tasks think that torchrun started them.
_STEERING = ("SBATCH_", "SRUN_", "SALLOC_", "SLURM_", "SQUEUE_", "SCANCEL_", "PYXIS_", "ENROOT_", "TORCHELASTIC_")
# scancel's errors for a job that has already ended, which is fine.
_ALREADY_GONE = ("Invalid job id specified", "Job/step already completing or completed")


def built_environment(base: Mapping[str, str], slurm_conf: str | None) -> dict[str, str]:
    """`base` without variables that change the behaviour of Slurm, pyxis, enroot and torch.

    Only SLURM_CONF is kept, since it locates the controller; the cluster's `slurm_conf` overrides it.
    """
    kept = {name: value for name, value in base.items() if name == "SLURM_CONF" or not name.startswith(_STEERING)}
    return kept | ({"SLURM_CONF": slurm_conf} if slurm_conf else {})


def run_command(
    argv: Sequence[str], environment: Mapping[str, str], timeout: float = TIMEOUT_SECONDS
) -> subprocess.CompletedProcess[str]:
    """Run `argv` and capture its output; it is killed after `timeout` seconds."""
    return subprocess.run(
        argv,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",  # like Python's paths: runs are found by their folder
        timeout=timeout,
        check=False,
    )


@dataclass(frozen=True)
class Slurm:
    """The Slurm commands of one cluster. Nothing is retried: that is up to the caller.

    Frequent requests are made once for all processes of the user (`recent`, `snapshot`); without `shared` every request
    goes to Slurm.
    """

    locate: Callable[[str], str | None]  # a command's name -> its absolute path
    environment: Mapping[str, str] = field(default_factory=dict)
    run: Run = run_command
    clock: Callable[[], float] = time.time
    shared: SharedAnswers | None = None

    @classmethod
    def of(cls, cluster: Cluster) -> Slurm:
        """The commands on PATH, configured for the sandbox's controller if needed, or the emulator's replacements."""
        locate, environment = _commands(cluster)
        if cluster.polling_floor == 0:
            return cls(locate, environment)
        from clusterctl.launcher.config.places import state_folder

        folder = shared_folder((locate("squeue"), environment.get("SLURM_CONF")), state_folder)
        return cls(locate, environment, shared=SharedAnswers(folder, float(cluster.polling_floor)))

    def path_of(self, command: str) -> str:
        """The absolute path of a Slurm command; raises SlurmError if there is none."""
        path = self.locate(command)
        if path is None:
            raise SlurmError(f"{command} is not on PATH", 'is this a Slurm login node? to run here: `cluster="local"`')
        return path

    def snapshot(self) -> Snapshot:
        """All jobs of this user, including those that ended within Slurm's MinJobAge (300 s).

        It may be as old as the cluster's polling floor, or older if Slurm does not answer.
        """
        answer = self.recent(*queue.SQUEUE)
        return queue.parse_queue(answer.text, answer.taken_at, answer.problem)

    def recent(self, command: str, *arguments: str, max_age: float | None = None) -> CachedAnswer:
        """The output of `command`, obtained by any process of this user at most `max_age` seconds ago.

        `max_age` is at least the cluster's polling floor. Raises SlurmError if there has never been an answer.
        """
        if self.shared is None:
            taken_at = self.clock()  # before the request: later changes may be missing
            return CachedAnswer(self.answer(command, *arguments), taken_at)
        return self.shared.answer((command, *arguments), lambda: self.answer(command, *arguments), max_age)

    def forget(self) -> None:
        """Discard cached answers for all processes, because this process has just changed something."""
        if self.shared is not None:
            self.shared.forget()

    def nodes(self, max_age: float | None = None) -> Inventory:
        """All nodes and partitions visible to this user, at most `max_age` seconds old, or as old as `snapshot`."""
        answer = self.recent(*SINFO, max_age=max_age)
        return parse_nodes(answer.text, answer.taken_at)

    def configured_nodes(self, partition: str | None) -> int | None:
        """The nodes of a partition, down and powered-off ones included; None if unknown. Raises SlurmError."""
        return configured_nodes(self.recent("scontrol", "show", "partition").text, partition)

    def ends(self) -> list[ScriptEnd]:
        """How the batch scripts of this user's jobs ended, for those that Slurm still knows. Raises SlurmError."""
        return queue.parse_ends(self.answer(*queue.ENDS))

    def waiting(self, job_id: str) -> WaitingJob | None:
        """A pending job and its reason; None if Slurm knows no such job."""
        return queue.parse_waiting(self.answer(*queue.WAITING_JOB, job_id))

    def most_elements(self) -> int:
        """The maximum number of elements of an array (MaxArraySize). Raises SlurmError."""
        answer = self.recent("scontrol", "show", "config", max_age=_CONFIGURATION_SECONDS)
        match = _MOST_ELEMENTS.search(answer.text)
        return int(match[1]) if match else _USUAL_ELEMENTS

    def rules(self) -> Rules:
        """The site's rules for jobs that it preempts, as of an hour ago at most; empty where Slurm does not answer."""
        from clusterctl.launcher.slurm.rules import CONFIG, PARTITIONS, QOS, Rules  # late: only submissions need them

        texts: list[str] = []
        with suppress(SlurmError):
            for words in (CONFIG, PARTITIONS, QOS):
                if words is not QOS or Rules.of(texts[0], "").by_qos is not None:
                    texts.append(self.recent(*words, max_age=_CONFIGURATION_SECONDS).text)
        return Rules.of(*texts) if len(texts) > 1 else Rules()

    def accounted(self, job_ids: Sequence[str]) -> tuple[Accounted, ...]:
        """The accounting records of these jobs and their steps; raises SlurmError if there is no accounting."""
        return parse_accounting(self.answer(*SACCT, ",".join(job_ids)))

    def shown(self, job_id: str) -> tuple[Accounted, ...]:
        """The controller's record of one job, available for a few minutes (MinJobAge) after its end."""
        answer = self._ask(*SHOW_JOB, job_id)
        if answer.returncode and "Invalid job id" not in answer.stderr:
            raise _refusal("scontrol", answer.stderr, answer.returncode)
        return parse_shown(answer.stdout)

    def job(self, job_id: str) -> list[SlurmJob]:
        """The controller's record of a job, or of each element of an array; empty for a job it no longer knows."""
        answer = self._ask(*SHOW_JOB, job_id)
        if answer.returncode and "Invalid job id" not in answer.stderr:
            raise _refusal("scontrol", answer.stderr, answer.returncode)
        found = parse_jobs(answer.stdout)
        # A pending element of an array has no record of its own yet.
        return of_array(found, job_id) or [replace(job, job_id=job_id) for job in found if is_of(job_id, job.job_id)]

    def accounted_jobs(self, job_ids: Sequence[str]) -> list[SlurmJob]:
        """The accounting records of jobs, and of each element of arrays. Raises SlurmError without accounting."""
        wanted = ",".join(job_ids)
        try:
            text = self.answer(*sacct_jobs(paths=True), wanted)
        except SlurmError as error:
            if "Invalid field" not in error.message:
                raise
            text = self.answer(*sacct_jobs(paths=False), wanted)  # before 24.05
        found = parse_accounted_jobs(text)
        return [job for one in job_ids for job in of_array(found, one)]

    def jobs(self) -> list[SlurmJob]:
        """All jobs of this user that squeue shows, as old as the cluster's polling floor at most."""
        return parse_listed(self.recent(*LISTED_JOBS).text)

    def allocation(self, job_id: str) -> Allocation | None:
        """The job with this ID, if Slurm knows it and it belongs to this user."""
        answer = self._ask(*queue.OWN_JOB, job_id)
        if answer.returncode and "Invalid job id" not in answer.stderr:
            raise _refusal("squeue", answer.stderr, answer.returncode)
        return queue.parse_allocation(answer.stdout)

    def steps(self, job_id: str) -> tuple[Step, ...]:
        """The running steps of one job."""
        return queue.parse_steps(self.answer(*queue.STEPS, job_id))

    def signal(self, signal: str, targets: Sequence[str], *, batch: bool = False) -> None:
        """Send a signal such as "TERM" to steps such as 123.4, or to the batch scripts of jobs."""
        self._scancel(f"--signal={signal}", *(["--batch"] if batch else []), *targets)

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Cancel these pending or running jobs with one scancel; jobs that have already ended are not an error."""
        self._scancel(*queue.together(job_ids))

    def _scancel(self, *words: str) -> None:
        answer = self._ask("scancel", *words)
        complaints = [line for line in answer.stderr.splitlines() if not any(known in line for known in _ALREADY_GONE)]
        self.forget()
        if answer.returncode < 0 or (answer.returncode and complaints):
            raise _refusal("scancel", "\n".join(complaints), answer.returncode)

    def release(self, job_ids: Sequence[str]) -> None:
        """Release jobs that were submitted with --hold."""
        self.answer("scontrol", "release", *queue.together(job_ids))
        self.forget()

    def requeue(self, job_ids: Sequence[str]) -> None:
        """Requeue jobs, to be started again from their last checkpoint."""
        self.answer("scontrol", "requeue", *job_ids)
        self.forget()

    def answer(self, command: str, *arguments: str) -> str:
        """The output of `command`; raises SlurmError if it is missing, fails, or times out."""
        answer = self._ask(command, *arguments)
        if answer.returncode:
            raise _refusal(command, answer.stderr, answer.returncode)
        return answer.stdout

    def _ask(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        # Print times as seconds since the epoch, independent of locale and time zone, and all pending indices of an
        # array, which squeue truncates to 64 characters by default.
        environment = {**self.environment, "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
        try:
            return self.run([self.path_of(command), *arguments], environment)
        except subprocess.TimeoutExpired as error:
            message = f"{command} did not answer within {error.timeout:.0f} s"
            raise SlurmError(message, _CONTROLLER_DOWN) from error
        except OSError as error:
            raise SlurmError(f"cannot run {command}: {error}", f"run it directly: {command} --version") from error


def _commands(cluster: Cluster) -> tuple[Callable[[str], str | None], dict[str, str]]:
    """How to find the commands of `cluster`, and their environment."""
    if cluster.kind == "sandbox":
        from clusterctl.launcher.sandbox.description import commands

        return shutil.which, built_environment(os.environ, str(commands()))
    environment = built_environment(os.environ, cluster.slurm_conf)
    if not cluster.is_slurm:  # the emulator is not imported on a Slurm cluster
        from clusterctl.launcher.config.places import state_folder
        from clusterctl.launcher.emulator.install import ensure_stand_ins

        stand_ins = ensure_stand_ins(state_folder(), cluster.emulator)
        return lambda command: str(stand_ins / command), environment
    return shutil.which, environment


def _refusal(command: str, complaint: str, code: int) -> SlurmError:
    lines = [line.strip().removeprefix(f"{command}: ").removeprefix("error: ") for line in complaint.splitlines()]
    message = "; ".join(line for line in lines if line) or f"exit code {code}"
    down = "contact slurm controller" in message
    by_hand = "run it directly: srun --help" if command == "srun" else "list your jobs: squeue --me"
    return SlurmError(f"{command}: {message}", _CONTROLLER_DOWN if down else by_hand)
