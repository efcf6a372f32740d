"""The wheels of an image: its requirements, downloaded once on this machine, and clusterctl's own wheel.

The build itself then needs no network and no site certificates. Our wheel is made from the installed files without a
build tool, reproducibly. Format: https://packaging.python.org/en/latest/specifications/binary-distribution-format/
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

import clusterctl
from clusterctl import __version__
from clusterctl.launcher.config import shipped_folder
from clusterctl.launcher.config.shown import SILENT
from clusterctl.shared.errors import ImageError
from clusterctl.shared.record.interpreter import environment, with_packages
from clusterctl.shared.record.once import prepared_once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


# The glibc versions that wheels are built for, up to that of Debian 12 and Ubuntu 22.04.
_GLIBC_MINORS = range(35, 4, -1)
_EXTRA = re.compile(r"""extra\s*==\s*["']([\w-]+)["']""")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_SHIPPED = ("jobs", "cluster", "data", "containers")
_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip file can store
_WHEEL = "Wheel-Version: 1.0\nGenerator: clusterctl\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_ENTRY_POINTS = "[console_scripts]\nclusterctl = clusterctl.__main__:main\n"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The Python packages that an image needs."""

    python: str  # minor version, such as "3.11"
    requirements: tuple[str, ...]
    options: tuple[str, ...] = ()  # for pip: further indexes
    for_gpus: bool = False

    @property
    def key(self) -> str:
        facts = [self.python, platform.machine(), *sorted(self.requirements), *self.options]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def wanted(
    python: str, extras: Iterable[str], *, own_torch: bool, replacing: Iterable[str] = (), for_gpus: bool = False
) -> Wanted:
    """clusterctl's requirements with `extras`, pinned to the versions installed here where there are any.

    So a run behaves the same inside its image as outside. `replacing` overrides requirements, for example
    "torch==2.13.0"; `own_torch` keeps the base image's torch. An image `for_gpus` never gets the CPU build of torch.
    """
    chosen = {_name(one): one for one in replacing}
    found: dict[str, str] = {}
    for line in metadata.requires("clusterctl") or ():
        requirement, _, marker = line.partition(";")
        extra = _EXTRA.search(marker)
        if extra is None or extra[1] in extras:
            found[_name(requirement)] = requirement.strip()
    found["pip"] = "pip"
    for name in found:
        with suppress(metadata.PackageNotFoundError):  # not installed here
            found[name] = f"{name}=={metadata.version(name)}"
    pinned = found | chosen
    if own_torch:
        pinned.pop("torch", None)
    elif for_gpus and "torch" in pinned:
        pinned["torch"] = pinned["torch"].removesuffix("+cpu")
    options = () if for_gpus or "torch" not in pinned else cpu_index()
    return Wanted(python=python, requirements=tuple(sorted(pinned.values())), options=options, for_gpus=for_gpus)


def wheelhouse(cache: Path, want: Wanted, report: Callable[[str], None] = SILENT.begin, *, fresh: bool = False) -> Path:
    """The folder with the wheels of `want` and their dependencies, downloaded if it is missing, or if `fresh`.

    `report` gets a description and the size of the download. Raises ImageError if pip cannot download them.
    """
    folder = cache / "wheelhouses" / want.key
    if fresh and folder.exists():
        shutil.rmtree(folder)
    return prepared_once(folder, lambda building: _download(building, want, report))


def platforms(machine: str, newest: int = _GLIBC_MINORS[0]) -> list[str]:
    """The tags of the wheels that run on such a machine with glibc 2.`newest` or later."""
    found = [f"manylinux_2_{minor}_{machine}" for minor in range(newest, _GLIBC_MINORS[-1] - 1, -1)]
    older = [f"manylinux2014_{machine}"] if newest >= 17 else []  # another name of manylinux_2_17
    return [*found, *older, f"linux_{machine}"]


def _download(folder: Path, want: Wanted, report: Callable[[str], None]) -> None:
    words = ["--only-binary=:all:", "--implementation=cp", f"--python-version={want.python}", *want.options]
    words += [*(f"--platform={one}" for one in platforms(platform.machine())), *want.requirements]
    if wheels := resolved(["--ignore-installed", *words]):
        for line in described(wheels, cuda_is_of_use=want.for_gpus):
            report(line)
    options = ("--disable-pip-version-check", "download", "--quiet", "--dest", str(folder))
    pip = with_packages(sys.executable, "-m", "pip", *options, *words)
    done = subprocess.run(pip, capture_output=True, text=True, errors="replace", check=False, env=environment())
    if done.returncode == 0:
        return
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()[-1:]
    message = errors[-1].removeprefix("ERROR: ") if errors else "no output"
    if "No module named pip" in done.stderr:
        raise ImageError("this Python has no pip to download wheels with", "python -m ensurepip")
    if "No space left" in done.stderr:
        raise ImageError(f"no space left for wheels: {message}", "see: df -h")
    hint = "check the network and pip's settings: pip config list"
    if "No matching distribution" in done.stderr and "torch" in message:
        hint = f"name an index that has it: {INDEX}=URL; or choose another version: `replacing=torch>=2.6`"
    raise ImageError(f"cannot download wheels for Python {want.python}: {message}", hint)


def _name(requirement: str) -> str:
    match = _NAME.match(requirement.strip())
    return match[0].lower().replace("_", "-") if match else requirement


def write_project_wheel(folder: Path) -> Path:
    """Write the wheel of this clusterctl into `folder` and return its path."""
    info = f"clusterctl-{__version__}.dist-info"
    package = Path(clusterctl.__file__).resolve().parent
    found = {f"clusterctl/{path.relative_to(package)}": path for path in _files(package)}
    for kind in _SHIPPED:
        top = shipped_folder() / kind
        found |= {f"clusterctl/shipped/{kind}/{path.relative_to(top)}": path for path in _files(top)}
    files = {name: path.read_bytes() for name, path in found.items()}
    installed = metadata.metadata("clusterctl")  # without the long description
    headers = [("Metadata-Version", "2.1"), ("Name", "clusterctl"), ("Version", __version__)]
    for header in ("Requires-Python", "Requires-Dist", "Provides-Extra"):
        headers += [(header, value) for value in installed.get_all(header) or ()]
    described = "".join(f"{header}: {value}\n" for header, value in headers)
    for name, text in {"METADATA": described, "WHEEL": _WHEEL, "entry_points.txt": _ENTRY_POINTS}.items():
        files[f"{info}/{name}"] = text.encode()
    record = []
    for name, content in sorted(files.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record.append(f"{name},sha256={digest},{len(content)}")
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    path = folder / f"clusterctl-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as wheel:
        for name, content in sorted(files.items()):
            entry = zipfile.ZipInfo(name, _TIME)
            entry.external_attr = 0o644 << 16
            wheel.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return path


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]


# Which torch pip would install, the CPU or the CUDA build, and its size: resolved before anything is downloaded.


INDEX = "TORCH_CPU_INDEX"
_ANSWER_SECONDS = 5
_CUDA = ("nvidia-", "nvidia_", "cuda-")  # prefixes of the packages that the CUDA build needs


@dataclass(frozen=True)
class Wheels:
    """What pip would install: the torch version, if any, and whether it is a CUDA build; `bytes` as far as known."""

    torch: str
    cuda: bool
    count: int
    bytes: int
    all_sizes_known: bool


def cpu_index() -> tuple[str, ...]:
    """Pip's options for the index of CPU builds that the user named; empty if none: pip's own settings apply."""
    index = os.environ.get(INDEX)
    return (f"--extra-index-url={index}",) if index else ()


def resolved(words: Sequence[str]) -> Wheels | None:
    """What `pip install WORDS` would install into this environment; None if pip cannot tell.

    Pip before 25.3 would download everything to find out.
    """
    pip = with_packages(sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--dry-run")
    command = [*pip, "--report=-", *words]
    try:
        major, minor = metadata.version("pip").split(".")[:2]
        if (int(major), int(minor)) < (25, 3):
            return None
    except (metadata.PackageNotFoundError, ValueError):
        return None
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, env=environment())
    if done.returncode != 0:
        return None
    packages = json.loads(done.stdout)["install"]
    versions = {package["metadata"]["name"].lower(): package["metadata"]["version"] for package in packages}

    def size(url: str) -> int | None:
        try:
            with urlopen(Request(url, method="HEAD"), timeout=_ANSWER_SECONDS) as answer:
                return int(answer.headers["Content-Length"])
        except (OSError, TypeError, ValueError):
            return None

    with ThreadPoolExecutor(8) as pool:
        sizes = list(pool.map(size, [package["download_info"]["url"] for package in packages]))
    return Wheels(
        torch=versions.get("torch", ""),
        cuda=any(name.startswith(_CUDA) for name in versions),
        count=len(sizes),
        bytes=sum(known or 0 for known in sizes),
        all_sizes_known=None not in sizes,
    )


def described(wheels: Wheels, *, cuda_is_of_use: bool) -> Iterator[str]:
    """Lines to print before the download."""
    least = "" if wheels.all_sizes_known else "at least "
    amount = f"{wheels.bytes / 1e9:.1f} GB" if wheels.bytes >= 1e9 else f"{wheels.bytes / 1e6:.0f} MB"
    size = f"{wheels.count} wheels, {least}{amount}"
    if not wheels.torch:
        yield from [size] if wheels.count else []
        return
    yield f"torch {wheels.torch}, {'built for CUDA' if wheels.cuda else 'the CPU build'}: {size}"
    if wheels.cuda and not cuda_is_of_use:
        yield f"hint: the CPU build is a tenth of that: set {INDEX}=URL, the address of PyTorch's index of CPU builds"


def main(requirements: Sequence[str]) -> None:
    driver = shutil.which("nvidia-smi") is not None  # it comes with NVIDIA's driver
    options = () if driver else cpu_index()
    if wheels := resolved([*options, *requirements]):
        for line in described(wheels, cuda_is_of_use=driver):
            sys.stderr.write(f"{line}\n")
    sys.stdout.write(" ".join(options) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
