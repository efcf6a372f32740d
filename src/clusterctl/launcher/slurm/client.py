"""The only module that runs Slurm's commands on the login node (except sbatch, which runs through submitit).

Answers are cached for all processes of a user on this machine, so that the controller is asked only once.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
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
from clusterctl.shared.errors import SlurmError
from clusterctl.shared.record.files import write_text
from clusterctl.shared.record.ownership import make_private

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
        return parse_shown(self._about_job(*SHOW_JOB, job_id))

    def job(self, job_id: str) -> list[SlurmJob]:
        """The controller's record of a job, or of each element of an array; empty for a job it no longer knows."""
        found = parse_jobs(self._about_job(*SHOW_JOB, job_id))
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
        return queue.parse_allocation(self._about_job(*queue.OWN_JOB, job_id))

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

    def _about_job(self, command: str, *arguments: str) -> str:
        """Like `answer`, but Slurm need not know the job."""
        answer = self._ask(command, *arguments)
        if answer.returncode and "Invalid job id" not in answer.stderr:
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


# The cache: one file per question in a private folder on a local disk. A process that finds an answer too old takes a
# lease and asks; the others wait for it. After an error nobody asks for a while, with exponential backoff; until then,
# the last good answer is returned with its time and the problem.

LONGEST_PAUSE_SECONDS = 60.0  # between two questions while Slurm does not answer
LEASE_SECONDS = 20.0  # a question takes at most 10 s: a process that holds a lease for longer is stuck
_RARE = ".rare"  # suffix for answers that rarely change
_LOOK_SECONDS = 0.02


@dataclass(frozen=True)
class CachedAnswer:
    """Slurm's output, and when it was requested. `problem` is the error of a later, failed request, if any."""

    text: str
    taken_at: float
    problem: SlurmError | None = None


@dataclass(frozen=True)
class _CacheFile:
    """The content of a cache file: the last good answer, if any, and the failures since."""

    taken_at: float | None = None
    failures: int = 0
    failed_at: float = 0.0
    message: str = ""
    hint: str = ""
    text: str = ""

    def answer(self) -> CachedAnswer:
        """The answer. Raises SlurmError if there has never been a good one."""
        problem = SlurmError(self.message, self.hint) if self.failures else None
        if self.taken_at is None:
            raise problem or SlurmError("no answer from Slurm yet")
        return CachedAnswer(self.text, self.taken_at, problem)


@dataclass(frozen=True)
class SharedAnswers:
    """The answers of one controller. `floor` is the minimum number of seconds between two equal questions."""

    folder: Path
    floor: float
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False)

    def answer(self, question: Sequence[str], ask: Callable[[], str], max_age: float | None = None) -> CachedAnswer:
        """The answer to `question`, at most `max_age` seconds old (or `floor` if longer), else the last good one.

        `max_age` marks an answer that rarely changes, which `forget` does not discard. `ask` is called in one process
        at a time and may raise SlurmError. Raises the last SlurmError if there has never been an answer.
        """
        path = self.folder / hashlib.sha256(json.dumps(list(question)).encode()).hexdigest()[:16]
        if max_age is not None:
            path = path.with_suffix(_RARE)
        age = max(self.floor, max_age or 0.0)
        patience = time.monotonic() + LEASE_SECONDS
        while self._is_due(kept := _read(path), age):
            lease = path.with_suffix(".lease")
            if _take(lease):
                try:
                    kept = _read(path)  # another process may have asked meanwhile
                    return (self._asked(path, kept, ask) if self._is_due(kept, age) else kept).answer()
                finally:
                    lease.unlink(missing_ok=True)
            if time.monotonic() > patience and kept.taken_at is not None:
                break
            self.sleep(_LOOK_SECONDS)
        return kept.answer()

    def forget(self) -> None:
        """Discard the cached answers, after a change that affects them."""
        for path in self.folder.glob("*"):
            if not path.suffix:
                path.unlink(missing_ok=True)

    def _is_due(self, kept: _CacheFile, age: float) -> bool:
        now = self.clock()
        if kept.failures:
            pause = min(max(LONGEST_PAUSE_SECONDS, self.floor), self.floor * 2 ** min(kept.failures - 1, 20))
            return not 0 <= now - kept.failed_at < pause
        return kept.taken_at is None or not 0 <= now - kept.taken_at < age

    def _asked(self, path: Path, kept: _CacheFile, ask: Callable[[], str]) -> _CacheFile:
        began = self.clock()  # before the question: later changes may be missing
        try:
            fresh = _CacheFile(taken_at=began, text=ask())
        except SlurmError as error:
            failures = kept.failures + 1
            fresh = replace(kept, failures=failures, failed_at=self.clock(), message=error.message, hint=error.hint)
        header = {name: value for name, value in asdict(fresh).items() if name != "text"}
        with suppress(OSError):  # with a full disk the others have to ask too
            write_text(path, json.dumps(header) + "\n" + fresh.text)
        return fresh


def shared_folder(controller: Sequence[str | None], state: Callable[[], Path]) -> Path:
    """The folder for the answers of `controller`: in XDG_RUNTIME_DIR if we own it, else below the state folder.

    The state folder may be on a home file system shared by several login nodes, hence the host name.
    """
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or "/nonexistent")
    is_private = False
    with suppress(OSError):
        status = runtime.stat()
        is_private = status.st_uid == os.geteuid() and status.st_mode & 0o077 == 0
    root = runtime / "clusterctl" if is_private else state()
    name = hashlib.sha256(json.dumps([socket.gethostname(), *controller]).encode()).hexdigest()[:16]
    return make_private(make_private(root) / f"slurm-{name}")


def _read(path: Path) -> _CacheFile:
    try:
        header, _, text = path.read_text(encoding="utf-8", errors="surrogateescape").partition("\n")
        return _CacheFile(**json.loads(header), text=text)
    except (OSError, ValueError, TypeError):  # missing, or of another version
        return _CacheFile()


def _take(lease: Path) -> bool:
    """Try to take the file `lease`. It names its holder, so that the lease of a dead process can be removed."""
    aside = lease.with_name(f"{lease.name}.{os.getpid()}.{time.monotonic_ns()}")
    aside.write_text(str(os.getpid()))
    try:
        os.link(aside, lease)  # atomic, including the content
    except FileExistsError:
        with suppress(FileNotFoundError):
            holder, age = lease.read_text(), time.time() - lease.stat().st_mtime
            if not 0 <= age < LEASE_SECONDS or not Path(f"/proc/{holder}").exists():
                lease.replace(aside)  # if several processes try, one succeeds
        return False
    finally:
        aside.unlink(missing_ok=True)
    return True
