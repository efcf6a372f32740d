"""The wheels of an image, downloaded once, here: a build needs no network, and no certificates of the site."""

from __future__ import annotations

import hashlib
import json
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

from clusterctl.errors import ImageError
from clusterctl.runs.once import prepared_once

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

# Every glibc that wheels are made for, up to that of Debian 12 and Ubuntu 22.04.
_GLIBC_MINORS = range(35, 4, -1)
_EXTRA = re.compile(r"""extra\s*==\s*["']([\w-]+)["']""")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What an image needs to have installed."""

    python: str  # minor version, such as "3.11"
    requirements: tuple[str, ...]

    @property
    def key(self) -> str:
        facts = [self.python, platform.machine(), *sorted(self.requirements)]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def wanted(python: str, extras: Iterable[str], *, own_torch: bool, replacing: Iterable[str] = ()) -> Wanted:
    """clusterctl's own requirements with `extras`, in the versions that are installed here where there are any.

    So a run computes inside its image what it computes outside. `replacing` are requirements that win over these, such
    as "torch==2.13.0"; with `own_torch` the base image's is kept.
    """
    chosen = {_name(one): one for one in replacing}
    found: dict[str, str] = {}
    for line in metadata.requires("clusterctl") or ():
        requirement, _, marker = line.partition(";")
        extra = _EXTRA.search(marker)
        if extra is None or extra[1] in extras:
            found[_name(requirement)] = requirement.strip()
    found["pip"] = "pip"
    pinned = {name: chosen.get(name) or _as_here(name) or requirement for name, requirement in found.items()}
    pinned |= {name: requirement for name, requirement in chosen.items() if name not in pinned}
    if own_torch:
        pinned.pop("torch", None)
    return Wanted(python=python, requirements=tuple(sorted(pinned.values())))


def wheelhouse(cache: Path, want: Wanted, *, fresh: bool = False) -> Path:
    """The folder with the wheels of `want` and all that they need, downloaded if it is not there yet, or `fresh`.

    Raises ImageError if pip cannot get them.
    """
    folder = cache / "wheelhouses" / want.key
    if fresh and folder.exists():
        shutil.rmtree(folder)
    return prepared_once(folder, lambda building: _download(building, want))


def _download(folder: Path, want: Wanted) -> None:
    machine = platform.machine()
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in _GLIBC_MINORS]
    platforms += [f"manylinux2014_{machine}", f"linux_{machine}"]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    command += ["--dest", str(folder), "--only-binary=:all:", "--implementation=cp", f"--python-version={want.python}"]
    command += [f"--platform={one}" for one in platforms]
    done = subprocess.run([*command, *want.requirements], capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        raise _failure(done.stderr, want)


def _failure(said: str, want: Wanted) -> ImageError:
    lines = [line for line in said.splitlines() if line.startswith("ERROR")] or said.splitlines()[-1:]
    message = lines[-1].removeprefix("ERROR: ") if lines else "it said nothing"
    if "No module named pip" in said:
        return ImageError("there is no pip beside this Python to download wheels with", "python -m ensurepip")
    if "No space left" in said:
        return ImageError(f"no space left for wheels: {message}", "see: df -h")
    if "No matching distribution" in said and "torch" in message:
        hint = "name the index that has it: PIP_EXTRA_INDEX_URL=...; or choose another: --with 'torch>=2.6'"
    else:
        hint = "is there a network here? pip's settings count: pip config list"
    return ImageError(f"cannot download wheels for Python {want.python}: {message}", hint)


def _as_here(name: str) -> str:
    """The version that is installed here, pinned; nothing where it is not."""
    try:
        return f"{name}=={metadata.version(name)}"
    except metadata.PackageNotFoundError:
        return ""


def _name(requirement: str) -> str:
    match = _NAME.match(requirement.strip())
    return match[0].lower().replace("_", "-") if match else requirement
