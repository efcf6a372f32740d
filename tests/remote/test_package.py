"""The archive holds everything that the other machine needs, and nothing specific to this one."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from importlib import metadata
from pathlib import Path

import pytest

from clusterctl.launcher.checks.interpreters import requirement
from clusterctl.launcher.remote.package import package

OURS = ("cli.served", "api.submitting.submit", "display.monitor")
IMPORTS = ", ".join([*(f"clusterctl.launcher.{name}" for name in OURS), "submitit", "rich", "textual"])


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        made = package()
        assert package() == made, "the second call reuses it"
    with tarfile.open(made.path) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.0 to 3.11.3 have none
        archive.extractall(folder)
    return folder / "lib"


def test_the_archive_is_pure_python_and_complete(unpacked: Path) -> None:
    names = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    assert not {name for name in names if name.endswith((".so", ".pyc", ".pyd"))}
    assert {"clusterctl/shipped/jobs/cora.toml", "clusterctl/shipped/cluster/local.toml"} <= names
    assert not any(name.startswith(("torch", "numpy", "pytest")) for name in names)


def test_the_archive_knows_what_an_environment_must_have(unpacked: Path) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(unpacked)!r}); from clusterctl.launcher.checks.interpreters import *; "
        "print(*map(requirement, ('torch', 'torch_geometric', 'numpy', 'scipy')), sep=' + ')"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip().split(" + ") == [*map(requirement, ("torch", "torch_geometric", "numpy", "scipy"))]
    assert ">=" in done.stdout


def test_what_an_environment_must_have_is_named_without_an_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", missing)
    assert requirement("torch") == "torch"


def test_the_archive_runs_without_anything_else(unpacked: Path) -> None:
    program = f"import sys; sys.path.insert(0, {str(unpacked)!r}); import {IMPORTS}; print(clusterctl.__file__)"
    command = [sys.executable, "-I", "-S", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(unpacked / "clusterctl" / "__init__.py")
