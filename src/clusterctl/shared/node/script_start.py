"""Starts a user's batch script: records the start, then becomes the script's own interpreter, in the same process.

A copy of this file is in the run directory, and the first line of the run's copy of the script names it as the
interpreter: `#!RUN/start /bin/bash -l`. So `$0`, the arguments, the process and its parent, and the signals that reach
it are those of plain sbatch (docs/decisions/batch-scripts.md). An array has one copy, which also makes the directory of
each element. It imports nothing of ours, and whatever fails here, the script must start: its record comes second.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import stat
import sys
import time
from pathlib import Path

TYPE_CHECKING = False  # like typing's
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    Environment = dict[bytes, bytes]


def main(own: str, interpreter: str, words: list[str]) -> NoReturn:
    """`words` are the script's path and arguments, `interpreter` is the rest of its first line."""
    place, environment = Path(own).absolute().parent, exact_environment()
    again: Again | None = None
    # A full disk, damaged files, or a start by hand outside any job.
    with contextlib.suppress(OSError, ValueError, AttributeError, TypeError, LookupError):
        run = element_of(place, environment) if (place / "begun").is_dir() else place
        if begin(run, environment):
            if b"PATH" in environment and (run / "bin").is_dir():  # our srun comes first, unless the run has none
                environment[b"PATH"] = os.fsencode(run / "bin") + b":" + environment[b"PATH"]
            if limit := read(run / "run.json")["job"].get("restart", {}).get("limit"):
                again = Again(run, environment, limit)
    if again:
        again.supervise(lambda: become(interpreter, words, environment))
    become(interpreter, words, environment)


def become(interpreter: str, words: list[str], environment: Environment) -> NoReturn:
    program, *argument = interpreter.split(None, 1)  # as the kernel parts it
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them, and an exec would keep that
    try:
        os.execve(program, [program, *argument, *words], environment)
    except OSError as error:
        text = f"slurmstepd: error: execve(): bad interpreter({program}): {error.strerror}\n"
        os.write(2, os.fsencode(text))
        os._exit(error.errno or 1)


def exact_environment() -> Environment:
    """The environment that this process was started with; Python's own view may differ in the locale."""
    entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    return {name: value for name, equals, value in (entry.partition(b"=") for entry in entries) if equals}


def element_of(array: Path, environment: Environment) -> Path:
    """The run of the element that starts. Raises LookupError if it is of another array, such as one by `sbatch $0`."""
    job, index = (environment[name].decode() for name in (b"SLURM_ARRAY_JOB_ID", b"SLURM_ARRAY_TASK_ID"))
    if read(array / "submission.json").get("job_id") not in (None, job):
        raise LookupError(job)
    return make_element(array, index, f"{job}_{index}")


def make_element(array: Path, index: str, job: str) -> Path:
    """The run of an element: a directory with what the array's own has for all of them, made if there is none."""
    run = array.parents[2] / f"{array.parent.name}.{index}"
    if run.is_dir() or (array / "begun" / index).exists():
        return run
    record = read(array / "run.json")
    count = record.pop("elements")
    del record["array"]
    record["id"] = run.name
    record["job"]["resources"]["sbatch"] = {**record["job"]["resources"].get("sbatch", {}), "array": index}
    aside = run.with_name(f".{run.name}.{os.uname().nodename}.{os.getpid()}")
    programs = [f"bin/{path.name}" for path in (array / "bin").glob("*")]
    for folder in ("", "attempts", "submitit", *(["bin"] if programs else [])):
        (aside / folder).mkdir(mode=0o700)
    write(aside / "run.json", record)
    write(aside / "submission.json", {"job_id": job, "time": time.time()})
    parent = os.path.realpath(run.parent)
    (aside / "code").symlink_to(os.path.relpath(os.path.realpath(array / "code"), f"{parent}/{run.name}"))
    for name in ("script.sh", "git.patch", *programs):
        if (array / name).is_file():
            copy(array / name, aside / name, os.fsencode(f"#!{array}/"), os.fsencode(f"#!{run}/"))
    try:
        aside.rename(run)
    except OSError:
        if not run.is_dir():
            raise
        remove(aside)  # somebody who cancels it has just made it
    (array / "begun" / index).touch(mode=0o600)
    if len(os.listdir(array / "begun")) == count:  # noqa: PTH208
        (array.parents[1] / ".arrays" / array.parent.name).unlink(missing_ok=True)
    return run


def copy(source: Path, target: Path, before: bytes, after: bytes) -> None:
    """Copy a file, with `after` in place of `before` at its beginning."""
    text = source.read_bytes()
    target.write_bytes(after + text.removeprefix(before) if text.startswith(before) else text)
    target.chmod(source.stat().st_mode & 0o777)


def remove(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink()
    folder.rmdir()


def begin(run: Path, environment: Environment) -> bool:
    """Record an attempt; False if this is not the start of the run's own job.

    A script may start its own copy by hand, or submit it (`sbatch $0`), which is another job.
    """
    job = environment[b"SLURM_JOB_ID"].decode()
    array, index = (environment.get(name, b"").decode() for name in (b"SLURM_ARRAY_JOB_ID", b"SLURM_ARRAY_TASK_ID"))
    restarts = int(environment.get(b"SLURM_RESTART_COUNT", b"0"))
    submitted = read(run / "submission.json").get("job_id")
    resumes = read(run / "run.json").get("resumes") or [{}]
    numbers = sorted(int(path.name) for path in (run / "attempts").iterdir() if path.name.isdecimal())
    first = resumes[-1].get("attempts") or 0
    known = [read(run / f"attempts/{number}/host.json") for number in numbers if number >= first]
    begun = any(one.get("job_id") != job or one.get("restart_count") == restarts for one in known)
    if begun or submitted not in (None, job, f"{array}_{index}"):
        return False
    begin_attempt(run, numbers[-1] + 1 if numbers else 0, restarts, environment)
    return True


def begin_attempt(run: Path, number: int, restarts: int, environment: Environment) -> None:
    """Record the start of an attempt. `restarts`: how often Slurm has started the job again."""
    attempt = run / f"attempts/{number}"
    attempt.mkdir(mode=0o700)
    record = {
        "attempt": number,
        "job_id": environment[b"SLURM_JOB_ID"].decode(),
        "restart_count": restarts,
        "nodes": environment.get(b"SLURM_JOB_NODELIST", b"").decode(),
        "start": int(time.time()),
    }
    write(attempt / "host.json", record)
    # Slurm has opened the output files that the script names, as this process's own output.
    out, err = (Path(f"/proc/self/fd/{descriptor}").readlink() for descriptor in (1, 2))
    for name, target in (("script.out", out), ("host.log", err), *([("script.err", err)] if err != out else [])):
        if target.is_file():  # not /dev/null
            (attempt / name).symlink_to(target)


class Again:
    """Runs the script as a child, and again if it is killed; before the job's time limit it has Slurm requeue the job.

    Only for a script whose user has set `restart.limit`: it sees another parent, and signals are passed on to it.
    """

    def __init__(self, run: Path, environment: Environment, limit: int) -> None:
        self.run, self.environment, self.limit = run, environment, limit
        self.restarts = int(environment.get(b"SLURM_RESTART_COUNT", b"0"))  # Slurm's own
        array, index = environment.get(b"SLURM_ARRAY_JOB_ID"), environment.get(b"SLURM_ARRAY_TASK_ID", b"")
        # scontrol takes the job ID of an array's last element for the whole array.
        self.job = (array + b"_" + index if array else environment[b"SLURM_JOB_ID"]).decode()
        self.first = (read(run / "run.json").get("resumes") or [{}])[-1].get("attempts") or 0
        self.requeued = self.told = False

    @property
    def number(self) -> int:
        return max(int(path.name) for path in (self.run / "attempts").iterdir() if path.name.isdecimal())

    @property
    def starts_left(self) -> int:
        return 0 if (self.run / "cancel.json").exists() else self.limit - (self.number - self.first)

    def supervise(self, start: Callable[[], NoReturn]) -> NoReturn:
        """Call `start` in a child, and end as the last child ends."""
        unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
        while True:
            with contextlib.suppress(OSError, ValueError):
                if starts := self.number - self.first:
                    self.environment[b"SLURM_RESTART_COUNT"] = str(starts).encode()
                if self.starts_left <= 0:
                    self.scontrol("update", f"JobId={self.job}", "Requeue=0")  # Slurm's restarts count, too
            written = os.fstat(2).st_size  # of standard error, by earlier starts
            if (child := os.fork()) == 0:
                signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
                start()
            status = self.wait(child)
            code = os.waitstatus_to_exitcode(status)
            code = 128 - code if code < 0 else code
            try:
                if self.told or self.requeued or self.starts_left <= 0 or not was_killed(code, written):
                    break
                number = self.number
                self.note(exit_code=code, end=int(time.time()), restarting=True)
                begin_attempt(self.run, number + 1, self.restarts, self.environment)
            except (OSError, ValueError):  # a full disk
                break
        if os.WIFSIGNALED(status):
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
            os.kill(os.getpid(), os.WTERMSIG(status))
        os._exit(code)

    def wait(self, child: int) -> int:
        """The wait status of `child`; passes signals on, and requeues the job before its limit or in a preemption."""
        look_at = self.warning()
        while True:
            found = signal.sigtimedwait(WATCHED, max(0.0, min(look_at - time.time(), 3600)))
            number = found.si_signo if found else 0
            if number == signal.SIGCHLD:
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    return status
            elif number == signal.SIGTERM:  # Slurm sends it to the script, too
                self.told = True
                if re.search(r"PreemptTime=\d", self.scontrol("show", "job", self.job)[1]):
                    self.requeue()
            elif number:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, number)
            if time.time() >= look_at:
                look_at = self.warning()  # somebody may have extended the limit
                if look_at <= time.time() + 1:
                    self.requeue()
                    look_at = time.time() + RETRY_SECONDS

    def warning(self) -> float:
        """When to act before the job's time limit; infinite without a limit."""
        text = self.scontrol("show", "job", self.job)[1]
        start, end = (re.search(rf"\b{name}Time=(\d+)", text) for name in ("Start", "End"))
        if not (start and end) or self.requeued:
            return math.inf
        return int(end[1]) - min(WARNING_SECONDS, (int(end[1]) - int(start[1])) / 4)

    def requeue(self) -> None:
        """Have Slurm start the job again, once; recorded before, since Slurm then ends this process."""
        with contextlib.suppress(OSError, ValueError):
            if self.requeued or self.starts_left <= 0:
                return
            self.note(requeuing=True)
            code, answer = self.scontrol("requeue", self.job)
            self.requeued = not code or "pending execution" in answer  # Slurm has done so itself
            if self.requeued:
                self.note(requeued=True)
            else:
                self.note(requeuing=False, requeue_problem=answer.strip()[:150] or f"exit code {code}")

    def note(self, **fields: object) -> None:
        """Add to the record of the attempt."""
        path = self.run / f"attempts/{self.number}/host.json"
        write(path, {**read(path), **fields})

    def scontrol(self, *words: str) -> tuple[int, str]:
        """The exit code and output of scontrol, which must not be ended by a TERM to the whole job: it is blocked."""
        import subprocess  # late: few scripts need it

        environment = {**self.environment, b"SLURM_TIME_FORMAT": b"%s"}
        try:
            done = subprocess.run(
                ["scontrol", *words], env=environment, capture_output=True, text=True, timeout=60, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return 1, str(error)
        return done.returncode, done.stdout + done.stderr


def was_killed(code: int, written: int) -> bool:
    """Whether a script that ended with `code` was killed, or a rank of it was; not by an exception of the user's.

    srun ends with the highest code of its tasks: 143 if it has terminated others after the first one. Its own messages,
    after the first `written` bytes of standard error, say how the first one ended.
    """
    if code not in (128 + signal.SIGKILL, 128 + signal.SIGTERM):
        return False
    text = b""
    if stat.S_ISREG(os.fstat(2).st_mode):
        with contextlib.suppress(OSError), open("/proc/self/fd/2", "rb") as file:  # noqa: PTH123
            file.seek(max(written, os.fstat(2).st_size - 2**20))
            text = file.read(2**20)
    first = TASK_ENDED.search(text)
    return first[1] in (b"Killed", b"Out Of Memory") if first else code == 128 + signal.SIGKILL


TASK_ENDED = re.compile(rb"^srun: error: \S+: tasks? [0-9,-]+: (Killed|Out Of Memory|[^\n]*)", re.MULTILINE)
WARNING_SECONDS, RETRY_SECONDS = 20, 5
_NOT_WATCHED = "KILL STOP CONT TSTP TTIN TTOU SEGV BUS FPE ILL TRAP ABRT SYS PIPE"
WATCHED = signal.valid_signals() - {signal.Signals[f"SIG{name}"] for name in _NOT_WATCHED.split()}


def read(path: Path) -> dict[str, Any]:
    """The JSON object in a small file of this run; empty if it is missing."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return {}
    with os.fdopen(descriptor, "rb") as file:
        found = json.loads(file.read(2**24))
    return found if isinstance(found, dict) else {}


def write(path: Path, record: dict[str, Any]) -> None:
    """Write a new file whole."""
    aside = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:  # a network file system has repeated the open, which had made it: take another name
        write(path, record)
        return
    with os.fdopen(descriptor, "w") as file:
        file.write(json.dumps(record) + "\n")
    aside.rename(path)


if __name__ == "__main__":
    main(sys.argv[0], sys.argv[1], sys.argv[2:])
