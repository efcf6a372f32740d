"""Machine: folders, free space, clock and limits of this machine."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from clusterctl.checks.check import Check, fail, ok, warn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.checks.surroundings import Folder, LoginNode, Surroundings

LEAST_OPEN_FILES = 1024
LEAST_PROCESSES = 512  # every rank has dozens of threads, and threads count
LEAST_FREE_BYTES = 64 * 2**20  # for logs, events and metrics; checkpoints need more
LEAST_FREE_FILES = 1000
MOST_SECONDS_AHEAD = 2.0
# Usually on one machine alone; a file server sees its own export so, hence only a warning.
LOCAL_FILE_SYSTEMS = frozenset({"ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "ramfs", "f2fs"})


def machine_rules(found: Surroundings) -> Iterator[Check]:
    node = found.login_node
    if node:
        yield ok("python", node.python)
        yield from _folders(found, node)
        yield _clock(node.clock_ahead)
    yield from _space(found.runs)
    yield from _open_files(found)
    if node:
        yield _limit("processes", node.processes, LEAST_PROCESSES, "-u")
        yield ok("git", "found") if node.git else warn("git", "not on PATH: runs record no commit", "install git")


def _folders(found: Surroundings, node: LoginNode) -> Iterator[Check]:
    runs = found.runs
    yield _folder("runs", runs, "set CLUSTERCTL_RUNS, or `runs` in the cluster file, to a folder of yours")
    if not found.cluster.nodes_are_here and runs.file_system in LOCAL_FILE_SYSTEMS:
        message = f"{runs.path} is on {runs.file_system}, which other nodes may not see"
        yield warn("runs", message, "set `runs` in the cluster file to a folder on the shared file system")
    yield _folder("state", node.state, "set XDG_STATE_HOME to a folder of yours")
    if node.images:
        yield _folder("images", node.images, "set `images` in the cluster file to a folder of yours")


def _folder(name: str, folder: Folder, elsewhere: str) -> Check:
    place = f"{folder.path} ({folder.file_system})" if folder.file_system else folder.path
    if not folder.writable:
        return fail(name, f"cannot write to {place}", elsewhere)
    if not folder.exists:
        return ok(name, f"{place}, created when needed")
    if not folder.ours:
        return fail(name, f"{place} belongs to someone else", elsewhere)
    if folder.mode & 0o077 and name != "images":
        return warn(name, f"others may look into {place}", f"chmod 700 {shlex.quote(folder.path)}")
    return ok(name, place)


def _space(runs: Folder) -> Iterator[Check]:
    if runs.free_bytes < LEAST_FREE_BYTES:
        free = f"{runs.free_bytes / 2**20:.0f} MiB"
        message = f"the disk is full: {free} free for the folder of runs: {runs.path}"
        yield fail("space", message, f"df -h {shlex.quote(runs.path)}")
    elif runs.free_files < LEAST_FREE_FILES:
        message = f"room for {runs.free_files} more files on the disk of the runs: {runs.path}"
        yield fail("space", message, f"df -i {shlex.quote(runs.path)}")


def _open_files(found: Surroundings) -> Iterator[Check]:
    if found.wanted is None:
        yield _limit("open files", found.open_files, LEAST_OPEN_FILES, "-n")
        return
    tasks = found.wanted.tasks
    least = 2 * tasks + 64  # rank 0 has connections with all others, in two groups
    if found.open_files < least:
        message = f"at most {found.open_files} open files, and {tasks} ranks need {least}"
        yield fail("open files", message, f"ulimit -n {least}, then submit again: Slurm hands the limit on")


def _clock(ahead: float | None) -> Check:
    if ahead is None:
        return warn("clock", "no file could be created to compare with", "fix the folder of runs first")
    if abs(ahead) > MOST_SECONDS_AHEAD:
        message = f"the file system of the runs is {abs(ahead):.0f} s {'ahead' if ahead > 0 else 'behind'}"
        return warn("clock", message, "ask your administrator for NTP; times of runs will be off until then")
    return ok("clock", "agrees with the file system of the runs")


def _limit(name: str, value: int, least: int, flag: str) -> Check:
    if value < least:
        return warn(name, f"at most {value}", f"ulimit {flag} {least}")
    return ok(name, "unlimited" if value >= 2**31 else f"up to {value}")
