"""Before a task of a user's batch script: records its start, copies its output, and becomes its program.

The program stays slurmstepd's own child, with its number, group, signals and exit code: it is a copier that is forked,
and that runs until the program's output ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shlex
import signal
import socket
import sys
import time
from pathlib import Path

TYPE_CHECKING = False  # like typing's
if TYPE_CHECKING:
    from typing import NoReturn

    Environment = dict[bytes, bytes]


def main(attempt: Path, words: list[str]) -> NoReturn:
    entries = (entry.partition(b"=") for entry in Path("/proc/self/environ").read_bytes().split(b"\0"))
    environment = {name: value for name, equals, value in entries if equals}
    events = None
    with contextlib.suppress(OSError, ValueError):  # a full disk, or too many files: the program starts all the same
        events = record(attempt, environment)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them, and an exec would keep that
    program = found(words[0], environment)
    try:
        os.execve(program, [program, *words[1:]], environment)
    except OSError as error:
        os.write(2, os.fsencode(f"slurmstepd: error: execve(): {words[0]}: {error.strerror}\n"))
        with contextlib.suppress(OSError):
            note_refusal(events, words[0], program, error)
        os._exit(2 if isinstance(error, FileNotFoundError) else 13)


def found(program: str, environment: Environment) -> str:
    """What `program` means to slurmstepd: it looks in the folders of PATH."""
    if "/" not in program:
        for folder in environment.get(b"PATH", b"").split(b":"):
            path = Path(os.fsdecode(folder) or ".") / program
            if path.is_file() and os.access(path, os.X_OK):
                return os.fspath(path)
    return program


def record(attempt: Path, environment: Environment) -> int:
    """Record the start, and leave a copier between this process and its output; return the file of events."""
    rank = int(environment[b"SLURM_PROCID"])
    for folder in ("events", "logs"):
        (attempt / folder).mkdir(mode=0o700, exist_ok=True)
    events = os.open(attempt / f"events/rank_{rank:05}.jsonl", _APPEND, 0o600)
    copies = {number: os.open(attempt / f"logs/rank_{rank:05}.{name}", _APPEND, 0o600) for number, name in _STREAMS}
    host, node = socket.gethostname(), environment.get(b"SLURMD_NODENAME", b"").decode()
    note(events, "began", host=host, node=node or host, pid=os.getpid())
    note(events, "stage", stage="training")
    pipes = {number: os.pipe() for number, _ in _STREAMS}
    if (child := os.fork()) == 0:
        if os.fork() == 0:  # not a child of the program, which may wait for all of its own
            with contextlib.suppress(BaseException):
                copy(events, {pipes[number][0]: (number, copies[number]) for number in pipes})
        os._exit(0)
    os.waitpid(child, 0)
    for number, (reader, writer) in pipes.items():
        os.dup2(writer, number)
        os.close(reader)
        os.close(writer)
    return events


def note_refusal(events: int | None, typed: str, program: str, error: OSError) -> None:
    """Record that the kernel did not start `program`, as `Events.exception` does: nothing else tells it from a kill."""
    if events is None:
        return
    problem, hint = error.strerror, f"ls -l {shlex.quote(program)}"
    if isinstance(error, FileNotFoundError):
        if "/" not in program:
            problem = "no such program on PATH"
            hint = "before srun, let the script activate the environment that has it"
        elif Path(program).exists():
            problem = "the interpreter that it names is missing"
            hint = f"correct its first line (#!): head -1 {shlex.quote(program)}"
        else:
            hint = "correct its path in the batch script"
    message = f"cannot start {typed}: {problem}"
    note(events, "exception", type="TaskError", message=message, traceback="", cause="launch", hint=hint)


_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
_STREAMS = ((1, "out"), (2, "err"))


def note(events: int, event: str, **fields: object) -> None:
    os.write(events, (json.dumps({"time": time.time(), "event": event, **fields}) + "\n").encode())


def copy(events: int, streams: dict[int, tuple[int, int]]) -> None:
    """Copy what arrives at each descriptor to the task's own output and to the file, until both have ended."""
    os.setsid()
    for number in {*signal.Signals} - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        signal.signal(number, signal.SIG_IGN)
    kept = {events, *streams, *(target for targets in streams.values() for target in targets)}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - of libraries that started this task, too
        if int(name) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(name))
    with selectors.DefaultSelector() as selector:
        for reader, targets in streams.items():
            selector.register(reader, selectors.EVENT_READ, targets)
        while selector.get_map():
            for key, _ in selector.select():
                block = os.read(key.fd, 65536)
                if not block:
                    selector.unregister(key.fd)
                for target in key.data if block else ():
                    pass_on(target, block)
    note(events, "exit")


def pass_on(target: int, block: bytes) -> None:
    """Write all of `block`; a full disk or a reader that has gone must not end the other copy."""
    with contextlib.suppress(OSError):
        while block:
            block = block[os.write(target, block) :]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
