"""What would go wrong with a container, told before anything is submitted: pure checks over facts.

On a cluster the image and the mounts are looked for by the node, hours later; most of it can be seen from here.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clusterctl.containers.image_environment import overridden

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from clusterctl.containers.contents import Contents
    from clusterctl.containers.view import View

OLDEST_PYTHON = (3, 11)


@dataclass(frozen=True, kw_only=True)
class Place:
    """A path on this machine. It is `foreign` where not even its first folder is here: the nodes may have it."""

    exists: bool
    foreign: bool = False


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known before a submission. None: nobody asked, or it cannot be known from here."""

    view: View
    python: str  # the tasks' interpreter
    brings_code: bool = False  # the image has the code of the run
    brings_packages: bool = False  # the job has a PYTHONPATH of its own, with who knows what
    srun_help: str | None = None  # of a cluster with pyxis
    image: Place | None = None  # None: a reference, which pyxis fetches
    problem: str = ""  # why the image cannot be read
    squashfs: bool = True
    contents: Contents | None = None
    has_unsquashfs: bool = True
    unpacks_here: bool = False  # this machine will run the image
    builtin: bool = False  # clusterctl's own runner will, wherever
    gpus: int = 0  # of a node
    sources: Mapping[str, Place] = field(default_factory=dict)  # of the mounts
    rooms: Mapping[str, int] | None = None  # folder -> bytes free; None: nothing is to be unpacked
    environment: Mapping[str, str] = field(default_factory=dict)  # the submitter's


@dataclass(frozen=True)
class Complaint:
    """One thing that is wrong, and what to do; a warning where the run may go well all the same."""

    message: str
    hint: str
    fatal: bool = True
    of_slurm: bool = False


def examine(facts: Facts) -> list[Complaint]:
    """Everything that is wrong, what stops a run first."""
    rules = (_pyxis, _image, _mounts, _inside, _room, _gpus, _overridden)
    found = [complaint for rule in rules for complaint in rule(facts)]
    return sorted(found, key=lambda complaint: not complaint.fatal)


def _pyxis(facts: Facts) -> Iterator[Complaint]:
    if facts.srun_help is not None and "--container-image" not in facts.srun_help:
        message = "this Slurm has no pyxis: srun --help shows no --container-image"
        hint = 'set container_runtime = "builtin" in the cluster file, or ask your administrator for pyxis'
        yield Complaint(message, hint, of_slurm=True)


def _image(facts: Facts) -> Iterator[Complaint]:
    image = facts.view.image
    if facts.image is None:
        return
    if facts.image.foreign:
        yield Complaint(f"not on this machine: {image}", "the nodes must have it; nobody looked into it", fatal=False)
    elif not facts.image.exists:
        yield Complaint(f"no such image: {image}", "clusterctl image list; or build one: clusterctl image build")
    elif facts.problem:
        yield Complaint(f"cannot read the image: {image}: {facts.problem}", f"clusterctl image verify {image}")
    elif not facts.squashfs:
        yield Complaint(f"not a squashfs: {image}", f"make one of it: clusterctl image import {image}")
    elif not facts.has_unsquashfs:
        message = f"no unsquashfs on PATH to {'unpack' if facts.unpacks_here else 'look into'} {image}"
        yield Complaint(message, "apt-get install squashfs-tools", fatal=facts.unpacks_here)


def _gpus(facts: Facts) -> Iterator[Complaint]:
    """Without pyxis nobody brings the driver's libraries into the image."""
    if facts.gpus and facts.builtin and not any("libcuda" in mount.target for mount in facts.view.mounts):
        message = "without pyxis an image gets the GPUs, but not the driver's libraries"
        yield Complaint(message, "mount them: libcuda.so.1 and libnvidia-ml.so.1 of the nodes", fatal=False)


def _mounts(facts: Facts) -> Iterator[Complaint]:
    for source, place in facts.sources.items():
        if place.foreign:
            yield Complaint(f"not on this machine: {source}, to be mounted", "the nodes must have it", fatal=False)
        elif not place.exists:
            yield Complaint(f"no such folder to mount: {source}", f"mkdir -p {source}; or correct [container] mounts")
    targets: dict[str, str] = {}
    for mount in facts.view.mounts:
        if targets.setdefault(mount.target, mount.source) != mount.source:
            message = f"two mounts at the same place: {targets[mount.target]} and {mount.source} at {mount.target}"
            yield Complaint(message, "mount one of them elsewhere: SRC:DST")


def _inside(facts: Facts) -> Iterator[Complaint]:
    """Interpreter and packages, as far as the image's own files tell: what is mounted into it is not looked at."""
    contents, python = facts.contents, facts.python
    if contents is None or not python.startswith("/"):
        return
    place = contents.resolved(python)
    if any(_is_below(place, mount.target) for mount in facts.view.mounts):
        return
    if contents.links and place not in contents.links:
        known = [path for path in contents.links if re.fullmatch(r"python3?", posixpath.basename(path))]
        hint = f"set `python` in the cluster file: {known[0]}" if known else "install one there, as containers/ does"
        yield Complaint(f"no {python} in the image", hint)
        return
    minor = contents.minor_of(python)
    if minor and tuple(map(int, minor.split("."))) < OLDEST_PYTHON:
        yield Complaint(f"{python} in the image is Python {minor}", "clusterctl needs 3.11 or later there")
    needed = ["submitit", *(["clusterctl"] if facts.brings_code else [])]
    missing = [name for name in needed if name not in contents.packages]
    if missing and not facts.brings_packages:
        hint = f"install it there: {python} -m pip install clusterctl"
        yield Complaint(f"{python} in the image has no {' and no '.join(missing)}", hint)


def _room(facts: Facts) -> Iterator[Complaint]:
    needed = facts.contents.unpacked_bytes if facts.contents else None
    if needed is None or facts.rooms is None or any(room > needed for room in facts.rooms.values()):
        return
    rooms = ", ".join(f"{folder} ({room / 1e6:.0f} MB free)" for folder, room in facts.rooms.items()) or "no folder"
    message = f"no room to unpack {facts.view.image}: {needed / 1e6:.0f} MB into {rooms}"
    yield Complaint(message, "set CLUSTERCTL_UNPACK to a folder on a larger disk of this machine's own")


def _overridden(facts: Facts) -> Iterator[Complaint]:
    if facts.contents is None:
        return
    names = overridden(facts.environment, facts.contents.environment, facts.view.environment)
    if names:
        message = f"the image sets {', '.join(names)} otherwise than your environment does, and wins"
        yield Complaint(message, "to keep your value, name it in the job file's [env]", fatal=False)


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
