"""The contents of an image file, read without unpacking it: interpreter, packages, and the environment it imposes.

A task inside an image gets the variables that enroot would give it, so that an image behaves here as under pyxis: the
host's variables are passed on except its locale; the image's own definitions override them unless the variable was
named; PATH comes from the image alone. A login shell then reads the image's /etc/profile.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
import shutil
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from clusterctl.shared.errors import ImageError, NotFoundError, UsageError
from clusterctl.shared.record.files import open_regular, read_json, write_text
from clusterctl.shared.spec.records import nearest, to_record

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from clusterctl.launcher.containers.archive import ImageConfig


_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The image may not set these, or they do not matter to a run.
_OWN = frozenset({"HOME", "HOSTNAME", "LOGNAME", "OLDPWD", "PATH", "PWD", "SHELL", "SHLVL", "TERM", "USER", "_"})
_LANGUAGE = frozenset({"LANG", "LANGUAGE", "LC_ALL"})  # pyxis does not pass these on
_PAGE = 4096
_LINE = re.compile(
    r"(?P<kind>[-dlbcps])(?P<mode>\S{9})\s+\S+\s+(?P<size>\d+)(?:,\s*\d+)? \S+ \S+ squashfs-root(?P<path>/.*)"
)
_PACKAGE = re.compile(r"/(?:site|dist)-packages/(?P<name>[\w.]+)-(?P<version>[^/-]+)\.dist-info$")
_SHELLS = ("usr/bin/dash", "usr/bin/bash", "bin/dash", "bin/bash", "bin/busybox")  # /bin/sh is usually one of these
_MACHINES = {21: "ppc64le", 22: "s390x", 62: "x86_64", 183: "aarch64", 243: "riscv64"}  # elf(5)'s e_machine
_SECONDS = 60
_MOST_STEPS = 400  # links may form a loop


@dataclass(frozen=True)
class Contents:
    """`links` maps each path to its link target, "" if it is not a link; it is empty if only a record was read."""

    unpacked_bytes: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)  # name -> version
    python: str | None = None  # minor version, such as 3.11, if a record has it
    links: Mapping[str, str] = field(default_factory=dict)
    programs: frozenset[str] = frozenset()  # the executable files
    machine: str | None = None  # the architecture, as uname names it

    def resolved(self, path: str) -> str:
        """Where `path` leads through the image's links, whether or not the target exists."""
        done, parts = "", path.strip("/").split("/")
        for _ in range(_MOST_STEPS):
            if not parts:
                break
            step = f"{done}/{parts.pop(0)}"
            if target := self.links.get(step):
                joined = posixpath.normpath(posixpath.join(done or "/", target, *parts))
                done, parts = "", joined.strip("/").split("/")
            else:
                done = step
        return done or "/"

    def minor_of(self, python: str) -> str | None:
        """The minor version of the interpreter at `python`, from its name or its package folders."""
        for path in (self.resolved(python), python):
            if match := re.fullmatch(r"python(\d+\.\d+)", posixpath.basename(path)):
                return match[1]
        library = posixpath.join(posixpath.dirname(posixpath.dirname(python)), "lib", "python")
        found = {m[1] for path in self.links if (m := re.fullmatch(re.escape(library) + r"(\d+\.\d+)", path))}
        return found.pop() if len(found) == 1 else self.python


class Unreadable(Exception):
    """unsquashfs cannot read the image; carries its message."""


def look_into(image: Path) -> Contents | None:
    """The contents of `image`, from the record beside it or else from a file listing; None without unsquashfs.

    Raises Unreadable.
    """
    record = None
    with suppress(ImageError):  # damaged record: read the image itself
        record = read_record(image)
    if record and record.size == image.stat().st_size:  # it describes this very file
        return Contents(None, record.environment, record.versions, record.python, machine=_machine(image))
    try:
        lines = unsquashfs("-lln", str(image), seconds=_SECONDS)
        variables = unsquashfs("-cat", str(image), "etc/environment", check=False, seconds=_SECONDS)
    except FileNotFoundError:
        return None
    except (OSError, subprocess.SubprocessError) as error:
        output = str(getattr(error, "stderr", "") or error).strip().splitlines()
        raise Unreadable(output[-1].removeprefix("FATAL ERROR: ")) from error
    total, links, packages, programs = 0, {}, {}, set()
    for match in filter(None, map(_LINE.fullmatch, lines.splitlines())):
        path, _, target = match["path"].partition(" -> ") if match["kind"] == "l" else (match["path"], "", "")
        links[path] = target
        if match["kind"] == "-" and "x" in match["mode"].lower():
            programs.add(path)
        total += -(-int(match["size"]) // _PAGE) * _PAGE if match["kind"] == "-" else 0
        if package := _PACKAGE.search(path):
            packages[package["name"].lower()] = package["version"]
    environment = parse_environment(variables.splitlines())
    return Contents(total, environment, packages, None, links, frozenset(programs), _machine(image))


def _machine(image: Path) -> str | None:
    """The architecture of the first shell found."""
    try:
        program = unsquashfs("-cat", str(image), *_SHELLS, check=False, seconds=_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return None
    header = program[:20].encode("utf-8", "surrogateescape")
    if not header.startswith(b"\x7fELF"):
        return None
    return _MACHINES.get(int.from_bytes(header[18:20], "little" if header[5] == 1 else "big"))


def unsquashfs(*words: str, check: bool = True, seconds: float | None = None) -> str:
    """The output of unsquashfs. With `check` off, requested files may be missing.

    Raises FileNotFoundError, or SubprocessError if it fails or takes too long.
    """
    done = subprocess.run(
        ["unsquashfs", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        timeout=seconds,
        check=check,
    )
    return done.stdout


def parse_environment(lines: Iterable[str]) -> dict[str, str]:
    """The variables of /etc/environment or an image's configuration: one NAME=VALUE per line, taken literally."""
    pairs = (line.partition("=") for line in lines if not line.lstrip().startswith("#"))
    return {name.strip(): value for name, equals, value in pairs if equals and name.strip()}


def inside(host: Mapping[str, str], image: Mapping[str, str], kept: Collection[str]) -> dict[str, str]:
    """A task's environment: `host` comes from srun, `kept` names the variables the image must not change."""
    entering = {name: value for name, value in host.items() if name in kept or name not in _LANGUAGE}
    imposed = {name: _read(value, host) for name, value in image.items() if name not in kept or name not in host}
    path = {} if "PATH" in kept and "PATH" in host else {"PATH": imposed.get("PATH", _PATH)}
    return entering | imposed | path


def overridden(host: Mapping[str, str], image: Mapping[str, str], kept: Collection[str]) -> list[str]:
    """The variables set by the host and changed by the image, without those that do not matter to a run."""
    return sorted(
        name
        for name, value in image.items()
        if name in host and name not in kept and not {name} & (_OWN | _LANGUAGE) and host[name] != _read(value, host)
    )


def _read(value: str, host: Mapping[str, str]) -> str:
    """A value of /etc/environment as enroot reads it: unquoted, with `${NAME}` taken from the host."""
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
    return re.sub(r"\$\{(\w+)\}", lambda match: host.get(match[1], ""), value[1:-1] if quoted else value)


# The image folder: NAME.sqsh with NAME.json beside it. New files are written under another name, then renamed.


SUFFIX = ".sqsh"
SCHEMA_VERSION = 1
_MAGIC = b"hsqs"
_SUPERBLOCK_BYTES = 96
_AT_WORK_SECONDS = 3600  # a temporary file not written for this long has been abandoned
_UNFIT = frozenset(",:+%\\\n /")  # not allowed in a name: special to pyxis's flags, Slurm's patterns or paths
# Where to look for an image's interpreter, in order of preference; its library folder is named after its version.
_LIBRARIES = ("opt/venv", "opt/conda", "usr/local", "usr")
_LIBRARY = re.compile(rf"({'|'.join(_LIBRARIES)})/lib/python(3\.\d+)(?:/(?:site|dist)-packages(?:/([^/]+))?)?")
_INSTALLED = re.compile(r"([A-Za-z0-9][\w.]*)-([^-/]+)\.dist-info")
_REPORTED = ("clusterctl", "submitit", "torch", "torch_geometric", "numpy", "scipy", "numba")


@dataclass(frozen=True, kw_only=True)
class ImageRecord:
    """An image of the image folder."""

    name: str
    digest: str  # sha256 of the image's configuration, or of the .sqsh if it has none: identifies the image
    sqsh: str  # sha256 of the .sqsh
    size: int  # of the .sqsh, in bytes
    source: str  # a reference, a file name, or how it was built
    created: float  # seconds since the epoch
    python: str | None = None  # minor version, such as "3.11"
    versions: Mapping[str, str] = field(default_factory=dict)  # of the packages that training needs
    environment: Mapping[str, str] = field(default_factory=dict)  # variables that the image sets for a task
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Image:
    """One image of the folder. `record` is None if it is damaged, or if the file was put there by other means."""

    path: Path
    record: ImageRecord | None
    problem: str = ""  # with the record

    @property
    def name(self) -> str:
        return self.path.stem


class PackageScan:
    """Finds Python and its packages from the paths of a root file system, passed in one by one."""

    def __init__(self) -> None:
        self._pythons: dict[str, str] = {}  # prefix -> minor version
        self._packages: dict[str, dict[str, str]] = {}  # prefix -> package -> version

    def see(self, path: str) -> None:
        """Inspect `path`, relative to the root."""
        match = _LIBRARY.fullmatch(path)
        if not match:
            return
        prefix, minor, entry = match.groups()
        self._pythons.setdefault(prefix, minor)
        if entry and (package := _INSTALLED.fullmatch(entry)):
            self._packages.setdefault(prefix, {})[package[1].lower().replace("-", "_")] = package[2]

    @property
    def python(self) -> str | None:
        return next((self._pythons[prefix] for prefix in _LIBRARIES if prefix in self._pythons), None)

    @property
    def versions(self) -> dict[str, str]:
        """Package -> the version that the preferred interpreter would import."""
        merged: dict[str, str] = {}
        for prefix in reversed(_LIBRARIES):
            merged |= self._packages.get(prefix, {})
        return {name: merged[name] for name in _REPORTED if name in merged}


def check_name(name: str) -> str:
    """`name`, if it is a valid file name that every flag can carry. Raises UsageError."""
    if not name or name.startswith((".", "-")) or _UNFIT & set(name) or not name.isprintable():
        raise UsageError(f"invalid image name: {name!r}", "use letters, digits, '-', '_' and '.'")
    return name


def name_of(reference: str) -> str:
    """A file name for `reference`: nvcr.io#nvidia/pyg:24.11-py3 becomes nvcr.io-nvidia-pyg-24.11-py3."""
    reference = reference.rpartition("://")[2]  # of an image on this machine: dockerd://mine
    without_user = reference.rpartition("@")[2] if "@sha256:" not in reference else reference
    short = re.sub(r"@sha256:([0-9a-f]{12})[0-9a-f]*", r"-\1", without_user)
    return re.sub(r"[^\w.-]+", "-", short, flags=re.ASCII).strip("-.")


def record_path(sqsh: Path) -> Path:
    return sqsh.with_suffix(".json")


def read_record(sqsh: Path) -> ImageRecord | None:
    """The record of the image at `sqsh`; None if there is none. Raises ImageError if it is damaged."""
    path = record_path(sqsh)
    try:
        found: Any = read_json(path)
        if found is None:
            return None
        if found.pop("schema_version") != SCHEMA_VERSION:
            raise ImageError(f"written by another clusterctl: {path}", f"clusterctl image verify {sqsh.stem}")
        return ImageRecord(**found)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ImageError(f"damaged: {path}", f"import or build the image again, or remove it: rm {path}") from error


def images_in(folder: Path) -> list[Image]:
    """All images, by name."""
    return [_looked_at(path) for path in sorted(folder.glob(f"[!.]*{SUFFIX}")) if path.is_file()]


def _looked_at(path: Path) -> Image:
    try:
        return Image(path, read_record(path))
    except ImageError as error:
        return Image(path, None, error.message)


def find_image(folder: Path, name: str) -> Image:
    """The image called `name` in `folder`, or the file at the path `name`. Raises NotFoundError."""
    path = Path(name) if "/" in name else folder / f"{name.removesuffix(SUFFIX)}{SUFFIX}"
    if not path.is_file():
        close = nearest(name.removesuffix(SUFFIX), [image.name for image in images_in(folder)])
        hint = f"did you mean {close}?" if close else "list images with: clusterctl image list"
        raise NotFoundError(f"no such image: {path}", hint)
    return _looked_at(path)


def imported(folder: Path, reference: str, name: str | None = None) -> Image | None:
    """The image imported earlier from `reference` as `name`, or None."""
    path = folder / f"{name or name_of(reference)}{SUFFIX}"
    found = _looked_at(path) if path.is_file() else None
    return found if found and found.record and found.record.source == reference else None


def publish(sqsh: Path, folder: Path, name: str, source: str, scan: PackageScan, config: ImageConfig) -> Image:
    """Rename the finished file `sqsh` into `folder`, on the same file system; its record goes first.

    A visible image thus always has a record; between the two renames an older image has the newer record.
    """
    checksum = sha256_of(sqsh)
    record = ImageRecord(
        name=name,
        digest=config.digest or f"sha256:{checksum}",
        sqsh=checksum,
        size=sqsh.stat().st_size,
        source=source,
        created=time.time(),
        python=scan.python,
        versions=scan.versions,
        environment=parse_environment(config.environment),
        labels=dict(config.labels),
    )
    target = folder / f"{name}{SUFFIX}"
    write_record(target, record)
    with sqsh.open("rb+") as file:
        os.fsync(file.fileno())
    sqsh.replace(target)
    return Image(target, record)


def write_record(sqsh: Path, record: ImageRecord) -> None:
    """Write the record of the image at `sqsh`, readable by everybody."""
    text = json.dumps({"schema_version": SCHEMA_VERSION, **to_record(record)}, indent=1)
    write_text(record_path(sqsh), f"{text}\n", mode=0o644)


def is_squashfs(path: Path) -> bool:
    """Whether `path` starts with the squashfs magic number."""
    with open_regular(path) as file:
        return file.read(len(_MAGIC)) == _MAGIC


def sha256_of(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(cast("Any", file), "sha256").hexdigest()


def verify(image: Image) -> list[str]:
    """The problems with `image`; empty if it matches its record to the last byte."""
    if not is_squashfs(image.path):
        return ["not a squashfs"]
    size = image.path.stat().st_size
    with open_regular(image.path) as file:
        superblock = file.read(_SUPERBLOCK_BYTES)
    # The length according to the superblock, or more than the file has if the superblock itself is cut off.
    whole = max(int.from_bytes(superblock[40:48], "little"), _SUPERBLOCK_BYTES)
    if size < whole:
        return [f"truncated: {size} of {whole} bytes"]
    if image.record is None:
        return [image.problem or f"no record beside it: {record_path(image.path)}"]
    if size != image.record.size:
        return [f"it has {size} bytes, but its record has {image.record.size}"]
    return [] if sha256_of(image.path) == image.record.sqsh else ["its checksum differs from its record"]


def leftovers(folder: Path, now: float) -> list[Path]:
    """Files left in `folder` by killed builds and imports, and records without an image; `now` as time.time()."""
    aside = []
    for path in folder.glob(".*"):
        # A running build writes its squashfs, not its folder. Others may put links into the folder of a group.
        below = [] if path.is_symlink() else [*path.rglob("*")]
        if now - max(one.lstat().st_mtime for one in [path, *below]) > _AT_WORK_SECONDS:
            aside.append(path)
    orphans = [path for path in folder.glob("[!.]*.json") if not path.with_suffix(SUFFIX).exists()]
    return sorted([*aside, *orphans])


def remove(path: Path) -> None:
    """Remove an image with its record, or one of the leftovers."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
        return
    path.unlink(missing_ok=True)
    if path.suffix == SUFFIX:
        record_path(path).unlink(missing_ok=True)
