"""Pack a root file system, member by member, into a squashfs for pyxis and enroot: no root, no unpacking, no devices.

The members go to mksquashfs as a tar stream and are never files on this machine. enroot reads an image's
configuration from four files: /etc/environment, /etc/fstab, /etc/rc and /etc/rc.local.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import stat
import subprocess
import tarfile
import tempfile
import time
from contextlib import contextmanager, suppress
from io import BytesIO
from itertools import chain
from typing import IO, TYPE_CHECKING, cast

from clusterctl.launcher.containers.archive import DEVICES, BadArchive, merge, parts_of
from clusterctl.shared.errors import ImageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from clusterctl.launcher.containers.archive import Archive, Content, ImageConfig

# zstd at level 3 is 14 times as fast as enroot's default at half the size (docs/benchmarks/starting-and-recovery.md).
COMPRESSION = ("-comp", "zstd", "-Xcompression-level", "3", "-b", "1M")
_MOST_SPARSE = 2**30  # engines write no sparse files, and a few bytes could claim to be terabytes
_MEBIBYTE = 2**20

_VOLUME = "none x-create=dir,bind,rw,nosuid,nodev"  # bind a folder over itself: writable in a read-only root

# A member of the root: path, links, mode and size as in the tar format, and the content of a file.
Member = tuple[tarfile.TarInfo, "IO[bytes] | None"]


def members_of(archive: Archive) -> Iterator[Member]:
    """The merged root of `archive`, folders first; the first of several hard links is stored as the file."""
    written: dict[Content, str] = {}
    for path, content in merge(archive.layers):
        if content is None:
            yield _folder(path), None
        elif content in written:
            link = tarfile.TarInfo(path)
            link.type, link.linkname = tarfile.LNKTYPE, written[content]
            yield link, None
        elif content.member.isreg():
            written[content] = path
            yield _plainly(content.member, path), archive.layers[content.layer].extractfile(content.member)
        else:
            yield _plainly(content.member, path), None


def members_of_stream(stream: IO[bytes]) -> Iterator[Member]:
    """The already merged root that `docker export` or `tar` writes. Raises BadArchive if the stream is truncated."""
    pipe = cast("IO[bytes]", _Forward(stream))
    try:
        with tarfile.open(fileobj=pipe, mode="r:", encoding="utf-8", errors="surrogateescape") as archive:
            for member in archive:
                parts = parts_of(member)
                if parts and parts != [".dockerenv"] and member.type not in DEVICES:
                    plain = _plainly(member, "/".join(parts))
                    if member.islnk():
                        plain.linkname = "/".join(parts_of(member, link=True))
                    yield plain, archive.extractfile(member) if member.isreg() else None
    except tarfile.TarError as error:
        raise BadArchive(str(error)) from error


def configuration_files(config: ImageConfig) -> dict[str, str]:
    """The files from which enroot reads an image's configuration: path -> text."""
    variables = [line.split("\n", 1)[0] for line in config.environment]  # one per line; newlines cannot be quoted
    comments = [f"# {key} {value}".replace("\n", " ") for key, value in sorted(config.labels.items())]
    workdir = shlex.quote(config.workdir)
    words = [shlex.join(config.entrypoint)] if config.entrypoint else []
    command = config.command or (() if config.entrypoint else ("/bin/sh",))
    rc = [
        *comments,
        f"mkdir -p {workdir} 2>/dev/null",
        f"cd {workdir} && unset OLDPWD || exit 1",
        "if [ -s /etc/rc.local ]; then",
        "  . /etc/rc.local",
        "fi",
        "if [ $# -gt 0 ]; then",
        "  " + " ".join(["exec", *words, '"$@"']),
        "else",
        "  " + " ".join(["exec", *words, *([shlex.join(command)] if command else [])]),
        "fi",
    ]
    # fstab(5) needs separators in octal.
    volumes = [
        re.sub(r"[\s\\]", lambda found: f"\\{ord(found[0]):03o}", path, flags=re.ASCII) for path in config.volumes
    ]
    return {
        "etc/environment": "".join(f"{line}\n" for line in variables),
        "etc/fstab": "".join(f"${{ENROOT_ROOTFS}}{path} {path} {_VOLUME}\n" for path in volumes),
        "etc/rc": "\n".join(rc) + "\n",
        "etc/rc.local": "",
    }


def pack(
    members: Iterable[Member],
    config: ImageConfig,
    target: Path,
    seen: Callable[[str], None],
    progress: Callable[[int], None],
) -> None:
    """Write `members` and the settings of `config` to `target`, a new squashfs.

    `seen` gets every path, `progress` the bytes it added. Raises ImageError if mksquashfs or disk space is missing.
    """
    ours = configuration_files(config)
    needed = [_folders_to(path) for path in (config.workdir, *config.volumes)]
    on_the_way: dict[str, bool | None] = dict.fromkeys(chain.from_iterable(needed))  # None: missing; is it a folder?
    with (
        _mksquashfs(target) as stream,
        tarfile.TarFile(  # its own stream mode would copy everything twice more
            fileobj=cast("IO[bytes]", _Counted(stream)),
            mode="w",
            format=tarfile.GNU_FORMAT,
            encoding="utf-8",
            errors="surrogateescape",
            copybufsize=_MEBIBYTE,
        ) as root,
    ):
        for member, data in members:
            if member.name == "etc" and not member.isdir():
                raise ImageError("bad image: /etc is not a folder", "build it from an ordinary base image")
            if member.name.startswith("etc/") and "/".join(member.name.split("/")[:2]) in ours:
                continue
            root.addfile(member, data)
            if member.name in on_the_way:
                on_the_way[member.name] = member.isdir()
            seen(member.name)
            progress(member.size)
        for folders in needed:
            for path in folders if all(on_the_way[path] is not False for path in folders) else ():
                if on_the_way[path] is None:
                    root.addfile(_folder(path))
                    on_the_way[path] = True
        for name, text in ours.items():
            file = tarfile.TarInfo(name)
            file.size, file.mtime = len(text.encode()), int(time.time())
            file.mode = 0o755 if name == "etc/rc" else 0o644
            root.addfile(file, BytesIO(text.encode()))


class _Counted:
    """A pipe to write to that knows its position: tarfile asks for it at the start."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.write = stream.write

    def tell(self) -> int:
        return 0


class _Forward:
    """A pipe presented as a file that can only be read and skipped forward."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._position = 0

    def tell(self) -> int:
        return self._position

    def read(self, size: int) -> bytes:
        content = self._stream.read(size)
        self._position += len(content)
        return content

    def seek(self, position: int) -> int:
        if position < self._position:
            raise OSError(errno.ESPIPE, os.strerror(errno.ESPIPE))
        while self._position < position and self.read(min(position - self._position, _MEBIBYTE)):
            pass
        return self._position


def _folders_to(path: str) -> list[str]:
    """An image's working directory or volume and its parent folders.

    /etc/rc cannot create them in a read-only root; for a volume enroot would create one that nobody can enter.
    """
    parts = [part for part in path.split("/") if part not in ("", ".")]
    return [] if ".." in parts else ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _folder(path: str) -> tarfile.TarInfo:
    folder = tarfile.TarInfo(path)
    folder.type, folder.mode = tarfile.DIRTYPE, 0o755
    return folder


def _plainly(member: tarfile.TarInfo, name: str) -> tarfile.TarInfo:
    """`member` as `name`, so that anyone can unpack and remove it: owned by root, with full access for the owner."""
    if member.issparse() and member.size > _MOST_SPARSE:
        raise BadArchive(f"sparse file of {member.size / 1e9:.0f} GB: {name}")
    plain = tarfile.TarInfo(name)
    plain.type, plain.size = member.type, 0
    if member.isreg():  # sparse and contiguous files become regular ones
        plain.type, plain.size = tarfile.REGTYPE, member.size
    plain.linkname = member.linkname
    plain.mode = stat.S_IMODE(member.mode) | (0o700 if member.isdir() else 0o600)
    plain.mtime = max(0, min(int(member.mtime), 2**32 - 1))  # squashfs stores 32 bits
    return plain


@contextmanager
def _mksquashfs(target: Path) -> Iterator[IO[bytes]]:
    """A stream for a tar file, which becomes the squashfs `target`."""
    program = shutil.which("mksquashfs")
    if program is None:
        raise ImageError("mksquashfs is not on PATH", "apt install squashfs-tools")
    options = ["-tar", "-noappend", "-no-progress", "-quiet", "-all-root", "-root-mode", "0755", "-no-xattrs"]
    command = [program, "-", str(target), *COMPRESSION, *options]
    with (
        tempfile.TemporaryFile() as output,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output, pipesize=_MEBIBYTE) as process,
    ):
        assert process.stdin is not None
        try:
            yield process.stdin
            process.stdin.close()
        except BrokenPipeError:
            with suppress(BrokenPipeError):
                process.stdin.close()
        except BaseException:
            process.kill()
            raise
        if process.wait() != 0:
            output.seek(0)
            raise _failure(output.read().decode(errors="replace"), target)


def _failure(output: str, target: Path) -> ImageError:
    if "No space left" in output:
        return ImageError(f"no space left for the image: {target.parent}", f"df -h {target.parent}")
    if "nvalid option" in output or "nvalid compressor" in output or "not supported" in output:
        hint = "install squashfs-tools 4.5 or later; see: mksquashfs -version"
        return ImageError("mksquashfs is too old", hint)
    last = output.strip().splitlines()[-1:] or ["no output"]
    return ImageError(f"mksquashfs failed: {last[0]}", f"check free space and your write permission: {target.parent}")
