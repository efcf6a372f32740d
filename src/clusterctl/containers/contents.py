"""The contents of an image file, read without unpacking it: interpreter, packages, and the environment it imposes.

A task inside an image gets the variables that enroot would give it, so that an image behaves here as under pyxis: the
host's variables are passed on except its locale; the image's own definitions override them unless the variable was
named; PATH comes from the image alone. A login shell then reads the image's /etc/profile.
"""

from __future__ import annotations

import posixpath
import re
import subprocess
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from clusterctl.errors import ImageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path

    from clusterctl.containers.folder import ImageRecord

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
    if record := _record(image):
        return Contents(None, record.environment, record.versions, record.python, machine=_machine(image))
    try:
        lines = unsquashfs("-lln", str(image), seconds=_SECONDS)
        variables = unsquashfs("-cat", str(image), "etc/environment", check=False, seconds=_SECONDS)
    except FileNotFoundError:
        return None
    except (OSError, subprocess.SubprocessError) as error:
        output = str(getattr(error, "stderr", "") or error).strip().splitlines()
        raise Unreadable(output[-1].removeprefix("FATAL ERROR: ")) from error
    return replace(_listed(lines, parse_environment(variables.splitlines())), machine=_machine(image))


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


def _record(image: Path) -> ImageRecord | None:
    """The record of `image`, if it describes this very file."""
    from clusterctl.containers.folder import read_record  # imported late: not needed at every task start

    try:
        record = read_record(image)
    except ImageError:  # damaged record: read the image itself
        return None
    return record if record and record.size == image.stat().st_size else None


def _listed(listing: str, environment: Mapping[str, str]) -> Contents:
    total, links, packages, programs = 0, {}, {}, set()
    for match in filter(None, map(_LINE.fullmatch, listing.splitlines())):
        path, _, target = match["path"].partition(" -> ") if match["kind"] == "l" else (match["path"], "", "")
        links[path] = target
        if match["kind"] == "-" and "x" in match["mode"].lower():
            programs.add(path)
        total += -(-int(match["size"]) // _PAGE) * _PAGE if match["kind"] == "-" else 0
        if package := _PACKAGE.search(path):
            packages[package["name"].lower()] = package["version"]
    return Contents(total, environment, packages, None, links, frozenset(programs))


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
