"""What would make a run fail that can be seen from here, before anything is queued: pure rules over `Surroundings`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from clusterctl.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from clusterctl.checks.surroundings import Folder, Surroundings

LEAST_FREE_BYTES = 64 * 2**20  # for logs, events and metrics; checkpoints need more
LEAST_FREE_FILES = 1000
LEAST_PYTHON = (3, 11)


class Obstacle(NamedTuple):
    """What stands in the way of a run, and what to do about it."""

    message: str
    hint: str


def obstacles(found: Surroundings) -> Iterator[Obstacle]:
    """Everything that would let the run fail, in the order in which one would mend it."""
    yield from _room(found.runs)
    least = 2 * found.tasks + 64  # rank 0 has connections with all others, in two groups
    if found.open_files < least:
        message = f"at most {found.open_files} open files, and {found.tasks} ranks need {least}"
        yield Obstacle(message, f"ulimit -n {least}, then submit again: Slurm hands the limit on")
    data = found.data
    if data and data.visible and not data.there:
        yield Obstacle(f"no data: {data.path}: no such folder", "set data.root to the folder of the data set")
    elif data and data.missing:
        yield Obstacle(
            f"no data: {data.path} lacks {', '.join(data.missing)}", "set data.root to the data set's folder"
        )
    interpreter = found.interpreter
    if interpreter and interpreter.visible and not interpreter.there:
        yield Obstacle(f"no such interpreter: {interpreter.path}", "set `python` in the cluster file")
    elif interpreter and interpreter.there and found.python is None:
        yield Obstacle(f"does not run as Python: {interpreter.path}", "set `python` in the cluster file")
    elif interpreter and found.python and found.python < LEAST_PYTHON:
        version = ".".join(map(str, found.python))
        yield Obstacle(f"{interpreter.path} is Python {version}", "set `python` in the cluster file to 3.11 or later")
    if found.program and not found.program.there:
        message = f"argv: no such file: {found.program.path}"
        yield Obstacle(message, "paths in argv are seen from the job's `code` folder, the current one by default")


def _room(runs: Folder) -> Iterator[Obstacle]:
    if runs.free_bytes < LEAST_FREE_BYTES:
        free = f"{runs.free_bytes / 2**20:.0f} MiB"
        yield Obstacle(f"the disk is full: {free} free for the folder of runs: {runs.path}", f"df -h '{runs.path}'")
    elif runs.free_files < LEAST_FREE_FILES:
        message = f"room for {runs.free_files} more files on the disk of the runs: {runs.path}"
        yield Obstacle(message, f"df -i '{runs.path}'")


def refuse(found: Iterable[Obstacle]) -> None:
    """Raise ConfigError with all obstacles at once, if there are any."""
    listed = list(dict.fromkeys(found))
    if len(listed) == 1:
        raise ConfigError(*listed[0])
    if listed:
        message = "\n  ".join(obstacle.message for obstacle in listed)
        hints = dict.fromkeys(obstacle.hint for obstacle in listed)
        raise ConfigError(f"{len(listed)} things stand in the way of the run\n  {message}", "\n  ".join(hints))
