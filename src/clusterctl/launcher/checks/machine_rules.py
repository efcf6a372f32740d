"""Machine and cluster: folders, disk space, clock and limits of this machine, and Slurm's state."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from clusterctl.launcher.checks.surroundings import Check, fail, ok, warn
from clusterctl.launcher.slurm.rules import Rules
from clusterctl.shared.errors import SlurmError
from clusterctl.shared.record.files import LOCAL
from clusterctl.shared.record.ownership import is_open
from clusterctl.shared.spec.values import plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.launcher.checks.surroundings import Folder, Surroundings
    from clusterctl.shared.spec import Cluster

LEAST_OPEN_FILES = 1024
LEAST_PROCESSES = 512  # threads count, and every rank has dozens
LEAST_FREE_BYTES = 64 * 2**20  # for logs, events and metrics; checkpoints need more
LEAST_FREE_FILES = 1000
MOST_SECONDS_AHEAD = 2.0


def machine_rules(found: Surroundings) -> Iterator[Check]:
    node = found.login_node
    if node:
        runs = found.runs
        if node.name:
            yield ok("host", f"{node.name}; clusterctl is in {node.program}")
        yield ok("python", node.python)
        yield _folder("runs", runs, "set CLUSTERCTL_RUNS, or `runs` in the cluster file, to a folder that you own")
        if not found.cluster.nodes_are_here and runs.file_system in LOCAL:
            message = f"{runs.path} is on {runs.file_system}, which may not be visible on other nodes"
            yield warn("runs", message, "set `runs` in the cluster file to a folder on the shared file system")
        yield _folder("state", node.state, "set XDG_STATE_HOME to a folder that you own")
        if node.images:
            yield _folder("images", node.images, "set `images` in the cluster file to a folder that you own")
        ahead = node.clock_ahead
        if ahead is None:
            yield warn("clock", "cannot create a file to compare with", "fix the runs folder first")
        elif abs(ahead) > MOST_SECONDS_AHEAD:
            message = f"the runs file system's clock is {abs(ahead):.0f} s {'ahead' if ahead > 0 else 'behind'}"
            hint = "ask your administrator to set up NTP; until then times of runs will be wrong"
            yield warn("clock", message, hint)
        else:
            yield ok("clock", "agrees with the runs file system")
    yield from _space("runs", found.runs)
    if node and node.state.path != found.runs.path:
        yield from _space("state", node.state)
    if found.wanted is None:
        yield _limit("open files", found.open_files, LEAST_OPEN_FILES, "-Hn")
    elif found.wanted.resolved.job.workload != "command":
        tasks = found.wanted.tasks
        least = 3 * tasks + 64  # rank 0 has three connections to each rank: two in its store, one in the process group
        if found.open_files < least:
            message = f"the limit is {found.open_files} open files, but {tasks} ranks need {least}"
            hint = "use fewer ranks, or ask your administrator to raise the limit: ulimit -Hn"
            yield fail("open files", message, hint)
    if node:
        yield _limit("processes", node.processes, LEAST_PROCESSES, "-u")
        yield ok("git", "found") if node.git else warn("git", "not on PATH: runs will record no commit", "install git")


def cluster_rules(found: Surroundings) -> Iterator[Check]:
    cluster, answers = found.cluster, found.slurm
    if found.login_node and not cluster.is_slurm:
        emulator = cluster.emulator
        there = f"{plural(emulator.nodes, 'virtual node')} with {plural(emulator.cpus_per_node, 'CPU')} each"
        yield ok("emulator", f"{there} on this machine")
    if not answers:
        return
    version = answers["version"]
    if isinstance(version, SlurmError):
        yield fail("slurm", version.message, version.hint)
        return
    yield ok("slurm", version.strip().removeprefix("slurm ") or "no answer")
    ping = answers["ping"]
    if isinstance(ping, SlurmError):
        yield fail("controller", ping.message, ping.hint)
    elif re.search(r"\bUP\b", ping):
        yield ok("controller", "answers")
    else:
        problem = ping.strip().replace("\n", "; ") or "no answer"
        yield fail("controller", problem, "ask your administrator: scontrol ping")
    texts = {question: answer for question, answer in answers.items() if isinstance(answer, str)}
    if "partitions" in texts:
        yield _partition(texts["partitions"].split(), cluster.partition)
    if "config" in texts:
        kind = re.search(r"AccountingStorageType\s*=\s*(\S+)", texts["config"])
        on = kind and not kind[1].endswith(("/none", "(null)"))
        yield ok("accounting", "on" if on else "off: only the run's files record how it ended")
    if "preemption" in texts:
        yield _restarts(Rules.of(texts.get("config", ""), texts["preemption"], texts.get("qos", "")), cluster)
    if "srun" in texts:
        yield _runtime("--container-image" in texts["srun"], found)


def _restarts(rules: Rules, cluster: Cluster) -> Check:
    """How the queue starts runs again (submission/successor.sh)."""
    if cluster.successors:
        return ok("restarts", f"in jobs that submit queues, {cluster.successors} for each run (`successors`)")
    what, names = rules.cancelling(cluster.partition, cluster.qos)
    if names:
        count = plural(len(names), "partition") if what == "partition" else f"{len(names)} QOS"
        where = f"in {count}, {', '.join(names[:3])}"
        return ok("restarts", f"in a job of their own {where}: Slurm cancels the jobs that it preempts there")
    message = f"by requeueing, {rules.requeue_seconds} s after the end of an attempt"
    unknown = "; the QOS may cancel jobs instead, but sacctmgr shows none" if rules.by_qos == {} else ""
    return ok("restarts", message + unknown)


def _folder(name: str, folder: Folder, elsewhere: str) -> Check:
    place = f"{folder.path} ({folder.file_system})" if folder.file_system else folder.path
    if not folder.writable:
        return fail(name, f"cannot write to {place}", elsewhere)
    if name != "images" and folder.open_parent:
        message = f"everybody can exchange {place}, because everybody can write to {folder.open_parent}"
        return fail(name, message, f"chmod o-w {shlex.quote(folder.open_parent)}")
    if not folder.exists:
        return ok(name, f"{place}, created when needed")
    if not folder.ours:
        return fail(name, f"{place} is owned by another user", elsewhere)
    if name == "images":  # a group may share an image folder
        return ok(name, place)
    if is_open(folder.mode):
        return fail(name, f"{place} is writable by others", f"chmod go-w {shlex.quote(folder.path)}")
    if folder.shared_parent:
        message = f"{place} can be exchanged by others who own {folder.shared_parent} or can write to it"
        return warn(name, message, f"if you do not trust them like root: chmod +t {shlex.quote(folder.shared_parent)}")
    if folder.mode & 0o077:
        return warn(name, f"{place} is readable by others", f"chmod 700 {shlex.quote(folder.path)}")
    return ok(name, place)


def _space(name: str, folder: Folder) -> Iterator[Check]:
    if folder.free_bytes < LEAST_FREE_BYTES:
        free = f"{folder.free_bytes / 2**20:.0f} MiB"
        message = f"the disk is full: {free} free in the {name} folder: {folder.path}"
        yield fail("space", message, f"df -h {shlex.quote(folder.path)}")
    elif folder.free_files < LEAST_FREE_FILES:
        message = f"only {plural(folder.free_files, 'inode')} free in the {name} folder: {folder.path}"
        yield fail("space", message, f"df -i {shlex.quote(folder.path)}")


def _limit(name: str, value: int, least: int, flag: str) -> Check:
    if value < least:
        return warn(name, f"at most {value}", f"ulimit {flag} {least}")
    return ok(name, "unlimited" if value >= 2**31 else f"up to {value}")


def _partition(known: list[str], wanted: str | None) -> Check:
    names = [name.rstrip("*") for name in known]
    one_of = f"to one of: {', '.join(names)}"
    if wanted is None:
        default = next((name.rstrip("*") for name in known if name.endswith("*")), None)
        if default:
            return ok("partition", f"{default}, Slurm's default")
        hint = f"set `partition` in the cluster file {one_of}"
        return warn("partition", "not set, and Slurm has no default", hint)
    missing = [name for name in wanted.split(",") if name not in names]
    if missing:
        return fail("partition", f"Slurm has no partition {', '.join(missing)}", f"set `partition` {one_of}")
    return ok("partition", wanted)


def missing_apptainer(name: str) -> Check:
    hint = 'load its module in the cluster file: setup = ["module load apptainer"]; or ask your administrator'
    return warn(name, "apptainer is not on PATH on this machine; the nodes must have it", hint)


def _runtime(has_pyxis: bool, found: Surroundings) -> Check:
    cluster = found.cluster
    if cluster.runtime == "apptainer":
        here = found.login_node and found.login_node.apptainer
        return ok("containers", "Apptainer runs images") if here else missing_apptainer("containers")
    if cluster.runtime == "builtin":
        return ok("containers", "clusterctl runs images itself")
    if has_pyxis:
        return ok("containers", "srun has pyxis")
    if cluster.container.image:
        hint = 'set container_runtime = "builtin" in the cluster file, or ask your administrator for pyxis'
        return fail("containers", "the cluster file sets an image, but srun --help shows no --container-image", hint)
    return ok("containers", "none: jobs run on the host")
