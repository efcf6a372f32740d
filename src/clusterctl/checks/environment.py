"""What is right and wrong with this machine and a cluster, each with the fix to type: pure rules over evidence."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from clusterctl.checks.container import examine as examine_container
from clusterctl.errors import SlurmError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.checks.machine import Evidence, Interpreter, Told
    from clusterctl.checks.surroundings import Folder

_SHOWN = ("torch", "torch_geometric", "submitit", "clusterctl")  # of the packages in an image
LEAST_OPEN_FILES = 1024
LEAST_PROCESSES = 512  # every rank has dozens of threads, and threads count
MOST_SECONDS_AHEAD = 2.0
# Of one machine alone, as a rule; a file server sees its own export so, hence a warning and no more.
LOCAL_FILE_SYSTEMS = frozenset({"ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "ramfs", "f2fs"})


class Verdict(StrEnum):
    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `fix` is what to type, or to ask for; empty where all is well."""

    verdict: Verdict
    subject: str
    message: str
    fix: str = ""


def ok(subject: str, message: str) -> Finding:
    return Finding(Verdict.OK, subject, message)


def warn(subject: str, message: str, fix: str) -> Finding:
    return Finding(Verdict.WARN, subject, message, fix)


def fail(subject: str, message: str, fix: str) -> Finding:
    return Finding(Verdict.FAIL, subject, message, fix)


def examine(evidence: Evidence) -> list[Finding]:
    """Every finding that applies, in the order in which one would mend them."""
    return [
        ok("python", evidence.python),
        *_tasks(evidence),
        *_slurm(evidence),
        *_folders(evidence),
        _clock(evidence),
        _limit("open files", evidence.open_files, LEAST_OPEN_FILES, "-n"),
        _limit("processes", evidence.processes, LEAST_PROCESSES, "-u"),
        ok("git", "found") if evidence.git else warn("git", "not on PATH: runs record no commit", "install git"),
    ]


def _tasks(evidence: Evidence) -> Iterator[Finding]:
    interpreter = evidence.interpreter
    if interpreter is None:
        yield from _image(evidence)
        return
    # What the cluster's setup lines would load is not there on this machine.
    no = warn if evidence.cluster.setup else fail
    if interpreter.problem:
        yield no("tasks", f"{interpreter.path}: {interpreter.problem}", "set `python` in the cluster file")
        return
    if _numbers(interpreter.says.get("python", ""))[:2] < (3, 11):
        fix = "set `python` in the cluster file to a Python 3.11 or later"
        yield no("tasks", f"{interpreter.path} is Python {interpreter.says.get('python')}", fix)
    for name in ("torch", "submitit"):
        yield _module(interpreter, name, no is warn)


def _image(evidence: Evidence) -> Iterator[Finding]:
    facts = evidence.container
    assert facts, "tasks without an interpreter run in an image"
    complaints = examine_container(facts)
    for complaint in complaints:
        yield (fail if complaint.fatal else warn)("image", complaint.message, complaint.hint)
    if not complaints and facts.contents is None:
        yield ok("image", f"{facts.view.image}, which is not looked into")
    elif not complaints and facts.contents:
        known = [f"{name} {facts.contents.packages[name]}" for name in _SHOWN if name in facts.contents.packages]
        minor = facts.contents.minor_of(facts.python)
        yield ok("image", ", ".join([facts.view.image, *([f"Python {minor}"] if minor else []), *known]))


def _module(interpreter: Interpreter, name: str, doubtful: bool) -> Finding:
    if version := interpreter.says.get(name):
        return ok(name, f"{version} in {interpreter.path}")
    needed = "'clusterctl[train]'" if name == "torch" else "clusterctl"
    problem = interpreter.says.get(f"{name} problem", "says nothing")
    verdict = Verdict.WARN if doubtful else Verdict.FAIL
    return Finding(verdict, name, f"{interpreter.path}: {problem}", f"{interpreter.path} -m pip install {needed}")


def _slurm(evidence: Evidence) -> Iterator[Finding]:
    cluster, told = evidence.cluster, evidence.slurm
    if not told:
        emulator = cluster.emulator
        yield ok("emulator", f"{emulator.nodes} virtual nodes with {emulator.cpus_per_node} CPUs each on this machine")
        return
    yield _told("slurm", told["version"])
    if isinstance(told["version"], SlurmError):
        return
    yield _controller(told["ping"])
    if not isinstance(told["partitions"], SlurmError):
        yield _partition(told["partitions"].split(), cluster.partition)
    if not isinstance(told["config"], SlurmError):
        kind = re.search(r"AccountingStorageType\s*=\s*(\S+)", told["config"])
        on = kind and not kind[1].endswith(("/none", "(null)"))
        yield ok("accounting", "on" if on else "off: how a run ended is told by its own files alone")
    if not isinstance(told["srun"], SlurmError):
        yield _containers("--container-image" in told["srun"], evidence)


def _told(subject: str, told: Told) -> Finding:
    if isinstance(told, SlurmError):
        return fail(subject, told.message, told.hint)
    return ok(subject, told.strip().removeprefix("slurm ") or "says nothing")


def _controller(told: Told) -> Finding:
    if isinstance(told, SlurmError):
        return fail("controller", told.message, told.hint)
    if re.search(r"\bUP\b", told):
        return ok("controller", "answers")
    return fail(
        "controller", told.strip().replace("\n", "; ") or "says nothing", "ask your administrator: scontrol ping"
    )


def _partition(known: list[str], wanted: str | None) -> Finding:
    names = [name.rstrip("*") for name in known]
    if wanted is None:
        default = next((name.rstrip("*") for name in known if name.endswith("*")), None)
        if default:
            return ok("partition", f"{default}, Slurm's default")
        fix = f"set `partition` in the cluster file to one of: {', '.join(names)}"
        return warn("partition", "none is set, and Slurm has no default", fix)
    missing = [name for name in wanted.split(",") if name not in names]
    if missing:
        return fail(
            "partition", f"Slurm knows no {', '.join(missing)}", f"set `partition` to one of: {', '.join(names)}"
        )
    return ok("partition", wanted)


def _containers(there: bool, evidence: Evidence) -> Finding:
    if not evidence.cluster.has_pyxis:
        return ok("containers", "images are run by clusterctl itself")
    if there:
        return ok("containers", "srun has pyxis")
    if evidence.cluster.container.image:
        fix = 'set container_runtime = "builtin" in the cluster file, or ask your administrator for pyxis'
        return fail("containers", "srun --help shows no --container-image, and the cluster file has an image", fix)
    return ok("containers", "none: jobs run on the host")


def _folders(evidence: Evidence) -> Iterator[Finding]:
    yield _folder("runs", evidence.runs, "set CLUSTERCTL_RUNS, or `runs` in the cluster file, to a folder of yours")
    if not evidence.cluster.nodes_are_here and evidence.runs.file_system in LOCAL_FILE_SYSTEMS:
        message = f"{evidence.runs.path} lies on {evidence.runs.file_system}, which other nodes may not see"
        yield warn("runs", message, "set `runs` in the cluster file to a folder on the shared file system")
    yield _folder("state", evidence.state, "set XDG_STATE_HOME to a folder of yours")
    if evidence.images:
        yield _folder("images", evidence.images, "set `images` in the cluster file to a folder of yours")


def _folder(subject: str, folder: Folder, elsewhere: str) -> Finding:
    place = f"{folder.path} ({folder.file_system})" if folder.file_system else folder.path
    if not folder.writable:
        return fail(subject, f"cannot write to {place}", elsewhere)
    if not folder.exists:
        return ok(subject, f"{place}, made when it is needed")
    if not folder.ours:
        return fail(subject, f"{place} belongs to someone else", elsewhere)
    if folder.mode & 0o077 and subject != "images":
        return warn(subject, f"others may look into {place}", f"chmod 700 '{folder.path}'")
    return ok(subject, place)


def _clock(evidence: Evidence) -> Finding:
    ahead = evidence.clock_ahead
    if ahead is None:
        return warn("clock", "no file could be made to compare with", "mend the folder of runs first")
    if abs(ahead) > MOST_SECONDS_AHEAD:
        message = f"the file system of the runs is {abs(ahead):.0f} s {'ahead' if ahead > 0 else 'behind'}"
        return warn("clock", message, "ask your administrator for NTP; times of runs will be off until then")
    return ok("clock", "agrees with the file system of the runs")


def _limit(subject: str, value: int, least: int, flag: str) -> Finding:
    if value < least:
        return warn(subject, f"at most {value}", f"ulimit {flag} {least}")
    return ok(subject, "unlimited" if value >= 2**31 else f"up to {value}")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
