"""Container: checks of the image and the mounts.

On a cluster a node would find problems hours later; most can be found here, before anything is submitted.
"""

from __future__ import annotations

import os
import posixpath
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.launcher.checks.interpreters import OLDEST_PYTHON
from clusterctl.launcher.checks.machine_rules import missing_apptainer
from clusterctl.launcher.checks.surroundings import NO_DATA, Check, ContainerFacts, Seen, Verdict, fail, ok, warn
from clusterctl.launcher.config import expanded
from clusterctl.launcher.containers import runtimes, unpacked
from clusterctl.launcher.containers.contents import Contents, Unreadable, is_squashfs, look_into, overridden
from clusterctl.launcher.containers.runtimes import IMAGE_PYTHON, check_image, make_view
from clusterctl.launcher.submission.plan import brings_code
from clusterctl.shared.errors import SlurmError
from clusterctl.shared.record.files import exists

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.launcher.config import Resolved
    from clusterctl.launcher.slurm import Slurm
    from clusterctl.launcher.submission.plan import Plan
    from clusterctl.shared.spec import Cluster

_SHOWN = ("torch", "torch_geometric", "clusterctl")  # of the packages in an image


def look_at_cluster_image(cluster: Cluster) -> ContainerFacts | None:
    """The cluster's own image, without the additions of a run."""
    image = cluster.container.image
    if not image:
        return None
    if image.startswith((".", "~")):
        image = str(expanded(image).absolute())
    if not (cluster.runtime == "apptainer" and runtimes.is_address(image)):
        check_image(image)
    facts = ContainerFacts(
        view=make_view(image, cluster.container, [], cluster.env, None),
        python=cluster.python or IMAGE_PYTHON,
        runtime=cluster.runtime,
        gpus=cluster.gpus_per_node,
        environment=os.environ,
    )
    return _looked_into(facts, cluster.nodes_are_here)


def look_at_images(resolved: Resolved, plan: Plan, slurm: Slurm) -> tuple[ContainerFacts, ...]:
    """The images of a run, and its mounts."""
    job, cluster = resolved.job, resolved.cluster
    facts = ContainerFacts(
        view=plan.views[0][0],
        python=plan.views[0][1],
        of_roles=plan.view is None,
        brings_code=brings_code(job),
        brings_packages="PYTHONPATH" in job.env,
        srun_help=slurm.answer("srun", "--help") if cluster.runtime == "pyxis" else None,
        runtime=cluster.runtime,
        has_apptainer=shutil.which("apptainer", path=slurm.environment.get("PATH")) is not None,
        gpus=job.resources.gpus_per_node or 0,
        data_root=job.data.root,
        environment=slurm.environment,
    )
    return tuple(
        _looked_into(replace(facts, view=view, python=python), cluster.nodes_are_here, str(plan.run.path.parent))
        for view, python in plan.views
    )


def _looked_into(facts: ContainerFacts, nodes_are_here: bool, made_later: str = "") -> ContainerFacts:
    """`facts` with the visible facts about image and mounts; the source `made_later` need not exist yet."""
    image, is_file = Path(facts.view.image), facts.view.image.startswith("/")
    unpacks_here = nodes_are_here and facts.runtime == "builtin"
    problem, squashfs = "", True
    contents: Contents | None = None
    if is_file and exists(image):
        try:
            squashfs = is_squashfs(image)
            contents = look_into(image) if squashfs else None
        except OSError as error:
            problem = str(error.strerror)
        except Unreadable as error:
            problem = str(error)
    rooms = None
    if unpacks_here and contents and not unpacked.is_here(image, facts.environment):
        rooms = {str(store): unpacked.room(store) for store in unpacked.stores(facts.environment)}
    sources = dict.fromkeys(mount.source for mount in facts.view.mounts if mount.source != made_later)
    return replace(
        facts,
        image=_shared(image, unpacks_here) if is_file else None,
        problem=problem,
        squashfs=squashfs,
        contents=contents,
        has_unsquashfs=shutil.which("unsquashfs", path=facts.environment.get("PATH")) is not None,
        unpacks_here=unpacks_here,
        sources=tuple(_shared(Path(source), unpacks_here) for source in sources),
        rooms=rooms,
        machine=os.uname().machine,
    )


def _shared(path: Path, nodes_are_here: bool) -> Seen:
    """Mounts are usually on a shared file system: if the first folder of the path exists here, so should the path."""
    return Seen.at(path, nodes_are_here, Path(*path.parts[: 2 if len(path.parts) > 2 else 1]))


def container_rules(facts: ContainerFacts) -> Iterator[Check]:
    problems = []
    if facts.srun_help is not None and "--container-image" not in facts.srun_help:
        message = "pyxis is not installed: srun --help shows no --container-image"
        hint = 'set container_runtime = "builtin" in the cluster file, or ask your administrator for pyxis'
        problems.append(Check("image", Verdict.FAIL, message, hint, error=SlurmError))
    if facts.runtime == "apptainer" and not facts.has_apptainer:
        problems.append(missing_apptainer("image"))
    problems += [*_image(facts), *_mounts(facts), *_inside(facts), *_start(facts)]
    yield from problems
    if problems:
        return
    words = [facts.view.image]
    if facts.contents is None:
        words.append("contents not inspected")
    else:
        packages, minor = facts.contents.packages, facts.contents.minor_of(facts.python)
        words += [f"Python {minor}"] if minor else []
        words += [f"{name} {packages[name]}" for name in _SHOWN if name in packages]
    yield ok("image", ", ".join(words))


def _image(facts: ContainerFacts) -> Iterator[Check]:
    """Whether the image is there, can be unpacked, and is for this architecture, usually that of the nodes, too."""
    image, contents = facts.view.image, facts.contents
    missing = facts.image is not None and not facts.image.there
    if facts.image and missing and not facts.image.visible:
        yield warn("image", f"not on this machine: {image}", "the nodes must have it; its contents were not checked")
    elif missing:
        yield fail("image", f"no such image: {image}", "list images: clusterctl image list; or: clusterctl image build")
    elif facts.image and facts.problem:
        hint = f"clusterctl image verify {shlex.quote(image)}"
        yield fail("image", f"cannot read the image: {image}: {facts.problem}", hint)
    elif facts.image and not facts.squashfs and facts.runtime != "apptainer":  # not a .sif, which is not inspected
        hint = f"convert it: clusterctl image import {shlex.quote(image)}"
        yield fail("image", f"not a squashfs: {image}", hint)
    elif facts.image and facts.squashfs and not facts.has_unsquashfs:
        message = f"unsquashfs is not on PATH to {'unpack' if facts.unpacks_here else 'inspect'} {image}"
        yield (fail if facts.unpacks_here else warn)("image", message, "apt-get install squashfs-tools")
    if contents and contents.machine and contents.machine != facts.machine:
        message = f"the image is for {contents.machine}, but this machine is {facts.machine}: {image}"
        check = fail if facts.unpacks_here else warn
        yield check("image", message, "unless the nodes match it, import or build the image on a machine like them")


def _mounts(facts: ContainerFacts) -> Iterator[Check]:
    for source in facts.sources:
        if not source.there and not source.visible:
            yield warn("mounts", f"not on this machine: {source.path}, to be mounted", "the nodes must have it")
        elif not source.there and source.path == facts.data_root:  # an empty folder would not help
            yield fail("data", f"no data: {source.path}: no such folder", NO_DATA)
        elif not source.there:
            hint = f"mkdir -p {shlex.quote(source.path)}; or correct [container] mounts"
            yield fail("mounts", f"no such folder to mount: {source.path}", hint)
    spaced = [mount for mount in facts.view.mounts if " " in mount.source + mount.target]
    if spaced and facts.runtime == "pyxis":
        message = f"pyxis before 0.24 cannot mount a path with a space: {spaced[0]}"
        yield warn("mounts", message, "mount a parent folder, or a link without a space")
    targets: dict[str, str] = {}
    for mount in facts.view.mounts:
        if targets.setdefault(mount.target, mount.source) != mount.source:
            pair = f"{targets[mount.target]} and {mount.source} at {mount.target}"
            hint = "mount one of them elsewhere: SRC:DST in container.mounts of the job or cluster file"
            yield fail("mounts", f"container.mounts: two mounts have the same target: {pair}", hint)


def _inside(facts: ContainerFacts) -> Iterator[Check]:
    """Interpreter and packages, judged from the image's own files: mounted files are not inspected."""
    contents, python = facts.contents, facts.python
    if contents is None or not python.startswith("/"):
        return
    place = contents.resolved(python)
    if any(f"{place}/".startswith(f"{mount.target.rstrip('/')}/") for mount in facts.view.mounts):
        return
    if contents.links and place not in contents.links:
        named = (path for path in contents.links if re.fullmatch(r"python3?", posixpath.basename(path)))
        known = [path for path in named if contents.resolved(path) in contents.programs]
        hint = f"set `python` in the cluster file: {known[0]}" if known else "install one, as in containers/"
        if known and facts.of_roles:
            hint = f"where the image is built: mkdir -p {posixpath.dirname(python)} && ln -s {known[0]} {python}"
        yield fail("image", f"no {python} in the image", hint)
        return
    if contents.programs and place not in contents.programs:
        yield fail("image", f"{python} in the image is not executable", f"chmod +x {python} where the image is built")
        return
    minor = contents.minor_of(python)
    if minor and tuple(map(int, minor.split("."))) < OLDEST_PYTHON:
        yield fail("image", f"{python} in the image is Python {minor}", "clusterctl needs 3.11 or later in the image")
    if facts.brings_code and "clusterctl" not in contents.packages and not facts.brings_packages:
        hint = 'mount clusterctl into the image: `container.code = "mounted"`; or build one: clusterctl image build'
        yield fail("image", f"{python} in the image has no clusterctl", hint)


def _start(facts: ContainerFacts) -> Iterator[Check]:
    """Whether it can be unpacked, and what its tasks would lack or see changed."""
    contents = facts.contents
    needed = contents.unpacked_bytes if contents else None
    if needed is not None and facts.rooms is not None and not any(room > needed for room in facts.rooms.values()):
        rooms = ", ".join(f"{folder} ({room / 1e6:.0f} MB free)" for folder, room in facts.rooms.items()) or "no folder"
        message = f"no room to unpack {facts.view.image}: {needed / 1e6:.0f} MB into {rooms}"
        yield fail("image", message, "set CLUSTERCTL_UNPACK to a folder on a larger local disk")
    # Without pyxis nothing mounts the driver's libraries into the image.
    if facts.gpus and facts.runtime == "builtin" and not any("libcuda" in mount.target for mount in facts.view.mounts):
        message = "without pyxis the image has the GPUs but not the driver's libraries"
        yield warn("image", message, "mount libcuda.so.1 and libnvidia-ml.so.1 from the nodes")
    if contents and (names := overridden(facts.environment, contents.environment, facts.view.environment)):
        message = f"the image overrides variables of your environment: {', '.join(names)}"
        yield warn("image", message, "to keep your value, set it in the job file's [env]")
