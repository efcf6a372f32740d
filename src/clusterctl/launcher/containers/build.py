"""`make container`: install wheels and clusterctl on a base image, and pack it as a squashfs in the image folder."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl import __version__
from clusterctl.launcher.config import shipped_folder
from clusterctl.launcher.containers.contents import check_name
from clusterctl.launcher.containers.engine import check_space, follow, space_for
from clusterctl.launcher.containers.importing import packed
from clusterctl.launcher.containers.wheels import wanted, wheelhouse, write_project_wheel
from clusterctl.shared.errors import ImageError
from clusterctl.shared.record.files import read_json, write_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.launcher.config.progress import ProgressListener
    from clusterctl.launcher.containers.contents import Image
    from clusterctl.launcher.containers.engine import Engine

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
