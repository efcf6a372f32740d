"""Starts a user's batch script: records the start, then becomes the script's own interpreter, in the same process.

A copy of this file is in the run directory, and the first line of the run's copy of the script names it as the
interpreter: `#!RUN/start /bin/bash -l`. So `$0`, the arguments, the process and its parent, and the signals that reach
it are those of plain sbatch (docs/decisions/batch-scripts.md). An array has one copy, which also makes the directory of
each element. It imports nothing of ours, and whatever fails here, the script must start: its record comes second.
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
    place, environment = Path(own).absolute().parent, exact_environment()
    # A full disk, damaged files, or a start by hand outside any job.
    with contextlib.suppress(OSError, ValueError, AttributeError, TypeError, LookupError):
        run = element_of(place, environment) if (place / "begun").is_dir() else place
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
