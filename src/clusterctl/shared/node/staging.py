"""Copies modules from archives on the shared file system to this node's local disk, where its ranks import them.

    python -I -S .../clusterctl/shared/node/staging.py FOLDER ORIGINAL ARCHIVE [ORIGINAL ARCHIVE ...]

runs once on each node before the ranks and creates the folder `FOLDER.<attempt>@<node>` (read by `staged_imports`):

    0/ 1/ ...                     the modules of each ORIGINAL folder, from its ARCHIVE
    folders                       the originals of these copies
    attempt                       a link to the attempt in the run directory
    imports/sitecustomize.py      run first by Python; created last, since the folder is not used without it

A node that cannot make the copy imports from the shared file system; the reason is in `host.log`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import signal
import stat
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PREFIX = "clusterctl-stage-"  # of the folders' names
IN_VAIN = "imports from the shared file system"  # in host.log for a node without copies
_SITECUSTOMIZE = """import sys

if sys.version_info >= (3, 7):
    import clusterctl_imports

    clusterctl_imports.main()
"""
_VARIABLE = re.compile("[$]([A-Za-z_][A-Za-z0-9_]*)")
_READ_AT_ONCE = 1 << 20
_UNUSED_SECONDS = 3600.0  # far longer than the time from the copy on one node until the ranks start on all nodes


def main(words: Sequence[str], environment: Mapping[str, str] = os.environ) -> None:
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # the warning is for the ranks
    folder, *pairs = words
    number, node = environment["CLUSTERCTL_ATTEMPT"], environment["SLURMD_NODENAME"]
    attempt = Path(environment["CLUSTERCTL_RUN_DIR"], "attempts", number)
    staged = Path(f"{_VARIABLE.sub(lambda name: environment.get(name[1], ''), folder)}.{number}@{node}")
    remove_leftovers(staged.parent)
    try:
        problems = fill(staged, attempt, list(zip(pairs[::2], pairs[1::2], strict=True)))
    except OSError as error:
        problems = [f"cannot copy modules to {staged}: {error.strerror}"]
    for problem in problems:
        print(f"clusterctl: {node} {IN_VAIN}: {problem}", file=sys.stderr, flush=True)


def fill(staged: Path, attempt: Path, pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Create `staged` for `attempt` from pairs of an original and its archive; returns the problems with skipped ones.

    Raises OSError, and leaves nothing behind, if the folder cannot be completed.
    """
    staged.mkdir(mode=0o700)
    lines, problems, work = "", [], str(attempt.parents[1] / "work")
    try:
        with _locked(staged):
            (staged / "attempt").symlink_to(attempt)
            for number, (original, archive) in enumerate(pairs):
                if not os.path.exists(archive):  # noqa: PTH110 - a Python installed on every node has none
                    continue
                copy = staged / str(number)
                if changed := unpack(archive, copy, original):
                    shutil.rmtree(copy)
                    problems.append(f"{changed} has changed since the run was submitted; submit it again")
                    continue
                changes = "changes" * (original == work)
                # Python may spell a folder of its path either way, and the hook compares texts.
                for name in dict.fromkeys((original, os.path.realpath(original))):
                    if os.path.islink(f"{name}/lib64"):  # noqa: PTH114 - a link to lib on some systems
                        lines += f"{name}/lib64\t{copy}/lib\t\n"
                    lines += f"{name}\t{copy}\t{changes}\n"
            (staged / "folders").write_text(lines, encoding="utf-8", errors="surrogateescape")
            imports = staged / ".imports"
            imports.mkdir()
            shutil.copyfile(Path(__file__).with_name("staged_imports.py"), imports / "clusterctl_imports.py")
            (imports / "sitecustomize.py").write_text(_SITECUSTOMIZE)
            imports.rename(staged / "imports")
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
    return problems


def unpack(archive: str, copy: Path, original: str) -> str:
    """Unpack `archive` into the new folder `copy`, reading it once sequentially.

    Returns a folder of the `original` whose installed packages have changed since the archive was made, or empty.
    Raises OSError, also for a damaged archive.
    """
    import tarfile  # late: `submit` imports this module too and does not need it

    copy.mkdir()
    installed: dict[str, set[str]] = {}
    try:
        with tarfile.open(archive, "r|", bufsize=_READ_AT_ONCE) as members:
            for member in members:
                place = f"{copy}/{member.name}"
                folder, _, name = member.name.rpartition("/")
                if is_installed(name):
                    installed.setdefault(folder, set()).add(name)
                elif member.isdir():
                    os.mkdir(place)  # noqa: PTH102 - strings: there are thousands
                elif content := members.extractfile(member):
                    with open(place, "xb") as file:  # noqa: PTH123
                        file.write(content.read())
                    os.utime(place, (member.mtime, member.mtime))
    except tarfile.TarError as error:
        raise OSError(errno.EIO, f"damaged archive: {archive}: {error}") from error
    for folder, names in installed.items():
        try:
            found = {name for name in os.listdir(f"{original}/{folder}") if is_installed(name)}  # noqa: PTH208
        except OSError:
            found = set()
        if found != names:
            return f"{original}/{folder}"
    return ""


def is_installed(name: str) -> bool:
    """Whether a folder with this name identifies an installed package and its version."""
    return name.endswith((".dist-info", ".egg-info"))


def remove_leftovers(disk: Path) -> None:
    """Remove the folders of runs that ended without their closing step."""
    for left in disk.glob(f"{PREFIX}*"):
        with suppress(OSError):  # in use, or already removed
            status = left.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
                with _locked(left):
                    if time.time() - status.st_mtime > _UNUSED_SECONDS or _has_ended(left / "attempt"):
                        shutil.rmtree(left, ignore_errors=True)


def _has_ended(attempt: Path) -> bool:
    """Whether the attempt's batch script has recorded its end, or the run has been removed."""
    try:
        return '"end"' in (attempt / "host.json").read_text()  # of a run of ours
    except FileNotFoundError:
        return attempt.is_symlink() and not attempt.exists()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock `folder`. Raises BlockingIOError if another process is working on it or importing from it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    main(sys.argv[1:])
