"""What is in an image file, without unpacking it: interpreter, packages, the environment that it will impose.

A task inside an image has the variables that enroot would give it, so that an image behaves here as under pyxis: the
host's come in, but for its language; what the image defines beats them, unless the variable was named; PATH is the
image's alone. A login shell then reads the image's /etc/profile.
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
# Never the image's to say, or of no consequence to a run.
_OWN = frozenset({"HOME", "HOSTNAME", "LOGNAME", "OLDPWD", "PATH", "PWD", "SHELL", "SHLVL", "TERM", "USER", "_"})
_LANGUAGE = frozenset({"LANG", "LANGUAGE", "LC_ALL"})  # which pyxis keeps out
_PAGE = 4096
_LINE = re.compile(
    r"(?P<kind>[-dlbcps])(?P<mode>\S{9})\s+\S+\s+(?P<size>\d+)(?:,\s*\d+)? \S+ \S+ squashfs-root(?P<path>/.*)"
)
_PACKAGE = re.compile(r"/(?:site|dist)-packages/(?P<name>[\w.]+)-(?P<version>[^/-]+)\.dist-info$")
_SHELLS = ("usr/bin/dash", "usr/bin/bash", "bin/dash", "bin/bash", "bin/busybox")  # one of them is /bin/sh, as a rule
_MACHINES = {21: "ppc64le", 22: "s390x", 62: "x86_64", 183: "aarch64", 243: "riscv64"}  # elf(5)'s e_machine
_SECONDS = 60
_MOST_STEPS = 400  # links may lead in circles


@dataclass(frozen=True)
class Contents:
    """`links` maps each path to what it links to, "" for what is no link; it is empty where only a record was read."""

    unpacked_bytes: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)  # name -> version
    python: str | None = None  # minor version, such as 3.11, where a record says so
    links: Mapping[str, str] = field(default_factory=dict)
    programs: frozenset[str] = frozenset()  # the files that can be executed
    machine: str | None = None  # whose programs these are, as uname names it

    def resolved(self, path: str) -> str:
        """Where `path` leads to through the links of the image, whether something is there or not."""
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
        """The minor version of the interpreter at `python`, by its name or by the folders of its packages."""
        for path in (self.resolved(python), python):
            if match := re.fullmatch(r"python(\d+\.\d+)", posixpath.basename(path)):
                return match[1]
        library = posixpath.join(posixpath.dirname(posixpath.dirname(python)), "lib", "python")
        found = {m[1] for path in self.links if (m := re.fullmatch(re.escape(library) + r"(\d+\.\d+)", path))}
        return found.pop() if len(found) == 1 else self.python


class Unreadable(Exception):
    """What unsquashfs says of an image that it cannot read."""


def look_into(image: Path) -> Contents | None:
    """The contents of `image`, by the record beside it, else by a listing of its files; None without unsquashfs.

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
        said = str(getattr(error, "stderr", "") or error).strip().splitlines()
        raise Unreadable(said[-1].removeprefix("FATAL ERROR: ")) from error
    return replace(_listed(lines, parse_environment(variables.splitlines())), machine=_machine(image))


def _machine(image: Path) -> str | None:
    """By the first of the usual shells that is there."""
    try:
        program = unsquashfs("-cat", str(image), *_SHELLS, check=False, seconds=_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return None
    header = program[:20].encode("utf-8", "surrogateescape")
    if not header.startswith(b"\x7fELF"):
        return None
    return _MACHINES.get(int.from_bytes(header[18:20], "little" if header[5] == 1 else "big"))


def _record(image: Path) -> ImageRecord | None:
    """What was written down of `image`, if it is of this very file."""
    from clusterctl.containers.folder import read_record  # not at every start of a task

    try:
        record = read_record(image)
    except ImageError:  # damaged: the image itself knows better
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
    """What unsquashfs prints; of files that are not all there, with `check` off, those that are.

    Raises FileNotFoundError, or SubprocessError where it fails or takes too long.
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
    """What /etc/environment or an image's configuration sets: one NAME=VALUE a line, values as they are."""
    pairs = (line.partition("=") for line in lines if not line.lstrip().startswith("#"))
    return {name.strip(): value for name, equals, value in pairs if equals and name.strip()}


def inside(host: Mapping[str, str], image: Mapping[str, str], kept: Collection[str]) -> dict[str, str]:
    """The environment of a task: `host` is what srun gave it, `kept` names what the image must not change."""
    entering = {name: value for name, value in host.items() if name in kept or name not in _LANGUAGE}
    imposed = {name: _read(value, host) for name, value in image.items() if name not in kept or name not in host}
    path = {} if "PATH" in kept and "PATH" in host else {"PATH": imposed.get("PATH", _PATH)}
    return entering | imposed | path


def overridden(host: Mapping[str, str], image: Mapping[str, str], kept: Collection[str]) -> list[str]:
    """The variables that the host sets and the image changes, where a run may care."""
    return sorted(
        name
        for name, value in image.items()
        if name in host and name not in kept and not {name} & (_OWN | _LANGUAGE) and host[name] != _read(value, host)
    )


def _read(value: str, host: Mapping[str, str]) -> str:
    """A value of /etc/environment as enroot reads it: without quotes around it, `${NAME}` being the host's."""
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
    return re.sub(r"\$\{(\w+)\}", lambda match: host.get(match[1], ""), value[1:-1] if quoted else value)
