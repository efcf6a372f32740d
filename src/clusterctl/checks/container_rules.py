"""Container: what would go wrong with the image and the mounts, judged before anything is submitted.

On a cluster the node looks for the image and the mounts, hours later; most of it can be seen from here.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from typing import TYPE_CHECKING

from clusterctl.checks.check import Check, Verdict, fail, ok, warn
from clusterctl.checks.interpreter_rules import OLDEST_PYTHON, requirement
from clusterctl.containers.contents import overridden
from clusterctl.errors import SlurmError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.checks.surroundings import ContainerFacts, Surroundings

_SHOWN = ("torch", "torch_geometric", "submitit", "clusterctl")  # of the packages in an image


def container_rules(found: Surroundings) -> Iterator[Check]:
    facts = found.container
    if facts is None:
        return
    rules = (_pyxis, _image, _mounts, _inside, _room, _gpus, _overridden)
    problems = [check for rule in rules for check in rule(facts)]
    yield from problems or [ok("image", _described(facts))]


def _described(facts: ContainerFacts) -> str:
    if facts.contents is None:
        return f"{facts.view.image}, contents not inspected"
    packages, minor = facts.contents.packages, facts.contents.minor_of(facts.python)
    known = [f"{name} {packages[name]}" for name in _SHOWN if name in packages]
    return ", ".join([facts.view.image, *([f"Python {minor}"] if minor else []), *known])


def _pyxis(facts: ContainerFacts) -> Iterator[Check]:
    if facts.srun_help is not None and "--container-image" not in facts.srun_help:
        message = "this Slurm has no pyxis: srun --help shows no --container-image"
        hint = 'set container_runtime = "builtin" in the cluster file, or ask your administrator for pyxis'
        yield Check("image", Verdict.FAIL, message, hint, error=SlurmError)


def _image(facts: ContainerFacts) -> Iterator[Check]:
    image = facts.view.image
    if facts.image is None:
        return
    if not facts.image.there and not facts.image.visible:
        yield warn("image", f"not on this machine: {image}", "the nodes must have it; its contents were not inspected")
    elif not facts.image.there:
        yield fail("image", f"no such image: {image}", "clusterctl image list; or build one: clusterctl image build")
    elif facts.problem:
        hint = f"clusterctl image verify {shlex.quote(image)}"
        yield fail("image", f"cannot read the image: {image}: {facts.problem}", hint)
    elif not facts.squashfs:
        hint = f"convert it: clusterctl image import {shlex.quote(image)}"
        yield fail("image", f"not a squashfs: {image}", hint)
    elif not facts.has_unsquashfs:
        message = f"no unsquashfs on PATH to {'unpack' if facts.unpacks_here else 'look into'} {image}"
        yield (fail if facts.unpacks_here else warn)("image", message, "apt-get install squashfs-tools")


def _gpus(facts: ContainerFacts) -> Iterator[Check]:
    """Without pyxis nothing brings the driver's libraries into the image."""
    if facts.gpus and facts.builtin and not any("libcuda" in mount.target for mount in facts.view.mounts):
        message = "without pyxis an image gets the GPUs, but not the driver's libraries"
        yield warn("image", message, "mount them: libcuda.so.1 and libnvidia-ml.so.1 of the nodes")


def _mounts(facts: ContainerFacts) -> Iterator[Check]:
    for source in facts.sources:
        if not source.there and not source.visible:
            yield warn("mounts", f"not on this machine: {source.path}, to be mounted", "the nodes must have it")
        elif not source.there:
            hint = f"mkdir -p {shlex.quote(source.path)}; or correct [container] mounts"
            yield fail("mounts", f"no such folder to mount: {source.path}", hint)
    targets: dict[str, str] = {}
    for mount in facts.view.mounts:
        if targets.setdefault(mount.target, mount.source) != mount.source:
            message = f"two mounts at the same place: {targets[mount.target]} and {mount.source} at {mount.target}"
            yield fail("mounts", message, "mount one of them elsewhere: SRC:DST")


def _inside(facts: ContainerFacts) -> Iterator[Check]:
    """Interpreter and packages, as far as the image's own files tell: what is mounted into it is not inspected."""
    contents, python = facts.contents, facts.python
    if contents is None or not python.startswith("/"):
        return
    place = contents.resolved(python)
    if any(_is_below(place, mount.target) for mount in facts.view.mounts):
        return
    if contents.links and place not in contents.links:
        known = [path for path in contents.links if re.fullmatch(r"python3?", posixpath.basename(path))]
        hint = f"set `python` in the cluster file: {known[0]}" if known else "install one there, as containers/ does"
        yield fail("image", f"no {python} in the image", hint)
        return
    minor = contents.minor_of(python)
    if minor and tuple(map(int, minor.split("."))) < OLDEST_PYTHON:
        yield fail("image", f"{python} in the image is Python {minor}", "clusterctl needs 3.11 or later there")
    needed = ["submitit", *(["clusterctl"] if facts.brings_code else [])]
    missing = [name for name in needed if name not in contents.packages]
    if missing and not facts.brings_packages:
        hint = f"install it there: {python} -m pip install {shlex.quote(requirement('submitit'))}"
        if "clusterctl" in missing:
            hint = "run this code in the image: --code mounted; or build one that has it: clusterctl image build"
        yield fail("image", f"{python} in the image has no {' and no '.join(missing)}", hint)


def _room(facts: ContainerFacts) -> Iterator[Check]:
    needed = facts.contents.unpacked_bytes if facts.contents else None
    if needed is None or facts.rooms is None or any(room > needed for room in facts.rooms.values()):
        return
    rooms = ", ".join(f"{folder} ({room / 1e6:.0f} MB free)" for folder, room in facts.rooms.items()) or "no folder"
    message = f"no room to unpack {facts.view.image}: {needed / 1e6:.0f} MB into {rooms}"
    yield fail("image", message, "set CLUSTERCTL_UNPACK to a folder on a larger disk of this machine's own")


def _overridden(facts: ContainerFacts) -> Iterator[Check]:
    if facts.contents is None:
        return
    names = overridden(facts.environment, facts.contents.environment, facts.view.environment)
    if names:
        message = f"the image sets {', '.join(names)} differently from your environment, and wins"
        yield warn("image", message, "to keep your value, name it in the job file's [env]")


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
