"""Which file systems are local, and which make changes visible on all nodes at once."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

# The kernel's names; the batch script uses those of stat(1). On a file server its own export looks local.
LOCAL = {"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"}
# Their servers invalidate client caches (docs/decisions/late-and-weak-file-systems.md).
PROMPT = LOCAL | {"ceph", "gpfs", "lustre"}
LATE_SECONDS = 70.0  # NFS caches a folder for up to a minute (acdirmax)
_ESCAPED = re.compile(r"\\([0-7]{3})")


class MountPoint(NamedTuple):
    device: int
    point: str
    kind: str


def mounts() -> Iterator[MountPoint]:
    """The mounted file systems, in order; see proc_pid_mountinfo(5)."""
    try:
        lines = os.fsdecode(Path("/proc/self/mountinfo").read_bytes()).splitlines()
    except OSError:
        return
    for line in lines:
        mount, _, source = line.partition(" - ")
        fields = mount.split(" ")
        major, _, minor = fields[2].partition(":")
        point = _ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), fields[4])  # a space is \040
        yield MountPoint(os.makedev(int(major), int(minor)), point, source.split(" ", 1)[0])


def local_devices() -> frozenset[int]:
    """The devices whose files no other machine changes: only there does stat(2) show reliably whether a file changed.

    A network file system may return attributes up to a minute old unless the file is opened.
    """
    return frozenset(mount.device for mount in mounts() if mount.kind in LOCAL)


def lateness(path: Path) -> float:
    """For how many seconds this node may not see another node's changes in `path`."""
    resolved = Path(os.path.realpath(path))
    above = [mount for mount in mounts() if resolved.is_relative_to(mount.point)]
    kind = max(enumerate(above), key=lambda item: (len(item[1].point), item[0]), default=None)
    return 0.0 if kind is not None and kind[1].kind in PROMPT else LATE_SECONDS


def clock_ahead(folder: Path) -> float | None:
    """By how many seconds `folder`'s file server is ahead of this node's clock; None if no file can be created."""
    import tempfile

    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".clusterctl-") as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
            return os.stat(file.name).st_mtime - time.time()  # noqa: PTH116 - by name, which makes NFS ask the server
    except OSError:
        return None
