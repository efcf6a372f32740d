"""Images for tests, really built: a bootstrapped Debian, wheels, one build, one squashfs.

The image without torch takes seconds and is for `make test`; the one with torch takes minutes. Both are kept in the
user's cache under a hash of their inputs, so the next run of the tests finds them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from clusterctl.launcher.config import cache_folder, shipped_folder
from clusterctl.launcher.containers.build import EXTRAS, BuildRequest, build
from clusterctl.launcher.containers.engine import Engine, find_engine
from clusterctl.launcher.containers.wheels import wanted, write_project_wheel
from clusterctl.shared.errors import ClusterctlError, ImageError
from clusterctl.shared.record.once import once

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_KEPT_SECONDS = 2 * 86400


class Quiet:
    """A listener that prints what it receives; pytest shows it with a failure."""

    def stage(self, text: str, total: int | None = None) -> None:
        print(f"{time.strftime('%T')} {text}")

    def output(self, line: str) -> None:
        print(f"  {line}")

    def advance(self, size: int) -> None:
        pass


@pytest.fixture(scope="session")
def image_engine() -> Engine:
    """The engine that builds images here. Without one, tests are skipped, and fail in CI."""
    return working_engine()


@pytest.fixture(scope="session")
def bare_image(image_engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A .sqsh with Python, submitit and this clusterctl, and its record: what a login node needs."""
    return _built("bare", (), image_engine, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def cpu_image(image_engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with PyG and torch for CPUs, as `make container` builds it."""
    return _built("cpu", EXTRAS, image_engine, tmp_path_factory.mktemp("wheel"))


def _built(kind: str, extras: tuple[str, ...], engine: Engine, place: Path) -> Path:
    folder = cache_folder() / "test-images"
    name = f"{kind}-{_content(place, extras)}"
    sqsh = folder / f"{name}.sqsh"

    def work(_: Path) -> None:
        request = BuildRequest(name=name, base="bootstrap", extras=extras)
        build(request, engine, folder, cache_folder(), PYTHON, Quiet())

    once(lambda: sqsh.exists(), sqsh, work)
    os.utime(sqsh)
    for old in folder.glob("*.sqsh"):
        if time.time() - old.stat().st_mtime > _KEPT_SECONDS:
            old.unlink(missing_ok=True)
            old.with_suffix(".json").unlink(missing_ok=True)
    return sqsh


def working_engine(chosen: str | None = None) -> Engine:
    """The engine, if everything that a build needs is installed."""
    try:
        for program, package in (("mksquashfs", "squashfs-tools"), ("mmdebstrap", "mmdebstrap")):
            if shutil.which(program) is None:
                raise ImageError(f"no {program} on PATH (package {package})")
        return find_engine(chosen)
    except ClusterctlError as error:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no image can be built: {error.message}")


def _content(place: Path, extras: tuple[str, ...]) -> str:
    """A hash of everything that the image is made from."""
    recipe = [path.read_bytes() for path in sorted((shipped_folder() / "containers").iterdir())]
    parts = [*recipe, write_project_wheel(place).read_bytes()]
    want = wanted(PYTHON, extras, own_torch=False)
    facts = [want.key, *(hashlib.sha256(part).hexdigest() for part in parts)]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
