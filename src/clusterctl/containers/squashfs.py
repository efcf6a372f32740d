"""A root file system, member by member, into a squashfs that pyxis and enroot run: no root, no unpacking, no devices.

The members go to mksquashfs as a tar stream; nothing of them is ever a file on this machine. What enroot needs to know
of an image's configuration lies in four files: /etc/environment, /etc/fstab, /etc/rc and /etc/rc.local.
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

from clusterctl.containers.image_layers import DEVICES, BadArchive, merge, parts_of
from clusterctl.errors import ImageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from clusterctl.containers.archive import Archive, ImageConfig
    from clusterctl.containers.image_layers import Content

# zstd at level 3 is 14 times as fast as enroot's default, and half the size (docs/benchmarks.md).
COMPRESSION = ("-comp", "zstd", "-Xcompression-level", "3", "-b", "1M")
_MOST_SPARSE = 2**30  # engines write no sparse files; a few bytes could claim to be terabytes
_MEBIBYTE = 2**20

_VOLUME = "none x-create=dir,bind,rw,nosuid,nodev"  # a folder of the root itself, bound over a root that is read-only

# A member of the root: path, links, modes and size as the tar format has them, and the content of a file.
Member = tuple[tarfile.TarInfo, "IO[bytes] | None"]


def members_of(archive: Archive) -> Iterator[Member]:
    """The merged root of `archive`, folders first; of hard links the first in order is the file."""
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
    """The root that `docker export` or `tar` writes, which is merged already. Raises BadArchive if it breaks off."""
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
    """What enroot reads of an image's configuration: path -> text."""
    variables = [line.split("\n", 1)[0] for line in config.environment]  # one a line: there is no way to quote
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
    return {
        "etc/environment": "".join(f"{line}\n" for line in variables),
        "etc/fstab": "".join(f"${{ENROOT_ROOTFS}}{path} {path} {_VOLUME}\n" for path in map(_field, config.volumes)),
        "etc/rc": "\n".join(rc) + "\n",
        "etc/rc.local": "",
    }


def _field(path: str) -> str:
    """A field of fstab(5): what would end it is written in octal."""
    return re.sub(r"[\s\\]", lambda match: f"\\{ord(match[0]):03o}", path, flags=re.ASCII)


def pack(
    members: Iterable[Member],
    config: ImageConfig,
    target: Path,
    seen: Callable[[str], None],
    progress: Callable[[int], None],
) -> None:
    """Write `members` and what `config` says as a squashfs to `target`, a new file.

    `seen` gets every path, `progress` the bytes that it added. Raises ImageError without mksquashfs or room.
    """
    ours = configuration_files(config)
    needed = [_folders_to(path) for path in (config.workdir, *config.volumes)]
    on_the_way: dict[str, bool | None] = dict.fromkeys(chain.from_iterable(needed))  # None: missing; is it a folder?
    with _mksquashfs(target) as stream, _written(stream) as root:
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


def _written(stream: IO[bytes]) -> tarfile.TarFile:
    """A tar file to be written to `stream`; tarfile's own streams copy everything twice more."""
    return tarfile.TarFile(
        fileobj=cast("IO[bytes]", _Counted(stream)),
        mode="w",
        format=tarfile.GNU_FORMAT,
        encoding="utf-8",
        errors="surrogateescape",
        copybufsize=_MEBIBYTE,
    )


class _Counted:
    """A pipe to write to; tarfile asks where it begins."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.write = stream.write

    def tell(self) -> int:
        return 0


class _Forward:
    """A pipe as a file that is read from its beginning to its end, skipping what is not wanted."""

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
    """The folders on the way to an image's working directory or volume, which is one, too.

    /etc/rc cannot make them in a root that is read-only; for a volume enroot would make one that nobody may enter.
    """
    parts = [part for part in path.split("/") if part not in ("", ".")]
    return [] if ".." in parts else ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _folder(path: str) -> tarfile.TarInfo:
    folder = tarfile.TarInfo(path)
    folder.type, folder.mode = tarfile.DIRTYPE, 0o755
    return folder


def _plainly(member: tarfile.TarInfo, name: str) -> tarfile.TarInfo:
    """`member` under `name` as anybody can unpack and remove it: root's, and its owner may read, write and enter."""
    if member.issparse() and member.size > _MOST_SPARSE:
        raise BadArchive(f"a sparse file of {member.size / 1e9:.0f} GB: {name}")
    plain = tarfile.TarInfo(name)
    plain.type, plain.size = member.type, 0
    if member.isreg():  # sparse and contiguous files are read as plain ones
        plain.type, plain.size = tarfile.REGTYPE, member.size
    plain.linkname = member.linkname
    plain.mode = stat.S_IMODE(member.mode) | (0o700 if member.isdir() else 0o600)
    plain.mtime = max(0, min(int(member.mtime), 2**32 - 1))  # what squashfs can hold
    return plain


@contextmanager
def _mksquashfs(target: Path) -> Iterator[IO[bytes]]:
    """What is written to the stream, a tar file, becomes the squashfs `target`."""
    program = shutil.which("mksquashfs")
    if program is None:
        raise ImageError("no mksquashfs on PATH", "apt install squashfs-tools")
    options = ["-tar", "-noappend", "-no-progress", "-quiet", "-all-root", "-root-mode", "0755", "-no-xattrs"]
    command = [program, "-", str(target), *COMPRESSION, *options]
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said, stderr=said, pipesize=_MEBIBYTE) as process,
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
            said.seek(0)
            raise _failure(said.read().decode(errors="replace"), target)


def _failure(said: str, target: Path) -> ImageError:
    if "No space left" in said:
        return ImageError(f"no space left for the image: {target.parent}", f"df -h {target.parent}")
    if "nvalid option" in said or "nvalid compressor" in said or "not supported" in said:
        hint = "squashfs-tools 4.5 or later is needed; see: mksquashfs -version"
        return ImageError("mksquashfs is too old here", hint)
    last = said.strip().splitlines()[-1:] or ["it said nothing"]
    return ImageError(f"mksquashfs failed: {last[0]}", f"is there room, and may you write to {target.parent}?")
