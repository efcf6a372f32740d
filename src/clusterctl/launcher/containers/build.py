"""Fill the image folder: `make container` builds an image; others are imported.

A build installs wheels and clusterctl on a base image, and packs it as a squashfs. An import reads an archive, a .sqsh,
a local engine or a registry; processes that ask for the same image at the same time share one import.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl import __version__
from clusterctl.launcher.config import shipped_folder
from clusterctl.launcher.containers import contents as files
from clusterctl.launcher.containers.archive import ImageConfig, open_archive
from clusterctl.launcher.containers.contents import Image, check_name, unsquashfs
from clusterctl.launcher.containers.engine import Engine, check_space, failure, find_engine, follow, space_for
from clusterctl.launcher.containers.runtimes import check_image
from clusterctl.launcher.containers.squashfs import COMPRESSION, Member, members_of, members_of_stream, pack
from clusterctl.launcher.containers.wheels import wanted, wheelhouse, write_project_wheel
from clusterctl.shared.errors import ConfigError, ImageError, NotFoundError
from clusterctl.shared.record.files import read_json, write_json
from clusterctl.shared.record.once import once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from clusterctl.launcher.config.shown import ProgressListener


# enroot's notation for an image that an engine has on this machine, in the engine's own notation.
_ON_THIS_MACHINE = re.compile(r"(dockerd|podman)://([a-z0-9][\w./:@-]*)", re.ASCII)
_ARCHIVE_ENDINGS = re.compile(r"\.(sqsh|squashfs|tar|tar\.gz|tgz|tar\.zst|oci|docker)$")


def import_file(path: Path, name: str | None, folder: Path, progress: ProgressListener) -> Image:
    """Import the archive or .sqsh at `path` as the image `name` of `folder`. Raises NotFoundError, ImageError."""
    if not path.is_file():
        raise NotFoundError(f"no such file: {path}", "write an image in a registry as registry#name:tag")
    name = files.check_name(name or _ARCHIVE_ENDINGS.sub("", path.name))
    folder.mkdir(parents=True, exist_ok=True)
    if files.is_squashfs(path):
        progress.begin(f"copying {path.name}", path.stat().st_size)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=folder) as place:
            return _published(Path(shutil.copyfile(path, Path(place, "image.sqsh"))), name, path.name, folder)
    progress.begin(f"reading {path.name}")
    with open_archive(path) as archive:
        progress.begin(f"writing {name}{files.SUFFIX}")
        return keep(members_of(archive), archive.config, name, path.name, folder, progress)


def import_reference(
    reference: str,
    name: str | None,
    folder: Path,
    progress: ProgressListener,
    *,
    engine: str | None = None,
    fresh: bool = False,
) -> Image:
    """Import `reference` as `name` into `folder`, or reuse an earlier import unless `fresh`.

    When several processes ask at once, one imports and the others wait. An image that an engine on this machine has is
    taken from there; dockerd://NAME and podman://NAME name nothing else. Others are fetched by enroot, with its own
    credentials, if it is installed, otherwise by an engine. Raises ConfigError for an invalid reference, ImageError.
    """
    local = _ON_THIS_MACHINE.fullmatch(reference)
    if not local:
        check_image(reference)
    name = files.check_name(name or files.name_of(reference))
    target = folder / f"{name}{files.SUFFIX}"
    asked = time.time()

    def done() -> bool:
        found = files.imported(folder, reference, name)
        return found is not None and found.record is not None and not (fresh and found.record.created < asked)

    def work(place: Path) -> None:
        enroot = None if engine else shutil.which("enroot")
        if local:
            packed(find_engine(local[1].removesuffix("d")), local[2], name, reference, folder, progress)
            return
        if enroot:
            with suppress(ImageError, ConfigError):  # no engine, or none that has it, built or pulled earlier
                holder = find_engine()
                if "#" not in reference and holder.describe(reference):
                    enroot = None
        if enroot:
            progress.begin(f"enroot imports {reference}")
            sqsh = place / "image.sqsh"
            environment = {**os.environ, "ENROOT_SQUASH_OPTIONS": " ".join(COMPRESSION)}
            command = [enroot, "import", "--output", str(sqsh), f"docker://{reference}"]
            code, output = follow(command, progress.output, environment)
            if code != 0 or not sqsh.is_file():
                raise failure("enroot", "import", output)
            _published(sqsh, name, reference, folder)
            return
        try:
            found = find_engine(engine)
        except ImageError as error:
            raise ImageError(error.message, f"{error.hint}; or install enroot") from error
        source = reference
        if "#" in reference or found.describe(reference) is None:  # otherwise it was built or pulled here before
            source = as_engines_write(reference)
            progress.begin(f"{found.kind} pulls {source}")
            found.pull(source, progress.output)
        packed(found, source, name, reference, folder, progress)

    once(done, target, work)
    return Image(target, files.read_record(target))


def keep(
    members: Iterable[Member], config: ImageConfig, name: str, source: str, folder: Path, progress: ProgressListener
) -> Image:
    """Pack `members` and `config` into a temporary file, then publish it as `name` in `folder`. Raises ImageError."""
    files.check_name(name)
    folder.mkdir(parents=True, exist_ok=True)
    scan = files.PackageScan()
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=folder) as place:
        sqsh = Path(place, "image.sqsh")
        pack(members, config, sqsh, seen=scan.see, progress=progress.advance)
        return files.publish(sqsh, folder, name, source, scan, config)


def packed(engine: Engine, reference: str, name: str, source: str, folder: Path, progress: ProgressListener) -> Image:
    """Pack the engine's image `reference` as NAME.sqsh in `folder`."""
    config = engine.known(reference)
    progress.begin(f"writing {name}{files.SUFFIX}")
    with engine.exported(reference) as stream:
        return keep(members_of_stream(stream), config, name, source, folder, progress)


def as_engines_write(reference: str) -> str:
    """Convert `reference` from enroot's notation to that of docker, podman and buildah, with an explicit registry."""
    head, _, digest = reference.partition("@sha256:")
    head = head.rpartition("@")[2]  # enroot's USER@
    registry, _, image = head.rpartition("#")
    if not registry:
        registry, image = "docker.io", image if "/" in image else f"library/{image}"
    return f"{registry}/{image}" + (f"@sha256:{digest}" if digest else "")


def _published(sqsh: Path, name: str, source: str, folder: Path) -> Image:
    """Publish the finished squashfs `sqsh`, with a record made from its contents."""
    try:
        listing = unsquashfs("-d", "", "-l", str(sqsh))
        environment = unsquashfs("-cat", str(sqsh), "etc/environment", check=False)
    except FileNotFoundError:
        raise ImageError("unsquashfs is not on PATH", "apt install squashfs-tools") from None
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no output"])[-1]
        raise ImageError(f"unsquashfs failed: {last}", "is the file complete? copy it again") from None
    scan = files.PackageScan()
    for line in listing.splitlines():
        scan.see(line.removeprefix("/"))
    config = ImageConfig(digest="", environment=tuple(environment.splitlines()))
    return files.publish(sqsh, folder, name, source, scan, config)


DEFAULT_BASES = {"cpu": "python:3.11-slim", "gpu": "nvcr.io/nvidia/pyg:24.11-py3"}
BOOTSTRAP = "bootstrap"  # a base image made from Debian packages, for sites that cannot reach an image registry
_SUITES = {"3.11": "bookworm", "3.13": "trixie"}  # Python minor version -> the Debian release that has it
_LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
_DOCKERFILE = 'FROM scratch\nADD root.tar /\nENV LANG=C.UTF-8\nCMD ["python3"]\n'
EXTRAS = ("train", "accelerate")
# Run inside the base image: which wheels fit it, and whether it already has torch.
_PROBE = """import importlib.metadata as m, importlib.util as u, json, sys
version = lambda name: m.version(name) if u.find_spec(name) else None
python = "%d.%d" % sys.version_info[:2]
print(json.dumps({"python": python, "torch": version("torch"), "pyg": version("torch_geometric")}))
"""


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """What to build. Raises UsageError for a name that cannot be passed to pyxis or Slurm."""

    name: str
    kind: str = "cpu"  # which Dockerfile: cpu or gpu
    base: str | None = None  # default: the Dockerfile's; or "bootstrap"
    extras: tuple[str, ...] = EXTRAS
    replacing: tuple[str, ...] = ()  # requirements that override clusterctl's own, such as "torch==2.13.0"
    commit: str = ""
    fresh: bool = False  # fetch base image and wheels again instead of using the cached ones

    def __post_init__(self) -> None:
        check_name(self.name)


@dataclass(frozen=True)
class Base:
    """The base image, and the packages it already has."""

    reference: str
    python: str
    torch: str | None
    pyg: str | None


def build(
    request: BuildRequest, engine: Engine, folder: Path, cache: Path, python: str, progress: ProgressListener
) -> Image:
    """Build `request` with `engine` into the image folder `folder`.

    `cache` holds wheels and facts about base images; `python` is the minor version for a bootstrapped base.
    Raises ImageError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    base = _base(request, engine, cache, python, progress)
    progress.begin(f"wheels for Python {base.python}")
    own_torch, for_gpus = base.torch is not None, request.kind == "gpu"
    want = wanted(base.python, request.extras, own_torch=own_torch, replacing=request.replacing, for_gpus=for_gpus)
    wheels = wheelhouse(cache, want, progress.begin, fresh=request.fresh)
    tag = f"localhost/{request.name}:latest"
    versions = {path.name.split("-")[0].lower(): path.name.split("-")[1] for path in wheels.glob("*.whl")}
    arguments = {
        "BASE": base.reference,
        "VERSION": __version__,
        "COMMIT": request.commit,
        "PYTHON": base.python,
        "TORCH": base.torch or versions.get("torch", ""),
        "PYG": versions.get("torch_geometric") or base.pyg or "",
    }
    progress.begin(check_space(space_for(wheels.glob("*.whl"), engine.storage), engine.storage))
    progress.begin(f"{engine.kind} builds {tag}")
    with tempfile.TemporaryDirectory(prefix=".build-", dir=wheels.parent) as context:
        _fill(Path(context), request.kind, wheels, want.requirements)
        engine.build(Path(context), tag, arguments, progress.output)
    return packed(engine, tag, request.name, f"built from {base.reference}", folder, progress)


def bootstrapped(engine: Engine, python: str, report: Callable[[str], None], *, fresh: bool = False) -> str:
    """The reference of a base image with Debian's `python`; built if `engine` has none yet, or if `fresh`.

    Raises ImageError if mmdebstrap is missing or fails, or if no Debian release has that Python.
    """
    suite = _SUITES.get(python)
    if suite is None:
        known = " or ".join(_SUITES)
        hint = f"run clusterctl with Python {known}, or choose a base image: clusterctl image build --base IMAGE"
        raise ImageError(f"no Debian release has Python {python}", hint)
    reference = f"localhost/clusterctl-base:{suite}"
    if fresh or engine.describe(reference) is None:
        if shutil.which("mmdebstrap") is None:
            raise ImageError("mmdebstrap, which makes the base image, is not on PATH", "apt install mmdebstrap")
        with tempfile.TemporaryDirectory(prefix="clusterctl-base-") as folder:
            report(f"mmdebstrap {suite}: Debian with Python {python}")
            command = ["mmdebstrap", "--variant=minbase", "--include=ca-certificates,python3"]
            command += ['--aptopt=Acquire::Languages "none"']
            command += [f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT]
            code, lines = follow([*command, suite, str(Path(folder, "root.tar"))], report)
            if code != 0:
                errors = [line for line in lines if line.startswith("E:")] or lines[-1:]
                message = errors[0] if errors else "no output"
                hint = "check network and disk space, or choose another base: clusterctl image build --base IMAGE"
                raise ImageError(f"mmdebstrap failed: {message}", hint)
            Path(folder, "Dockerfile").write_text(_DOCKERFILE)
            engine.build(Path(folder), reference, {}, report)
    return reference


def _base(request: BuildRequest, engine: Engine, cache: Path, python: str, progress: ProgressListener) -> Base:
    """Fetch the base image if needed and look at its packages. Raises ImageError."""
    reference = request.base or DEFAULT_BASES[request.kind]
    if reference == BOOTSTRAP:
        progress.begin("base image")
        reference = bootstrapped(engine, python, progress.output, fresh=request.fresh)
    found = engine.describe(reference)
    if found is None or (request.fresh and request.base != BOOTSTRAP):
        progress.begin(f"{engine.kind} pulls {reference}")
        engine.pull(reference, progress.output)
        found = engine.known(reference)
    note = cache / "bases" / f"{found.digest.removeprefix('sha256:')}.json"
    answer: Any = read_json(note)
    if answer is None:
        done = engine.run(reference, "python3", "-c", _PROBE)
        try:
            answer = json.loads(done.stdout.strip().splitlines()[-1])
        except (ValueError, IndexError) as error:
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            message = f"the base image has no working Python: {reference}: {last}"
            hint = "choose another, or make one: clusterctl image build --base bootstrap"
            raise ImageError(message, hint) from error
        note.parent.mkdir(parents=True, exist_ok=True)
        write_json(note, answer)
    return Base(reference, answer["python"], answer["torch"], answer["pyg"])


def _fill(context: Path, kind: str, wheels: Path, requirements: tuple[str, ...]) -> None:
    """Lay out the files that the Dockerfile copies. Wheels are hard-linked."""
    recipe = shipped_folder() / "containers"
    shutil.copyfile(recipe / f"Dockerfile.{kind}", context / "Dockerfile")
    shutil.copyfile(recipe / "install.sh", context / "install.sh")
    (context / "requirements.txt").write_text("".join(f"{one}\n" for one in requirements))
    for name in ("wheels", "project"):
        (context / name).mkdir()
    for wheel in wheels.glob("*.whl"):
        os.link(wheel, context / "wheels" / wheel.name)
    write_project_wheel(context / "project")
