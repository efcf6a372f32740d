"""A file system that shows other nodes' changes late, by the FUSE protocol (linux/fuse.h). Only root can mount it.

    python late_mount.py '{"backing": "/there", "mount": "/here", "seed": 1, "least": 3, "most": 30, ...}'

The node of a request comes from the environment of its process (`node_of`). There are neither hard links nor locks.
Some requests for files that a run writes fail, before or after they were carried out, and some fsyncs are slow. The
kernel caches only the copies of code, which do not change.
"""

# ruff: noqa: PTH101, PTH116, PTH208 - descriptors, and names as bytes
from __future__ import annotations

import ctypes
import errno
import json
import os
import random
import re
import signal
import stat
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

LOOKUP, FORGET, GETATTR, SETATTR, READLINK, SYMLINK, MKNOD, MKDIR = 1, 2, 3, 4, 5, 6, 8, 9
UNLINK, RMDIR, RENAME, LINK, OPEN, READ, WRITE, STATFS, RELEASE, FSYNC = 10, 11, 12, 13, 14, 15, 16, 17, 18, 20
INIT, OPENDIR, READDIR, RELEASEDIR, FSYNCDIR, GETLK, SETLK, SETLKW = 26, 27, 28, 29, 30, 31, 32, 33
CREATE, INTERRUPT, DESTROY, BATCH_FORGET, RENAME2 = 35, 36, 38, 42, 45
_UNANSWERED = (FORGET, BATCH_FORGET, INTERRUPT)
_IN, _OUT = struct.Struct("<IIQQIIIHH"), struct.Struct("<IiQ")
_ATTR, _INIT_OUT = struct.Struct("<6Q10I"), struct.Struct("<4I2H2I2H8I")
_MAJOR, _MINOR, _MOST_WRITTEN = 7, 31, 1 << 17
_ASYNC_READ, _POSIX_LOCKS, _ATOMIC_TRUNC, _BIG_WRITES, _FLOCK = 1, 1 << 1, 1 << 3, 1 << 5, 1 << 10
_DIRECT_IO = 1
_PATIENCE_SECONDS = 20.0
_LONG = 3600  # seconds for which the kernel may cache something
_MODE, _UID, _GID, _SIZE, _ATIME, _MTIME, _ATIME_NOW, _MTIME_NOW = 1, 2, 4, 8, 16, 32, 128, 256  # of setattr
_SMALL = 1 << 16  # old content is kept of files up to this size; of larger ones, only the size is late
_NODE = re.compile(rb"(?:^|\0)(?:SLURMD_NODENAME|CLUSTERCTL_SANDBOX_PART)=([^\0]*)")
# Faults strike files that clusterctl writes during a run: not the code and the pickle, which nodes read once, not logs,
# which Slurm writes, and not what a program saves.
_STRUCK = re.compile(
    r"[^/]+/(attempts(?!/[0-9]+/(?:host.log|logs))(/|$)|checkpoints($|/[^/]+$|/[^/]+/manifest)|[a-z]+\.json$)"
)

REAL = object()  # the current state


class Change(NamedTuple):
    number: int
    time: float
    node: str
    before: Any


class Views:
    """What each node sees of a shared file system: its own changes at once, those of other nodes late.

    As with NFS caches, a node that looks at something for the first time sees its current state, and later changes by
    other nodes `least` to `most` seconds late. Each change has its own lateness for each node, so changes may become
    visible in another order than they were made. The key of a change is an entry of a folder, the content of a file, or
    the time of a folder.
    """

    def __init__(self, seed: int, least: float, most: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seed, self._least, self._most, self._clock = seed, least, most, clock
        self._changes: dict[Hashable, list[Change]] = {}
        self._looks: dict[tuple[str, Hashable], tuple[float, float]] = {}  # the first and the last of a cache's life
        self._names: dict[int, set[bytes]] = {}  # by folder
        self._count = 0

    def change(self, key: Hashable, node: str, before: Any) -> None:
        """Record that `node` has just changed `key`, which was `before`."""
        now = self._clock()
        kept = [change for change in self._changes.get(key, []) if now - change.time <= self._most]
        self._count += 1
        if isinstance(key, tuple) and key[0] == "entry":
            self._names.setdefault(key[1], set()).add(key[2])
        self._changes[key] = [*kept, Change(self._count, now, node, before)]

    def seen(self, key: Hashable, node: str, look: Hashable = None) -> Any:
        """What `node` sees: REAL, or the state before a change. `look` names what it looks at, if not `key`."""
        known = self._known_since(node, look or key)
        changes = self._changes.get(key, ())
        shown = REAL
        for change in reversed(changes):
            if (
                change.node == node
                or change.time <= known
                or self._clock() >= change.time + self._lateness(change, node)
            ):
                return shown
            shown = change.before
        return shown

    def changed(self, folder: int) -> set[bytes]:
        """The names in a folder that have changed."""
        return self._names.get(folder, set())

    def learn(self, key: Hashable, node: str) -> None:
        """Record that `node` knows the current state of `key`, from a refusal of the server."""
        now = self._clock()
        self._looks[node, key] = now, now

    def _known_since(self, node: str, look: Hashable) -> float:
        now = self._clock()
        first, last = self._looks.get((node, look), (now, now))
        if now - last > self._most:
            first = now
        self._looks[node, look] = first, now
        return first

    def _lateness(self, change: Change, node: str) -> float:
        return random.Random(f"{self._seed} {change.number} {node}").uniform(self._least, self._most)


class Settings(NamedTuple):
    """`faults` is the share of requests that fail, `slow` that of fsyncs that take `slow_seconds`."""

    backing: str
    mount: str
    seed: int = 1
    least: float = 3.0
    most: float = 30.0
    faults: float = 0.0
    slow: float = 0.0
    slow_seconds: float = 5.0
    record: str = ""  # a file that gets the number of faults of each kind at the end


class Content(NamedTuple):
    """The old state of a file: its mtime, its size and, if it is small, its content."""

    mtime: int
    size: int
    data: bytes | None


@dataclass(eq=False)
class Inode:
    """An open `descriptor` (O_PATH), which keeps the inode even after its removal."""

    descriptor: int
    number: int
    path: str  # when it was first seen

    @property
    def status(self) -> os.stat_result:
        return os.stat(self.descriptor)

    @property
    def way(self) -> str:
        return f"/proc/self/fd/{self.descriptor}"


class Request(NamedTuple):
    opcode: int
    unique: int
    inode: int
    pid: int
    owner: tuple[int, int]
    body: bytes

    @property
    def node(self) -> str:
        """The node of the process. Reading its environment blocks while it is in execve or in a page fault.

        So this must not be called for reads, which may be part of those, nor for closes (FLUSH is always refused).
        """
        return node_of(self.pid)


def node_of(pid: int) -> str:
    """The node of a process, from its environment: batch scripts, tasks and a sandbox's daemons have it there."""
    try:
        found = _NODE.search(Path(f"/proc/{pid}/environ").read_bytes())
    except OSError:
        return "login"
    return found[1].decode() if found else "login"


@dataclass
class LateFiles:
    """The answers to the kernel's requests."""

    settings: Settings
    inodes: dict[int, Inode] = field(default_factory=dict)
    handles: dict[int, tuple[int, str]] = field(default_factory=dict)  # a descriptor, and the node that opened it
    busy_since: float | None = None  # when the current request began
    struck: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        settings = self.settings
        self.views = Views(settings.seed, settings.least, settings.most)
        self.random = random.Random(settings.seed)
        root = os.open(settings.backing, os.O_PATH)
        self.inodes[1] = Inode(root, os.stat(root).st_ino, "")
        self.of_number = {self.inodes[1].number: 1}
        self.handle = 0
        self.answers: dict[int, Callable[[Request], bytes]] = {
            LOOKUP: self.look_up,
            GETATTR: lambda request: self.attributes(request, self.inodes[request.inode]),
            SETATTR: self.set_attributes,
            READLINK: lambda request: os.fsencode(os.readlink("", dir_fd=self.inodes[request.inode].descriptor)),
            SYMLINK: self.make_link,
            MKNOD: self.make_node,
            MKDIR: self.make_folder,
            UNLINK: self.remove,
            RMDIR: self.remove,
            RENAME: self.rename,
            RENAME2: self.rename,
            LINK: lambda _: _refuse(errno.EPERM),
            OPEN: self.open,
            CREATE: self.create,
            READ: self.read,
            WRITE: self.write,
            RELEASE: self.release,
            STATFS: self.statfs,
            FSYNC: self.fsync,
            OPENDIR: self.open_folder,
            READDIR: self.read_folder,
            RELEASEDIR: lambda request: b"",
            FSYNCDIR: lambda _: b"",
            GETLK: lambda _: _refuse(errno.ENOLCK),
            SETLK: lambda _: _refuse(errno.ENOLCK),
            SETLKW: lambda _: _refuse(errno.ENOLCK),
            INIT: self.begin,
        }

    def serve(self, device: int) -> None:
        """Answer until the file system is unmounted."""
        while True:
            try:
                content = os.read(device, _MOST_WRITTEN + 4096)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):  # the request was interrupted
                    continue
                return
            _, opcode, unique, inode, uid, gid, pid, _, _ = _IN.unpack_from(content)
            request = Request(opcode, unique, inode, pid, (uid, gid), content[_IN.size :])
            if opcode == DESTROY:
                return
            if opcode == FSYNC and self.random.random() < self.settings.slow:
                self.struck["slow fsync"] += 1
                threading.Timer(self.settings.slow_seconds, self._reply, (device, request)).start()
            elif opcode not in _UNANSWERED:
                self.busy_since = time.monotonic()
                self._reply(device, request)
                self.busy_since = None

    def guard(self, abort: Path) -> None:
        """Abort the connection if a request hangs: all requests fail then, instead of blocking their processes."""
        while True:
            time.sleep(1)
            since = self.busy_since
            if since is not None and time.monotonic() - since > _PATIENCE_SECONDS:
                abort.write_text("1")
                os._exit(1)

    def _reply(self, device: int, request: Request) -> None:
        try:
            answer, error = self._struck(request), 0
        except OSError as refusal:
            answer, error = b"", -(refusal.errno or errno.EIO)
        except KeyError:
            answer, error = b"", -errno.ENOSYS  # the kernel stops sending such requests
        try:
            os.write(device, _OUT.pack(_OUT.size + len(answer), error, request.unique) + answer)
        except OSError:  # the requesting process has gone
            pass

    def _struck(self, request: Request) -> bytes:
        """The answer, unless a fault strikes: then a change fails before or after it was made."""
        answer = self.answers[request.opcode]
        faulty = _FAULTY.get(request.opcode)
        inode = self.inodes.get(request.inode)
        if faulty is None or inode is None or self.random.random() >= self.settings.faults:
            return answer(request)
        name = request.body.rstrip(b"\0").decode(errors="replace") if request.opcode == LOOKUP else ""
        if not _STRUCK.match(f"{inode.path}/{name}".strip("/")):
            return answer(request)
        number, word = faulty
        # If an attempt's folder was made nevertheless, its script takes the next number, and tests wait for this one.
        numbered = request.opcode == MKDIR and inode.path.endswith("/attempts")
        if request.opcode in _CHANGING and not numbered and self.random.random() < 0.5:
            answer(request)
            word += ", though done"
        self.struck[f"{errno.errorcode[number]} of {word}"] += 1
        raise OSError(number, os.strerror(number))

    def begin(self, request: Request) -> bytes:
        _, minor, readahead, offered = struct.unpack_from("<4I", request.body)
        wanted = offered & (_ASYNC_READ | _POSIX_LOCKS | _ATOMIC_TRUNC | _BIG_WRITES | _FLOCK)
        numbers = (_MAJOR, min(minor, _MINOR), readahead, wanted, 16, 12, _MOST_WRITTEN, 1, 0, 0, *[0] * 8)
        return _INIT_OUT.pack(*numbers)

    # --- what a node sees

    def entry(self, folder: Inode, name: bytes, node: str, look: Any = None) -> Inode | None:
        """The inode that `node` sees under a name."""
        seen = self.views.seen(("entry", folder.number, name), node, look)
        return self.real_entry(folder, name) if seen is REAL else seen

    def real_entry(self, folder: Inode, name: bytes) -> Inode | None:
        try:
            descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=folder.descriptor)
        except FileNotFoundError:
            return None
        number = os.stat(descriptor).st_ino
        if number in self.of_number:
            os.close(descriptor)
            return self.inodes[self.of_number[number]]
        made = Inode(descriptor, number, f"{folder.path}/{name.decode(errors='replace')}".lstrip("/"))
        identity = len(self.inodes) + 1
        self.inodes[identity], self.of_number[number] = made, identity
        return made

    def content(self, inode: Inode, node: str) -> Content | None:
        """The old content of a file if `node` does not see the current one yet."""
        seen = self.views.seen(("content", inode.number), node)
        return None if seen is REAL else seen

    def packed(self, inode: Inode, node: str) -> bytes:
        found = inode.status
        mtime, size = found.st_mtime_ns, found.st_size
        if stat.S_ISREG(found.st_mode) and (content := self.content(inode, node)):
            mtime, size = content.mtime, content.size
        elif stat.S_ISDIR(found.st_mode):
            seen = self.views.seen(("time", inode.number), node)
            mtime = mtime if seen is REAL else seen
        times = [divmod(moment, 10**9) for moment in (found.st_atime_ns, mtime, max(mtime, 0))]
        whole = (seconds for seconds, _ in times)
        parts = (nanoseconds for _, nanoseconds in times)
        owner = found.st_mode, found.st_nlink, found.st_uid, found.st_gid, found.st_rdev
        return _ATTR.pack(found.st_ino, size, found.st_blocks, *whole, *parts, *owner, 4096, 0)

    def attributes(self, request: Request, inode: Inode) -> bytes:
        return struct.pack("<QQ", _LONG if _is_kept(inode.path) else 0, 0) + self.packed(inode, request.node)

    def answer_entry(self, inode: Inode, node: str) -> bytes:
        lasting, still = "/" not in inode.path, _is_kept(inode.path)
        names, attributes = _LONG if lasting or still else 0, _LONG if still else 0
        return struct.pack("<5Q", self.of_number[inode.number], 0, names, attributes, 0) + self.packed(inode, node)

    # --- looking

    def look_up(self, request: Request) -> bytes:
        found = self.entry(self.inodes[request.inode], request.body.rstrip(b"\0"), request.node)
        return _refuse(errno.ENOENT) if found is None else self.answer_entry(found, request.node)

    def open_folder(self, request: Request) -> bytes:
        return self._opened(-1, request.node)

    def read_folder(self, request: Request) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", request.body)
        listed = b""
        for place, (name, inode) in enumerate(self._listing(self.inodes[request.inode], request.node), 1):
            if place <= offset:
                continue
            kind = stat.S_IFMT(inode.status.st_mode) >> 12
            line = struct.pack("<QQII", inode.number, place, len(name), kind) + name
            line += bytes(-len(line) % 8)
            if len(listed) + len(line) > size:
                break
            listed += line
        return listed

    def _listing(self, folder: Inode, node: str) -> Iterator[tuple[bytes, Inode]]:
        names = set(map(os.fsencode, os.listdir(folder.way)))
        names |= self.views.changed(folder.number)
        for name in sorted(names):
            if (found := self.entry(folder, name, node, ("list", folder.number))) is not None:
                yield name, found

    def statfs(self, request: Request) -> bytes:
        found = os.statvfs(self.inodes[1].way)
        numbers = (found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree)
        return struct.pack("<5Q10I", *numbers, found.f_bsize, found.f_namemax, found.f_frsize, *[0] * 7)

    # --- files

    def _opened(self, descriptor: int, node: str, how: int = _DIRECT_IO) -> bytes:
        self.handle += 1
        self.handles[self.handle] = descriptor, node
        return struct.pack("<QII", self.handle, how, 0)

    def open(self, request: Request) -> bytes:
        (flags,) = struct.unpack_from("<I", request.body)
        inode = self.inodes[request.inode]
        before = self._before(inode) if flags & os.O_TRUNC else None
        descriptor = os.open(inode.way, _only(flags))
        if before:
            self.views.change(("content", inode.number), request.node, before)
        return self._opened(descriptor, request.node, 0 if _is_kept(inode.path) else _DIRECT_IO)

    def create(self, request: Request) -> bytes:
        flags, mode = struct.unpack_from("<II", request.body)
        name, folder = request.body[16:].rstrip(b"\0"), self.inodes[request.inode]
        there = self.real_entry(folder, name)
        before = self._before(there) if there and flags & os.O_TRUNC else None
        with self._changing(folder, name, request):
            descriptor = os.open(name, _only(flags) | flags & (os.O_CREAT | os.O_EXCL), mode, dir_fd=folder.descriptor)
        if before and there:
            self.views.change(("content", there.number), request.node, before)
        inode = self._made(folder, name, request)
        return self.answer_entry(inode, request.node) + self._opened(descriptor, request.node)

    def read(self, request: Request) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", request.body)
        descriptor, node = self.handles[handle]
        content = self.content(self.inodes[request.inode], node)
        if content is None:
            return os.pread(descriptor, size, offset)
        if content.data is None:
            return os.pread(descriptor, max(0, min(size, content.size - offset)), offset)
        return content.data[offset : offset + size]

    def write(self, request: Request) -> bytes:
        handle, offset, size, _, _, flags = struct.unpack_from("<QQIIQI", request.body)
        inode = self.inodes[request.inode]
        before = self._before(inode)
        data = request.body[40 : 40 + size]
        place = inode.status.st_size if flags & os.O_APPEND else offset
        descriptor, node = self.handles[handle]
        written = os.pwrite(descriptor, data, place)
        self.views.change(("content", inode.number), node, before)
        return struct.pack("<II", written, 0)

    def release(self, request: Request) -> bytes:
        descriptor, _ = self.handles.pop(struct.unpack_from("<Q", request.body)[0])
        if descriptor >= 0:
            os.close(descriptor)
        return b""

    def fsync(self, request: Request) -> bytes:
        return b""

    def _before(self, inode: Inode) -> Content:
        found = inode.status
        data = Path(inode.way).read_bytes() if found.st_size <= _SMALL else None
        return Content(found.st_mtime_ns, found.st_size, data)

    def set_attributes(self, request: Request) -> bytes:
        valid, _, _, size, _, *times = struct.unpack_from("<IIQQQ3Q3I", request.body)
        mode, _, uid, gid = struct.unpack_from("<4I", request.body, 68)
        inode = self.inodes[request.inode]
        if valid & _MODE:
            os.chmod(inode.way, stat.S_IMODE(mode))
        if valid & (_UID | _GID):
            os.chown(inode.way, uid if valid & _UID else -1, gid if valid & _GID else -1)
        if valid & _SIZE:
            before = self._before(inode)
            os.truncate(inode.way, size)
            self.views.change(("content", inode.number), request.node, before)
        if valid & (_ATIME | _MTIME | _ATIME_NOW | _MTIME_NOW):
            self._set_times(inode, request, valid, times)
        return self.attributes(request, inode)

    def _set_times(self, inode: Inode, request: Request, valid: int, times: list[int]) -> None:
        found = inode.status
        atime, mtime = found.st_atime_ns, found.st_mtime_ns
        if valid & _ATIME:
            atime = time.time_ns() if valid & _ATIME_NOW else times[0] * 10**9 + times[3]
        if valid & _MTIME:
            mtime = time.time_ns() if valid & _MTIME_NOW else times[1] * 10**9 + times[4]
        folder = stat.S_ISDIR(found.st_mode)
        before = found.st_mtime_ns if folder else self._before(inode)
        os.utime(inode.way, ns=(atime, mtime))
        self.views.change(("time" if folder else "content", inode.number), request.node, before)

    # --- names

    def make_folder(self, request: Request) -> bytes:
        mode, _ = struct.unpack_from("<II", request.body)
        name, folder = request.body[8:].rstrip(b"\0"), self.inodes[request.inode]
        with self._changing(folder, name, request):
            os.mkdir(name, mode, dir_fd=folder.descriptor)
        return self.answer_entry(self._made(folder, name, request), request.node)

    def make_node(self, request: Request) -> bytes:
        mode, device = struct.unpack_from("<II", request.body)
        name, folder = request.body[16:].rstrip(b"\0"), self.inodes[request.inode]
        with self._changing(folder, name, request):
            os.mknod(name, mode, device, dir_fd=folder.descriptor)
        return self.answer_entry(self._made(folder, name, request), request.node)

    def make_link(self, request: Request) -> bytes:
        name, target = request.body.split(b"\0")[:2]
        folder = self.inodes[request.inode]
        with self._changing(folder, name, request):
            os.symlink(target, name, dir_fd=folder.descriptor)
        return self.answer_entry(self._made(folder, name, request), request.node)

    def remove(self, request: Request) -> bytes:
        name, folder = request.body.rstrip(b"\0"), self.inodes[request.inode]
        with self._changing(folder, name, request):
            (os.rmdir if request.opcode == RMDIR else os.unlink)(name, dir_fd=folder.descriptor)
        return b""

    def rename(self, request: Request) -> bytes:
        header = 16 if request.opcode == RENAME2 else 8
        (target,) = struct.unpack_from("<Q", request.body)
        flags = struct.unpack_from("<I", request.body, 8)[0] if request.opcode == RENAME2 else 0
        old, new = request.body[header:].split(b"\0")[:2]
        folder, other = self.inodes[request.inode], self.inodes[target]
        with self._changing(folder, old, request), self._changing(other, new, request):
            _rename(folder.descriptor, old, other.descriptor, new, flags)
        return b""

    def _made(self, folder: Inode, name: bytes, request: Request) -> Inode:
        inode = self.real_entry(folder, name)
        assert inode is not None
        if request.owner[0]:
            os.chown(inode.way, *request.owner, follow_symlinks=False)
        return inode

    def _changing(self, folder: Inode, name: bytes, request: Request) -> _Changing:
        return _Changing(self, folder, name, request.node)


class _Changing:
    """A change of a folder's entry; if it is refused, the node learns the current entry."""

    def __init__(self, files: LateFiles, folder: Inode, name: bytes, node: str) -> None:
        self._files, self._folder, self._name, self._node = files, folder, name, node

    def __enter__(self) -> None:
        self._before = self._files.real_entry(self._folder, self._name)
        self._time = self._folder.status.st_mtime_ns

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        key = ("entry", self._folder.number, self._name)
        if kind is None and self._files.real_entry(self._folder, self._name) is not self._before:
            self._files.views.change(key, self._node, self._before)
            self._files.views.change(("time", self._folder.number), self._node, self._time)
        self._files.views.learn(key, self._node)


def _only(flags: int) -> int:
    """The flags for our own open: the kernel handles the others and offsets; we handle appending."""
    return flags & (os.O_ACCMODE | os.O_TRUNC) | os.O_CLOEXEC


def _is_kept(path: str) -> bool:
    """Whether the kernel may cache this: only the copies of code, which never change."""
    return path.startswith(".code/") and not path.startswith(".code/.")


_LIBC = ctypes.CDLL(None, use_errno=True)


def _rename(folder: int, old: bytes, other: int, new: bytes, flags: int) -> None:
    if _LIBC.renameat2(folder, old, other, new, flags):
        _refuse(ctypes.get_errno())


def _refuse(number: int) -> Any:
    raise OSError(number, os.strerror(number))


_FAULTY = {
    LOOKUP: (errno.ESTALE, "a look-up"),
    GETATTR: (errno.ESTALE, "a stat"),
    OPEN: (errno.ESTALE, "an open"),
    READ: (errno.EIO, "a read"),
    READDIR: (errno.EIO, "a listing"),
    WRITE: (errno.EIO, "a write"),
    CREATE: (errno.EIO, "a creation"),
    MKDIR: (errno.EIO, "a mkdir"),
    RENAME: (errno.EIO, "a rename"),
    RENAME2: (errno.EIO, "a rename"),
}
_CHANGING = {WRITE, CREATE, MKDIR, RENAME, RENAME2}


def _abort_file(mount: str) -> Path:
    """Found in the list of mounts, as the file system itself does not answer yet."""
    fields = (line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines())
    device = next(found[2] for found in fields if found[4] == mount)
    return Path("/sys/fs/fuse/connections", device.partition(":")[2], "abort")


def main() -> None:
    settings = Settings(**json.loads(sys.argv[1]))
    _LIBC.prctl(1, 15, 0, 0, 0)  # PR_SET_PDEATHSIG: SIGTERM when the tests die
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions".encode()
    if _LIBC.mount(b"late", settings.mount.encode(), b"fuse", 6, options):  # MS_NOSUID, MS_NODEV
        _refuse(ctypes.get_errno())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    files = LateFiles(settings)
    threading.Thread(target=files.guard, args=(_abort_file(settings.mount),), daemon=True).start()
    try:
        files.serve(device)
    finally:
        _LIBC.umount2(settings.mount.encode(), 2)  # MNT_DETACH
        if settings.record:
            Path(settings.record).write_text(json.dumps(files.struck))


if __name__ == "__main__":
    main()
