"""The torch build that pip would install, resolved from tiny indexes, and what is printed before a download."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import pytest

from clusterctl.launcher.containers.wheels import INDEX, Wanted, Wheels, described, wanted, wheelhouse

resolving = pytest.mark.skipif(
    tuple(map(int, metadata.version("pip").split(".")[:2])) < (25, 3), reason="pip before 25.3 downloads to resolve"
)


def write_wheel(folder: Path, name: str, version: str, needs: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    requires = f"Requires-Dist: {needs}\n" if needs else ""
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
        wheel.writestr(f"{name}/content", bytes(1_000_000))


@pytest.fixture
def indexes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """URLs of two indexes: CUDA builds, pip's default here, and CPU builds."""
    # not real package names, which may be installed in the test environment
    write_wheel(tmp_path / "plain" / "torch", "torch", "99.0", "nvidia-of-the-tests")
    write_wheel(tmp_path / "plain" / "nvidia-of-the-tests", "nvidia_of_the_tests", "13.1")
    write_wheel(tmp_path / "cpu" / "torch", "torch", "99.0+cpu")
    for page in (*tmp_path.glob("plain/*"), *tmp_path.glob("cpu/*")):
        links = "".join(f'<a href="{file.as_uri()}">{file.name}</a>' for file in page.glob("*.whl"))
        (page / "index.html").write_text(links)
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX", INDEX):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "plain").as_uri())
    return {"cpu": (tmp_path / "cpu").as_uri(), "gone": (tmp_path / "gone").as_uri()}


def resolve(folder: Path, driver: bool, **environment: str) -> tuple[str, str]:
    """Run as `make setup` does: pip's options, and the message for the user."""
    programs = folder / "programs"
    programs.mkdir()
    if driver:
        (programs / "nvidia-smi").symlink_to("/bin/true")
    command = [sys.executable, "-m", "clusterctl.launcher.containers.wheels", "torch==99.0"]
    kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    own = {"PATH": str(programs), **kept, **environment}
    done = subprocess.run(command, env=own, capture_output=True, text=True, check=True)
    return done.stdout.strip(), done.stderr


@resolving
def test_without_a_driver_the_cpu_build_is_chosen_if_its_index_is_named(
    indexes: Mapping[str, str], tmp_path: Path
) -> None:
    options, output = resolve(tmp_path, driver=False, TORCH_CPU_INDEX=indexes["cpu"])
    assert options == f"--extra-index-url={indexes['cpu']}"
    assert output == "torch 99.0+cpu, the CPU build: 1 wheels, 1 MB\n"


@resolving
def test_without_a_cpu_index_the_cuda_build_is_chosen_with_a_hint(indexes: Mapping[str, str], tmp_path: Path) -> None:
    options, output = resolve(tmp_path, driver=False)
    assert options == ""
    assert output.startswith("torch 99.0, built for CUDA: 2 wheels, 2 MB\nhint: ")
    assert "TORCH_CPU_INDEX=URL" in output


@resolving
def test_an_unreachable_index_falls_back_to_the_default_one(indexes: Mapping[str, str], tmp_path: Path) -> None:
    assert "torch 99.0, built for CUDA" in resolve(tmp_path, driver=False, TORCH_CPU_INDEX=indexes["gone"])[1]


@resolving
def test_with_a_driver_the_index_of_cpu_builds_is_ignored(indexes: Mapping[str, str], tmp_path: Path) -> None:
    options, output = resolve(tmp_path, driver=True, TORCH_CPU_INDEX=indexes["cpu"])
    assert (options, output) == ("", "torch 99.0, built for CUDA: 2 wheels, 2 MB\n")


def test_the_cpu_image_uses_the_cpu_index_and_reports_it(
    indexes: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(INDEX, indexes["cpu"])
    options = wanted("3.11", ("train",), own_torch=False).options
    output: list[str] = []
    want = Wanted(python="3.11", requirements=("torch==99.0",), options=options)
    folder = wheelhouse(tmp_path / "cache", want, output.append)
    assert [path.name for path in folder.iterdir()] == ["torch-99.0+cpu-py3-none-any.whl"]
    assert not output or "the CPU build" in output[0]
    assert wanted("3.11", (), own_torch=False).options == wanted("3.11", ("train",), own_torch=True).options == ()


def test_an_image_for_gpus_gets_no_cpu_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(INDEX, "file:///cpu")
    monkeypatch.setattr("importlib.metadata.version", lambda name: "99.0+cpu")
    want = wanted("3.11", ("train",), own_torch=False, for_gpus=True)
    assert want.options == ()
    assert "torch==99.0" in want.requirements


@resolving
def test_nothing_is_printed_for_installed_packages(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "clusterctl.launcher.containers.wheels", "pip"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("\n", "")


def test_unknown_sizes_make_the_total_a_lower_bound() -> None:
    wheels = Wheels(torch="", cuda=False, count=3, bytes=1_234_000_000, all_sizes_known=False)
    assert list(described(wheels, cuda_is_of_use=False)) == ["3 wheels, at least 1.2 GB"]
