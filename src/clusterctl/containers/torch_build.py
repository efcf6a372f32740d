"""Which torch pip would install, the CPU or the CUDA build, and its size: resolved before anything is downloaded.

`make setup` runs this before clusterctl is installed, so it imports only the standard library.

    python -m clusterctl.containers.torch_build 'torch==2.13.0'    # prints pip's options; its findings go to stderr

The default torch for Linux is the CUDA build. PyTorch has an index of CPU builds, whose URL is in TORCH_CPU_INDEX:
machines without an NVIDIA driver, and the CPU image, use that one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

from clusterctl.runs.interpreter import environment, with_packages

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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


def cpu_index(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Pip's options for the index of CPU builds that the user named; empty if none: pip's own settings apply."""
    index = environment.get(INDEX)
    return (f"--extra-index-url={index}",) if index else ()


def has_driver() -> bool:
    """Whether this machine has NVIDIA's driver, which includes nvidia-smi."""
    return shutil.which("nvidia-smi") is not None


def resolved(words: Sequence[str]) -> Wheels | None:
    """What `pip install WORDS` would install into this environment; None if pip cannot tell.

    Pip before 25.3 would download everything to find out.
    """
    pip = with_packages(sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--dry-run")
    command = [*pip, "--report=-", *words]
    if not _pip_only_resolves():
        return None
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, env=environment())
    return _read(json.loads(done.stdout)["install"]) if done.returncode == 0 else None


def described(wheels: Wheels, *, cuda_is_of_use: bool) -> Iterator[str]:
    """Lines to print before the download."""
    least = "" if wheels.all_sizes_known else "at least "
    size = f"{wheels.count} wheels, {least}{_megabytes(wheels.bytes)}"
    if not wheels.torch:
        yield from [size] if wheels.count else []
        return
    yield f"torch {wheels.torch}, {'built for CUDA' if wheels.cuda else 'the CPU build'}: {size}"
    if wheels.cuda and not cuda_is_of_use:
        yield f"hint: the CPU build is a tenth of that: set {INDEX}=URL, the address of PyTorch's index of CPU builds"


def _pip_only_resolves() -> bool:
    from importlib import metadata

    try:
        major, minor = metadata.version("pip").split(".")[:2]
        return (int(major), int(minor)) >= (25, 3)
    except (metadata.PackageNotFoundError, ValueError):
        return False


def _read(packages: Sequence[Mapping[str, Mapping[str, str]]]) -> Wheels:
    versions = {package["metadata"]["name"].lower(): package["metadata"]["version"] for package in packages}
    with ThreadPoolExecutor(8) as pool:
        sizes = list(pool.map(_size, [package["download_info"]["url"] for package in packages]))
    return Wheels(
        torch=versions.get("torch", ""),
        cuda=any(name.startswith(_CUDA) for name in versions),
        count=len(sizes),
        bytes=sum(size or 0 for size in sizes),
        all_sizes_known=None not in sizes,
    )


def _size(url: str) -> int | None:
    try:
        with urlopen(Request(url, method="HEAD"), timeout=_ANSWER_SECONDS) as answer:
            return int(answer.headers["Content-Length"])
    except (OSError, TypeError, ValueError):
        return None


def _megabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def main(requirements: Sequence[str]) -> None:
    driver = has_driver()
    options = () if driver else cpu_index()
    if wheels := resolved([*options, *requirements]):
        for line in described(wheels, cuda_is_of_use=driver):
            sys.stderr.write(f"{line}\n")
    sys.stdout.write(" ".join(options) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
