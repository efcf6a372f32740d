"""Calls sbatch through submitit, with a controlled environment, a timeout, and hints for its errors."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.launcher.config.client_data import client_data
from clusterctl.launcher.config.script_resolution import inherited
from clusterctl.launcher.submission.script import render, render_array
from clusterctl.shared.errors import SlurmError
from clusterctl.shared.record.ownership import open_own

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.launcher.submission.plan import Plan
    from clusterctl.shared.record.layout import ArrayDir


TIMEOUT_SECONDS = 60

_TO_START = re.compile(
    r"to start at (?P<start>\d{1,12}) (?:(?:a )?using \d+ processors )?on (?:nodes )?(?P<nodes>.+?)"  # "a": Slurm 26.05
    r" in partition (?P<partition>\S+)"
)
# sbatch's message -> our hint. The first match wins; the messages are from Slurm's slurm_errno.c.
_HINTS = {
    "invalid partition": "list partitions: clusterctl nodes; set `partition` in the cluster or job file",
    "invalid account": "set `account` in the cluster or job file; `sacctmgr show assoc user=$USER` lists yours",
    "invalid qos": "set `qos` in the cluster or job file",
    "qos policy": "your limit for jobs or resources is reached: `sacctmgr show assoc user=$USER`",
    "time limit": "request less, such as `resources.time = \"1h\"`; limits of partitions: sinfo -o '%P %l'",
    "node count": "request fewer nodes; see: clusterctl nodes",
    "node configuration is not available": "request fewer nodes, tasks or GPUs per node; see: clusterctl nodes",
    "more processors": "request fewer tasks per node or CPUs per task; see: clusterctl nodes",
    "memory": "request less, such as `resources.memory = \"16G\"`; what nodes have, in MB: sinfo -o '%P %m'",
    "generic resource": 'set gpu_request = "gres" (or "gpus-per-node") in the cluster file; GPUs: clusterctl nodes',
    "configuration source": "where is slurm.conf? set `slurm_conf` in the cluster file, or SLURM_CONF",
    "dependency problem": "are the jobs in `dependency` of [resources] still known? `squeue --me`",
    "unable to contact slurm controller": "is slurmctld up? `scontrol ping`",
    "the emulator does not support": "leave it out here, or try it on a real Slurm: clusterctl sandbox up",
    "unrecognized option": "this Slurm does not support an option in [resources]; remove it",
}
# Errors that a smaller job might avoid.
_FOR_SIZE = ("node count", "node configuration is not available", "more processors", "memory", "generic resource")


class SlurmRefused(SlurmError):
    """Slurm rejected the request: there is no job.

    `words` is Slurm's message; `for_size`: it might accept a smaller job.
    """

    def __init__(self, what: str, words: str, hint: str, *, for_size: bool = False) -> None:
        super().__init__(f"{what}: {words}", hint)
        self.words = words
        self.for_size = for_size


class BatchJob(NamedTuple):
    """A job for sbatch: the script of a run or of an array."""

    script: str
    task: list[str]  # submitit stores it in a pickle that nothing reads
    runs: Path
    pickles: Path
    tasks: int
    secrets: Mapping[str, str]
    name: str  # of the run or sweep, for messages
    own: Plan | None = None  # that of a batch script of the user's own

    @classmethod
    def of(cls, plan: Plan) -> BatchJob:
        run, own = plan.run, plan if plan.script else None
        return cls(render(plan), [*plan.task], run.runs, run.pickles, plan.tasks, plan.secrets, run.id, own)

    @classmethod
    def of_array(cls, array: ArrayDir, plans: Sequence[Plan], at_once: int | None, sweep: str) -> BatchJob:
        """The job of an array; nothing uses the pickle that submitit writes."""
        first = plans[0]
        script = render_array(array, plans, at_once)
        return cls(script, [*first.task], first.run.runs, array.pickles, first.tasks, first.secrets, sweep)


def call_sbatch(batch: BatchJob, command: list[str], environment: Mapping[str, str]) -> str:
    """Submit `batch` with `command`, sbatch and its flags; returns the job ID.

    sbatch gets the script as an open file: from here on, nobody can exchange it or a folder above it. A script of the
    user's own is passed by its path, since Slurm shows that, and names the interpreter by its path, too. Raises NotOurs
    if somebody has exchanged it, SlurmRefused if there is certainly no job, SlurmError if there may be one.
    """

    from submitit.core.utils import FailedSubmissionError  # late: slow

    from clusterctl.launcher.submission.executor import Executor

    maybe = f"if Slurm accepted the job, `clusterctl status {batch.name}` finds it"

    def send(script: Path) -> str:
        words, variables, path, folder = command, {**environment, **batch.secrets}, script, None
        if batch.own and (own := batch.own.script):
            words = [*command, *own.words(batch.own.run)]
            variables, path, folder = own_environment(batch.own, environment), batch.own.run.script, own.folder
        with open_own(batch.runs, path) as file:
            try:
                done = subprocess.run(
                    words,
                    env=variables,
                    stdin=file,
                    capture_output=True,
                    timeout=TIMEOUT_SECONDS,
                    check=False,
                    cwd=folder,
                )
            except subprocess.TimeoutExpired as error:
                raise SlurmError(f"no answer from sbatch within {TIMEOUT_SECONDS} s", maybe) from error
        answer = _answer(done, maybe)
        return f"Submitted batch job {answer}" if batch.own else answer  # it was asked for the ID alone

    executor = Executor(batch.pickles, batch.script, send, batch.tasks)
    try:
        try:
            return str(executor.submit(subprocess.call, batch.task).job_id)
        except OSError:
            if not executor.job_id:
                raise
            # Slurm has the job: only submitit's own files, which nobody reads, are incomplete.
            return executor.job_id
    except FailedSubmissionError as error:
        raise SlurmError(f"sbatch printed no job ID: {error}", maybe) from error


def _answer(done: subprocess.CompletedProcess[bytes], maybe: str) -> str:
    """What sbatch printed. `maybe` is the hint if it is unknown whether Slurm accepted the job."""
    code = done.returncode
    try:
        answer, text = done.stdout.decode().strip(), done.stderr.decode().strip() or f"exit code {code}"
    except UnicodeDecodeError as error:
        raise SlurmError(f"sbatch's output is not UTF-8: {error.reason}", maybe) from error
    # The controller may have the job although its answer did not arrive in time.
    if code and "timed out" in text.lower():
        raise SlurmError(f"no answer from sbatch: {text}", maybe)
    if code < 0 or 128 < code < 192:  # killed by a signal, perhaps after Slurm had accepted the job
        raise SlurmError(f"sbatch was killed: {text}", maybe)
    if code:
        raise refusal(text)
    return answer


def pipe_to_sbatch(
    argv: list[str], script: str, environment: Mapping[str, str], hint: str
) -> subprocess.CompletedProcess[str]:
    """Run sbatch with `script` on stdin. Raises SlurmError with `hint` if it does not answer."""
    try:
        return subprocess.run(
            argv,
            input=script,
            env=environment,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SlurmError(f"sbatch did not answer within {TIMEOUT_SECONDS} s", hint) from error


def own_environment(plan: Plan, environment: Mapping[str, str]) -> dict[str, str]:
    """sbatch's environment for a batch script of the user's own, as if it had been typed here.

    Only the location of slurm.conf is taken from `environment`, the one for other jobs.
    """
    own = dict(inherited())
    if b"LC_CTYPE=" not in Path("/proc/self/environ").read_bytes() and not client_data():
        own.pop("LC_CTYPE", None)  # Python sets it in the C locale (PEP 538)
    found = {name: value for name, value in environment.items() if name == "SLURM_CONF"}
    return {**own, **found, **dict(plan.exports), **plan.secrets}


def test_only(plan: Plan, sbatch: str, environment: Mapping[str, str]) -> str:
    """Ask Slurm whether and when it would start `plan`, without submitting it; Slurm's answer."""
    words: list[str] = []
    if plan.script:
        words, environment = plan.script.options_typed, own_environment(plan, environment)
    done = pipe_to_sbatch([sbatch, "--test-only", *words], render(plan), environment, "`scontrol ping`")
    text = (done.stderr or done.stdout).strip()
    if done.returncode:
        refused = refusal(text)
        if "unable to contact" in text.lower():  # no answer is not a rejection
            raise SlurmError(refused.message, refused.hint)
        raise refused
    return text.removeprefix("sbatch: ")


@dataclass(frozen=True)
class Estimate:
    """Where Slurm would start a job if no other were queued ahead of it, and when, in seconds since the epoch."""

    start: int
    nodes: str
    partition: str


def estimate_start(plan: Plan, sbatch: str, environment: Mapping[str, str]) -> Estimate | None:
    """`test_only`, parsed; None if Slurm gives no time. Raises SlurmRefused, or SlurmError without an answer."""
    return parse_estimate(test_only(plan, sbatch, {**environment, "SLURM_TIME_FORMAT": "%s"}))


def parse_estimate(answer: str) -> Estimate | None:
    """Parse the output of `sbatch --test-only`, with times in seconds since the epoch; None if it names no time."""
    match = _TO_START.search(answer)
    return Estimate(int(match["start"]), match["nodes"], match["partition"]) if match else None


def refusal(text: str) -> SlurmRefused:
    """sbatch's error output as an error: its last line, which gives the reason, and a hint."""
    lines = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("Try ")]  # "Try sbatch --help" ends a usage error
    part = next((part for part in _HINTS if part in text.lower()), "")
    hint = _HINTS.get(part, "look at the batch script: clusterctl submit JOB --dry-run")
    words = lines[-1] if lines else "no reason given"
    return SlurmRefused("sbatch refused the job", words, hint, for_size=part in _FOR_SIZE)
