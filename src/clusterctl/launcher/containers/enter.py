"""Run a command inside a .sqsh image without pyxis: unpack it once per node, enter it, exec the command.

Takes pyxis's flags. Unlike enroot it has no hooks (not even for GPU drivers) and no named containers.
"""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from clusterctl.launcher.containers.contents import inside, parse_environment
from clusterctl.launcher.containers.runtimes import ContainerView
from clusterctl.launcher.containers.unpacked import hold, release
from clusterctl.shared.errors import Cause, ClusterctlError, TaskError
from clusterctl.shared.record.files import read_whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from clusterctl.launcher.containers.runtimes import Mount


# enroot starts a login shell: /etc/profile and profile.d set PATH.
_LOGIN = ("/bin/sh", "-l")
_EXEC = ("-c", 'exec "$@"', "sh")
_RC = "/etc/rc"  # the image's own start-up script, as enroot writes it: cd WORKDIR, exec ENTRYPOINT CMD
_BACK = ("/bin/sh", "-c", 'cd "$0" && exec "$@"')  # from the image's WORKDIR to the task's own


def main(arguments: Sequence[str]) -> NoReturn:
    """`FLAGS -- COMMAND`: exec the command, or exit with the code of an error.

    `--release IMAGE...` removes the images' trees from this node unless they are in use.
    """
    try:
        if arguments[:1] == ["--release"]:
            for image in arguments[1:]:
                release(Path(image))
            raise SystemExit(0)
        end = arguments.index("--") if "--" in arguments else len(arguments)
        become(ContainerView.parse(arguments[:end]), arguments[end + 1 :])
    except ClusterctlError as error:
        # `why` reads the cause from the task's log, as it does from the batch script's lines.
        start = f"clusterctl[{error.cause}]:" if "CLUSTERCTL_ATTEMPT" in os.environ else "error:"
        print(error.text.replace("error:", start, 1), file=sys.stderr, flush=True)
        raise SystemExit(error.exit_code) from None


def become(view: ContainerView, command: Sequence[str]) -> NoReturn:
    """Exec `command` inside the image of `view`; without one, the image's own entry point."""
    tree = hold(Path(view.image), _owner(os.environ) if view.writable else "")
    enter(tree, view)
    environment = inside(os.environ, parse_environment(_text("/etc/environment").splitlines()), view.environment)
    if view.remap_root:
        environment["HOME"] = "/root"
    workdir = view.workdir or own_workdir(_text(_RC))
    try:
        os.chdir(workdir)
    except OSError as error:
        message = f"cannot use the working directory in the image: {workdir}: {error.strerror}"
        raise TaskError(message, "see [container] workdir", Cause.LAUNCH) from None
    words = program(command, entrypoint=view.entrypoint, rc=Path(_RC).is_file(), workdir=view.workdir)
    try:
        os.execve(_LOGIN[0], [*_LOGIN, *words], environment)
    except OSError as error:
        message = f"cannot start /bin/sh in {view.image}: {error.strerror}"
        raise TaskError(message, "was the image built for this machine's architecture?", Cause.IMAGE) from None


def _owner(environment: Mapping[str, str]) -> str:
    """Identifies who shares a writable tree: the tasks of one step on one node, as under pyxis."""
    names = ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_STEP_ID", "SLURMD_NODENAME")
    words = [environment.get(name, "") for name in names]
    return re.sub(r"[^\w.-]", "_", ".".join(words)) if words[0] else str(os.getpid())


def program(command: Sequence[str], *, entrypoint: bool, rc: bool, workdir: str | None = None) -> list[str]:
    """The login shell's arguments: run `command` directly, or pass it to the image's entry point.

    `command` runs in `workdir` even if the entry point starts elsewhere.
    """
    if rc and (entrypoint or not command):
        return [_RC, *([*_BACK, workdir, *command] if workdir and command else command)]
    return [*_EXEC, *command] if command else []


def own_workdir(rc: str) -> str:
    """The directory that an image's /etc/rc changes to."""
    match = re.search(r"^\s*cd\s+(.+?)\s*(?:&&|\|\||;|$)", rc, re.MULTILINE)
    try:
        words = shlex.split(match[1]) if match else []
    except ValueError:
        words = []
    return words[0] if words else "/"


def _text(path: str) -> str:
    try:
        return read_whole(Path(path)).decode(errors="surrogateescape")
    except (OSError, ValueError):  # missing, or in a hostile image anything else
        return ""


# Entering an image's file tree: user and mount namespaces, mounts, chroot. Linux only.


# unshare(2), mount(2), statvfs(3)
_NEW_MOUNTS, _NEW_USER = 0x20000, 0x10000000
_READ_ONLY, _NO_SUID, _NO_DEV, _NO_EXEC, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
# In a user namespace a remount must repeat the mount's existing flags: statvfs bits -> mount bits.
_KEPT = {2: _NO_SUID, 4: _NO_DEV, 8: _NO_EXEC, 1024: 1024, 2048: 2048, 4096: 1 << 21}
_FLAGS = {"ro": _READ_ONLY, "nosuid": _NO_SUID, "nodev": _NO_DEV, "noexec": _NO_EXEC}
_OF_THE_HOST = ("/sys", "/dev", "/etc/hosts", "/etc/resolv.conf", "/etc/machine-id")
_SCRATCH = ("/tmp", "/run", "/var/lock")  # each gets an empty tmpfs
_HINT = "are unprivileged user namespaces allowed? check: sysctl kernel.apparmor_restrict_unprivileged_userns"


def enter(tree: Path, view: ContainerView) -> None:
    """Make `tree` the root of this process, with the mounts of `view`; the rest of the host is no longer visible.

    Raises TaskError if the kernel does not allow it, or if a mount's source is missing.
    """
    home = os.environ.get("HOME", "/")
    _unshare(remap_root=view.remap_root)
    _mount(None, "/", None, _REC | _PRIVATE)
    with _os_errors(f"cannot enter {tree}"):
        _mount(str(tree), str(tree), None, _BIND | _REC)
        os.chdir(tree)
        for name in ("proc", "sys", "dev", "tmp", "etc"):
            Path(name).mkdir(exist_ok=True)
        _mount("/proc", "proc", None, _BIND | _REC)
        sources = {name: os.open(name, os.O_PATH) for name in _OF_THE_HOST if Path(name).exists()}
        given = [(mount, _open(mount)) for mount in view.mounts]
        at_home = os.open(home, os.O_PATH) if view.mount_home else None
        os.chroot(".")
        os.chdir("/")
    # From here on every path is the image's; the host can be reached only through open descriptors.
    for folder in filter(os.path.lexists, _SCRATCH):
        _mount("tmpfs", _make_place(folder, folder=True), "tmpfs", _NO_SUID | _NO_DEV, "mode=1777")
    for target, descriptor in sources.items():
        _bind(descriptor, target)
    home = "/root" if view.remap_root else home
    # Libraries look up this user and group, and the image may define only root.
    user, group, name = os.getuid(), os.getgid(), os.environ.get("USER", "")
    name = name if re.fullmatch(r"[\w.-]+", name) else "user"
    _add_line("/etc/passwd", user, f"{name}:x:{user}:{group}::{home}:/bin/sh")
    _add_line("/etc/group", group, f"{name}:x:{group}:")
    if at_home is not None:
        _bind(at_home, home)
    else:
        _make_place(home, folder=True)
    for mount, descriptor in given:
        _bind(descriptor, mount.target, mount.flags)
    if not view.writable:
        _mount(None, "/", None, _REMOUNT | _BIND | _READ_ONLY | _flags_of("/"))


def _unshare(*, remap_root: bool) -> None:
    """Give this process its own namespaces. Unprivileged users also get a user namespace with an identity mapping."""
    user, group = os.geteuid(), os.getegid()
    libc = _libc()
    if user == 0 and libc.unshare(_NEW_MOUNTS) == 0:
        return
    if libc.unshare(_NEW_USER | _NEW_MOUNTS):
        hint = "ask your administrator for user namespaces: sysctl user.max_user_namespaces"
        raise TaskError(f"cannot make a user namespace: {os.strerror(ctypes.get_errno())}", hint, Cause.LAUNCH)
    with _os_errors("cannot map this user into a namespace"):
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{0 if remap_root else user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{0 if remap_root else group} {group} 1")


def _open(mount: Mount) -> int:
    try:
        return os.open(mount.source, os.O_PATH)
    except OSError as error:
        raise TaskError(
            f"cannot mount {mount.source}: {error.strerror}", "see [container] mounts", Cause.LAUNCH
        ) from None


def _bind(source: int, target: str, flags: tuple[str, ...] = ()) -> None:
    """Mount what the descriptor `source` refers to, including everything mounted below it."""
    path = f"/proc/self/fd/{source}"
    place = _make_place(target, folder=Path(path).is_dir())
    _mount(path, place, None, _BIND | _REC)
    os.close(source)
    if wanted := sum({_FLAGS[flag] for flag in flags if flag in _FLAGS}):
        _mount(None, place, None, _REMOUNT | _BIND | wanted | _flags_of(place))


def _make_place(target: str, *, folder: bool) -> str:
    """Create `target` as a folder or file to mount on; its real path, with links resolved."""
    place = Path(os.path.realpath(target))
    with _os_errors(f"cannot make {target} in the image"):
        (place if folder else place.parent).mkdir(parents=True, exist_ok=True)
        if not folder:
            place.touch()
    return str(place)


def _add_line(table: str, number: int, line: str) -> None:
    """Bind a copy of the image's `table` with `line` appended, unless it has an entry for `number`."""
    path, aside = Path(table), Path("/tmp/.table")
    known = read_whole(path).decode(errors="surrogateescape") if path.is_file() else ""
    if any(entry.split(":")[2:3] == [str(number)] for entry in known.splitlines()):
        return
    aside.write_text(f"{known}{line}\n", errors="surrogateescape")
    aside.chmod(0o644)
    _bind(os.open(aside, os.O_PATH), table)
    aside.unlink()


def _flags_of(path: str) -> int:
    found = os.statvfs(path).f_flag
    return sum(flag for bit, flag in _KEPT.items() if found & bit)


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind, data)]
    if _libc().mount(*words[:3], ctypes.c_ulong(flags), words[3]):
        reason = os.strerror(ctypes.get_errno())
        raise TaskError(f"cannot mount {source or 'again'} on {target}: {reason}", _HINT, Cause.LAUNCH)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@contextmanager
def _os_errors(message: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TaskError(f"{message}: {error.filename or ''}: {error.strerror}", _HINT, Cause.LAUNCH) from None
