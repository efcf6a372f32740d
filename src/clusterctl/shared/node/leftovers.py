"""Ends processes that outlive their attempt. They are found by their environment, which children inherit.

    python -I -S .../clusterctl/shared/node/leftovers.py BEFORE [now]

runs once on each node, outside any image: before an attempt starts, with its number, and after one that failed, with
the next number. It kills every process of a task of an attempt before that number, if it also has the job ID that this
attempt has recorded: a job that the program has submitted inherits the attempt, but has an ID of its own. Slurm may
leave such processes: `proctrack/linuxproc` and `proctrack/pgid` lose those that have left their parent or group.

With `now` they get no time to leave by themselves: they wait for a rank on a lost node.

A task ends its own program in the same way before it leaves on a signal.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:  # run as a script, which `-I` keeps from finding the package
    sys.path.insert(0, os.path.abspath(f"{__file__}/../../../.."))  # noqa: PTH100

from clusterctl.shared.node import processes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_RUN, _ATTEMPT = "CLUSTERCTL_RUN_DIR", "CLUSTERCTL_ATTEMPT"
_JOB, _STEP, _RANK = "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID"
_OWN = (_RUN, _ATTEMPT, _JOB, _STEP, _RANK)
# How a word of a task's command line ends. An earlier attempt may be one of an earlier clusterctl, with other names.
_TASK = (b"clusterctl.runs", b"/clusterctl/shared/node/__main__.py", b"/clusterctl/runs/__main__.py")
LEAVE_SECONDS = 5.0  # a task that sees its successor leaves by itself
_KILL_SECONDS = 10.0  # a process that waits for a dead disk ends later, without running any of its code


def main(words: Sequence[str], environment: Mapping[str, str] = os.environ) -> None:
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # the warning is for the ranks
    end_earlier(int(words[0]), environment, 0.0 if words[1:] == ["now"] else LEAVE_SECONDS)


def end_earlier(before: int, environment: Mapping[str, str], patience: float = LEAVE_SECONDS) -> None:
    """Kill what the attempts before this number have left on this node; `environment` is that of one of the job's."""
    run = Path(environment[_RUN])
    jobs: dict[int, str] = {}
    for number in range(before):
        with suppress(OSError, ValueError):
            record = json.loads((run / "attempts" / str(number) / "host.json").read_text())
            if isinstance(record, dict) and isinstance(job := record.get("job_id"), str) and job:
                jobs[number] = job
    step = environment.get(_STEP)

    def find() -> list[int]:
        carriers = processes.carriers(f"{_RUN}={run}")
        return [pid for pid, carried in carriers if _is_left(carried, jobs, environment.get(_ATTEMPT), step)]

    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and any(
        word.endswith(_TASK) for pid in find() for word in processes.command_of(pid)
    ):
        time.sleep(0.1)
    if left := _kill(find, _KILL_SECONDS):
        node = environment.get("SLURMD_NODENAME", "")
        sys.stderr.write(f"clusterctl: {node}: processes of an earlier attempt do not end: {left}\n")


def end_own(roots: Sequence[int] = (), environment: Mapping[str, str] = os.environ) -> None:
    """Kill what this task has started: the trees of `roots`, and everything with this rank's environment."""
    own = {name: environment[name] for name in _OWN if name in environment}
    known = set(roots)

    def find() -> list[int]:
        stats = processes.stats()
        known.update(processes.descendants({pid: stat.parent for pid, stat in stats.items()}, known))
        alive = {pid for pid in known if pid in stats and not stats[pid].has_ended}
        marked = processes.carriers(f"{_RUN}={own[_RUN]}") if own.keys() >= {_RUN, _ATTEMPT, _RANK} else []
        found = {pid for pid, carried in marked if all(carried.get(name) == value for name, value in own.items())}
        return sorted((found | alive) - {os.getpid()})

    _kill(find, 1.0)


def _is_left(carried: Mapping[str, str], jobs: Mapping[int, str], current: str | None, step: str | None) -> bool:
    """Whether a process with these variables is a rank's of one of the attempts in `jobs`.

    The current attempt's batch script and what it runs must stay: they belong to no step, or to this one.
    """
    attempt = carried.get(_ATTEMPT, "")
    if not attempt.isascii() or not attempt.isdigit() or _RANK not in carried:
        return False
    if attempt == current and carried.get(_STEP, step) == step:
        return False
    return carried.get(_JOB) is not None and jobs.get(int(attempt)) == carried[_JOB]


def _kill(find: Callable[[], list[int]], seconds: float) -> list[int]:
    """SIGKILL what is found until nothing is; returns what is left after `seconds`."""
    deadline = time.monotonic() + seconds
    while found := find():
        for pid in found:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
