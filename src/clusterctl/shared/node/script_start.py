"""Starts a user's batch script: records the start, then becomes the script's own interpreter, in the same process.

A copy of this file is in the run directory, and the first line of the run's copy of the script names it as the
interpreter: `#!RUN/start /bin/bash -l`. So `$0`, the arguments, the process and its parent, and the signals that reach
it are those of plain sbatch (docs/decisions/batch-scripts.md). It imports nothing of ours, and whatever fails here, the
script must start: its record comes second.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

TYPE_CHECKING = False  # like typing's
if TYPE_CHECKING:
    from typing import Any, NoReturn

    Environment = dict[bytes, bytes]


def main(own: str, interpreter: str, words: list[str]) -> NoReturn:
    """`words` are the script's path and arguments, `interpreter` is the rest of its first line."""
    run, environment = Path(own).absolute().parent, exact_environment()
    with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):  # a full disk, or damaged files
        if begin(run, environment):
            see_tasks(run, environment)
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


def begin(run: Path, environment: Environment) -> bool:
    """Record an attempt; False if this is not the start of the run's own job.

    A script may start its own copy by hand, or submit it (`sbatch $0`), which is another job.
    """
    job = environment[b"SLURM_JOB_ID"].decode()
    restarts = int(environment.get(b"SLURM_RESTART_COUNT", b"0"))
    submitted = read(run / "submission.json").get("job_id")
    resumes = read(run / "run.json").get("resumes") or [{}]
    numbers = sorted(int(path.name) for path in (run / "attempts").iterdir() if path.name.isdecimal())
    first = resumes[-1].get("attempts") or 0
    known = [read(run / f"attempts/{number}/host.json") for number in numbers if number >= first]
    begun = any(one.get("job_id") != job or one.get("restart_count") == restarts for one in known)
    if begun or submitted not in (None, job):
        return False
    number = numbers[-1] + 1 if numbers else 0
    attempt = run / f"attempts/{number}"
    attempt.mkdir(mode=0o700)
    record = {
        "attempt": number,
        "job_id": job,
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
    return True


def see_tasks(run: Path, environment: Environment) -> None:
    """Put our srun first, unless the run has none."""
    if b"PATH" in environment and (run / "bin").is_dir():
        environment[b"PATH"] = os.fsencode(run / "bin") + b":" + environment[b"PATH"]


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
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(json.dumps(record) + "\n")
    aside.rename(path)


if __name__ == "__main__":
    main(sys.argv[0], sys.argv[1], sys.argv[2:])
