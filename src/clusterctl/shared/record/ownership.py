"""What belongs to this user alone: folders whose content is executed, and cache files.

Nobody else may own such a folder or write to it. A cache file holds JSON that can be recomputed, and is used only if it
is intact, owned by this user and of this format. It needs no lock: files are replaced atomically, and the later of two
processes wins.
"""

from __future__ import annotations

import grp
import hashlib
import json
import os
import pwd
import shlex
import stat
from contextlib import ExitStack, suppress
from functools import partial
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from clusterctl.shared.errors import ConfigError, reason
from clusterctl.shared.record.files import exists, read_regular, status_of, with_retries, write_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


_READ = os.O_RDONLY | os.O_CLOEXEC


class NotOurs(ConfigError):
    """Another user owns a folder of ours, or can replace its files."""


def is_trusted(owner: int) -> bool:
    """Whether this user ID is the current user's or root's."""
    return owner in (os.geteuid(), 0)


def is_open(mode: int) -> bool:
    """Whether a folder with this mode lets others replace its files; with the sticky bit they can only add some."""
    return bool(mode & (stat.S_IWGRP | stat.S_IWOTH)) and not mode & stat.S_ISVTX


def user_name(number: int) -> str:
    """The user's name; the user ID if this machine has no name for it, as in a container."""
    try:
        return pwd.getpwuid(number).pw_name
    except (KeyError, OverflowError):
        return str(number)


def owner_name(path: Path) -> str:
    """The owner of `path`: a name, or a user ID without one."""
    return _named(status_of(path).st_uid)


def make_private(folder: Path, hint: str = "") -> Path:
    """Create `folder` and its parents, writable only by this user, or use the existing one if it is.

    Raises NotOurs, with `hint`, if another user could have put something there.
    """
    _make_parents(folder)
    try:
        with_retries(lambda: folder.mkdir(mode=0o700))
    except FileExistsError:
        require_own(folder, hint)
    return folder


def make_new(folder: Path) -> Path:
    """Create the private `folder`. Raises FileExistsError for whatever has its name, be it a link to nowhere."""
    again = False

    def once() -> None:
        nonlocal again
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:  # the first try may have worked although it reported an error
            status = folder.lstat()
            if not again or not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                raise
        finally:
            again = True

    with_retries(once)
    return folder


def make_runs_folder(runs: Path) -> Path:
    """Create the folder of runs, or check the existing one. One that root made for many users (sticky bit) is fine.

    Raises NotOurs if others can replace runs in it, ConfigError if it cannot be used.
    """
    hint = "set CLUSTERCTL_RUNS, or `runs` in the cluster file"
    try:
        _make_parents(runs)
        with_retries(lambda: runs.mkdir(mode=0o700, exist_ok=True))
    except OSError as error:
        raise ConfigError(f"cannot create the runs folder: {reason(error)}", hint) from error
    require_own(runs, hint, or_roots=True)
    if above := open_parent(runs):
        message = f"anyone can exchange the runs folder {runs}, because everybody can write to {above}"
        raise NotOurs(message, f"chmod o-w {_quoted(above)}; or {hint}")
    if not os.access(runs, os.W_OK | os.X_OK):
        raise ConfigError(f"cannot write to the runs folder: {runs}", hint)
    return runs


def open_parent(folder: Path) -> Path | None:
    """A folder above `folder` where everybody can exchange what leads to it: writable, and without the sticky bit."""
    modes = ((above, status.st_mode) for above, status in _parents(folder))
    return next((above for above, mode in modes if mode & stat.S_IWOTH and not mode & stat.S_ISVTX), None)


def shared_parent(folder: Path) -> Path | None:
    """A folder above `folder` where a group or another user can exchange what leads to it."""
    for above, status in _parents(folder):
        if not status.st_mode & (stat.S_IXGRP | stat.S_IXOTH):
            return None  # others do not get further
        group = status.st_mode & stat.S_IWGRP and not status.st_mode & stat.S_ISVTX
        if not is_trusted(status.st_uid) or (group and not _is_own_group(status.st_gid)):
            return above
    return None


def require_own(folder: Path, hint: str = "", *, or_roots: bool = False) -> None:
    """Raise NotOurs, with `hint`, if another user owns `folder` or a link in its place, or can replace its files."""
    for look in (folder.lstat, folder.stat):
        found = with_retries(look)
        if found.st_uid != os.geteuid() and not (or_roots and is_trusted(found.st_uid)):
            kind = "a link owned by another user" if stat.S_ISLNK(found.st_mode) else "owned by another user"
            raise NotOurs(f"{kind}: {folder} ({_named(found.st_uid)})", hint or f"see: ls -ld {_quoted(folder)}")
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"not a folder: {folder}", f"move it away: mv {_quoted(folder)} {_quoted(folder)}.old")
    if is_open(found.st_mode):
        raise NotOurs(f"writable by others: {folder}", f"chmod go-w {_quoted(folder)}")


def open_own(folder: Path, path: Path) -> IO[bytes]:
    """Open the file `path`, which is below `folder`, for reading, so that nobody can exchange a folder meanwhile.

    Each is opened in the one above, and checked once it is open. Raises NotOurs if one is missing or a link, or if
    another user owns it or can write to it.
    """
    with ExitStack() as stack:
        place, descriptor = folder, _opened(folder, os.O_DIRECTORY)
        stack.callback(os.close, descriptor)
        _require_own_open(descriptor, place, or_roots=True)
        for name in path.relative_to(folder).parts:
            place /= name
            kind = os.O_NONBLOCK if place == path else os.O_DIRECTORY
            descriptor = _opened(place, kind | os.O_NOFOLLOW, descriptor)
            stack.callback(os.close, descriptor)
            _require_own_open(descriptor, place)
        return os.fdopen(os.dup(descriptor), "rb")


def _opened(path: Path, flags: int, above: int | None = None) -> int:
    try:
        return with_retries(lambda: os.open(path if above is None else path.name, flags | _READ, dir_fd=above))
    except OSError as error:
        raise NotOurs(f"removed or exchanged by somebody: {path}: {error.strerror}", _EXCHANGED) from error


_EXCHANGED = "keep runs below folders that only you can write to: see `runs` in the cluster file, and clusterctl doctor"


def _require_own_open(descriptor: int, path: Path, *, or_roots: bool = False) -> None:
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid() and not (or_roots and is_trusted(status.st_uid)):
        raise NotOurs(f"owned by another user: {path} ({_named(status.st_uid)})", _EXCHANGED)
    if is_open(status.st_mode):
        raise NotOurs(f"writable by others: {path}", f"chmod go-w {_quoted(path)}")


def _make_parents(folder: Path) -> None:
    """Create the missing folders above `folder`; writable only by this user, whatever the umask allows."""
    for above in reversed(folder.parents):
        if not exists(above):
            with_retries(partial(above.mkdir, mode=0o755, exist_ok=True))


def _parents(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """The existing folders above `folder`, from the top down."""
    above = reversed(type(folder)(os.path.realpath(folder)).parents)
    return ((parent, status_of(parent)) for parent in above if exists(parent))


def _is_own_group(number: int) -> bool:
    """Whether the group consists of this user, as some systems make one for each user."""
    try:
        group = grp.getgrgid(number)
    except KeyError:
        return False
    name = user_name(os.geteuid())
    return group.gr_name == name and {*group.gr_mem} <= {name}


def _named(owner: int) -> str:
    name = user_name(owner)
    return f"user {owner}" if name == str(owner) else name


def _quoted(path: Path) -> str:
    return shlex.quote(os.fspath(path))


_MOST_BYTES = 2**28


class CacheContent(NamedTuple):
    """The `content`, and `lines` that the caller parses only when needed."""

    content: Any
    lines: list[str]


def read_cache(path: Path, form: Any) -> CacheContent | None:
    """Read what `write_cache` wrote; None if it is missing, damaged, another user's or of another `form`."""
    try:
        require_own(path.parent, "")
        digest, _, body = read_regular(path, lambda file: file.read(_MOST_BYTES)).partition(b"\n")
    except (OSError, ConfigError):
        return None
    if digest != _digest(body):
        return None
    first, *lines = body.decode(errors="surrogateescape").split("\n")
    found, content = json.loads(first)
    return CacheContent(content, lines) if found == form else None


def write_cache(path: Path, form: Any, content: Any, lines: Iterable[str] = ()) -> None:
    """Cache `content` for the next process; `form` is the version of its format. Errors are ignored."""
    body = "\n".join([json.dumps([form, content]), *lines])
    with suppress(OSError, ConfigError):
        make_private(path.parent)
        write_text(path, f"{_digest(body.encode(errors='surrogateescape')).decode()}\n{body}")


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()
