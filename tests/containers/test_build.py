"""What goes into a build (wheels, clusterctl's own wheel, the base image), and the errors when one is missing."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support.images import PYTHON, Quiet

import clusterctl
from clusterctl import __version__
from clusterctl.launcher.containers import build as building
from clusterctl.launcher.containers.archive import ImageConfig
from clusterctl.launcher.containers.build import BuildRequest, bootstrapped, build
from clusterctl.launcher.containers.engine import Engine
from clusterctl.launcher.containers.wheels import Wanted, wanted, wheelhouse, write_project_wheel
from clusterctl.shared.errors import ImageError

DIGEST = "sha256:" + "a" * 64


class FakeEngine(Engine):
    """Has the images in `there`; a container prints `answer`."""

    def __init__(self, there: set[str], answer: str = "", error: str = "") -> None:
        super().__init__("docker", "docker")
        object.__setattr__(self, "there", there)
        object.__setattr__(self, "done", subprocess.CompletedProcess([], 0 if answer else 127, answer, error))
        object.__setattr__(self, "asked", [])

    def describe(self, reference: str) -> ImageConfig | None:
        return ImageConfig(digest=DIGEST) if reference in self.there else None  # type: ignore[attr-defined]

    def pull(self, reference: str, report: object) -> None:
        self.asked.append(f"pull {reference}")  # type: ignore[attr-defined]
        raise ImageError("docker pull failed: cannot reach the registry", "--base bootstrap")

    def run(self, reference: str, *argv: str) -> subprocess.CompletedProcess[str]:
        self.asked.append(f"run {reference}")  # type: ignore[attr-defined]
        return self.done  # type: ignore[attr-defined, no-any-return]


def test_the_wheel_holds_the_installed_files_and_is_reproducible(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    path, again = write_project_wheel(tmp_path), write_project_wheel(tmp_path / "again")
    assert path.read_bytes() == again.read_bytes()
    package = Path(clusterctl.__file__).parent
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        assert {f"clusterctl/{one.relative_to(package)}" for one in package.rglob("*.py")} <= names
        assert {"clusterctl/shipped/jobs/cora.toml", "clusterctl/shipped/containers/install.sh"} <= names
        for line in wheel.read(f"clusterctl-{__version__}.dist-info/RECORD").decode().splitlines():
            name, digest, size = line.split(",")
            if digest:
                found = base64.urlsafe_b64encode(hashlib.sha256(wheel.read(name)).digest()).decode().rstrip("=")
                assert (digest, int(size)) == (f"sha256={found}", len(wheel.read(name)))
            names.remove(name)
    assert names == set()


def test_pip_installs_the_wheel_and_its_command_runs(tmp_path: Path) -> None:
    target = tmp_path / "there"
    words = ["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile", "--target", str(target)]
    subprocess.run([sys.executable, *words, str(write_project_wheel(tmp_path))], check=True)
    done = subprocess.run([target / "bin" / "clusterctl", "--version"], env={"PYTHONPATH": str(target)} | {
        "PATH": str(Path(sys.executable).parent)}, capture_output=True, text=True, check=False)  # fmt: skip
    assert done.stdout == f"clusterctl {__version__}\n", done.stderr


def test_the_image_gets_the_versions_installed_here() -> None:
    want = wanted("3.11", ("train", "accelerate"), own_torch=False)
    names = {requirement.partition("==")[0] for requirement in want.requirements}
    assert {"click", "submitit", "rich", "platformdirs", "torch", "numpy", "scipy", "numba", "pip"} <= names
    assert not names & {"pytest", "mypy", "ruff"}
    assert all("==" in requirement for requirement in want.requirements)


def test_a_base_images_own_torch_is_kept_and_a_requirement_can_be_replaced() -> None:
    want = wanted("3.11", ("train",), own_torch=True, replacing=("numpy<2", "extra-package"))
    assert not [one for one in want.requirements if one.startswith("torch==")]
    assert {"numpy<2", "extra-package"} <= set(want.requirements)
    assert want.key != wanted("3.12", ("train",), own_torch=True, replacing=("numpy<2", "extra-package")).key


def test_wheels_that_cannot_be_downloaded_are_reported_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ImageError, match="cannot download wheels for Python 3.11: No matching distribution") as caught:
        wheelhouse(tmp_path, Wanted(python="3.11", requirements=("no-such-package-here==1",)))
    assert "pip config list" in caught.value.hint
    assert list((tmp_path / "wheelhouses").iterdir()) == []


def test_wheels_are_downloaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(write_project_wheel(tmp_path).parent))
    want = Wanted(python="3.11", requirements=("clusterctl", "clusterctl"))
    monkeypatch.setenv("PIP_NO_DEPS", "1")
    folder = wheelhouse(tmp_path / "cache", want)
    assert [path.name for path in folder.iterdir()] == [f"clusterctl-{__version__}-py3-none-any.whl"]
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    assert wheelhouse(tmp_path / "cache", want) == folder
    with pytest.raises(ImageError):
        wheelhouse(tmp_path / "cache", want, fresh=True)


def test_a_base_image_without_python_is_refused_before_any_download(tmp_path: Path) -> None:
    engine = FakeEngine({"cuda:12"}, error='exec: "python3": executable file not found')
    with pytest.raises(ImageError, match="has no working Python: cuda:12: exec") as caught:
        build(BuildRequest(name="x", base="cuda:12"), engine, tmp_path / "out", tmp_path / "cache", PYTHON, Quiet())
    assert "--base bootstrap" in caught.value.hint
    assert not (tmp_path / "cache" / "wheelhouses").exists()


def test_a_base_image_that_cannot_be_pulled_ends_the_build_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(ImageError) as caught:
        build(BuildRequest(name="x"), FakeEngine(set()), tmp_path / "out", tmp_path / "cache", PYTHON, Quiet())
    assert "--base bootstrap" in caught.value.hint


def test_a_base_image_is_inspected_once(tmp_path: Path) -> None:
    answer = json.dumps({"python": "3.12", "torch": "2.6.0a0+nv", "pyg": None})
    engine = FakeEngine({"pyg:1"}, answer=f"a banner\n{answer}\n")
    for _ in range(2):
        base = building._base(BuildRequest(name="x", base="pyg:1"), engine, tmp_path, PYTHON, Quiet())
        assert (base.python, base.torch, base.pyg) == ("3.12", "2.6.0a0+nv", None)
    assert engine.asked == ["run pyg:1"]  # type: ignore[attr-defined]


def test_bootstrap_reports_missing_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ImageError, match="mmdebstrap, which makes the base image, is not on PATH"):
        bootstrapped(FakeEngine(set()), "3.11", print)
    with pytest.raises(ImageError, match=r"no Debian release has Python 3\.12"):
        bootstrapped(FakeEngine(set()), "3.12", print)
    fake = tmp_path / "mmdebstrap"
    fake.write_text("#!/bin/sh\necho 'E: apt-get update failed'\nexit 1\n")
    fake.chmod(0o700)
    with pytest.raises(ImageError, match="mmdebstrap failed: E: apt-get update failed"):
        bootstrapped(FakeEngine(set()), "3.11", print)


@pytest.mark.long
def test_after_a_change_of_the_project_only_the_last_steps_run(
    bare_image: Path, image_engine: Engine, tmp_path: Path
) -> None:
    from clusterctl.launcher.config import cache_folder

    want = wanted(PYTHON, (), own_torch=False)
    wheels = wheelhouse(cache_folder(), want)
    building._fill(tmp_path, "cpu", wheels, want.requirements)
    (wheel,) = (tmp_path / "project").iterdir()
    with zipfile.ZipFile(wheel, "a") as changed:
        changed.writestr("clusterctl/changed.py", "")
    output: list[str] = []
    base = bootstrapped(image_engine, PYTHON, output.append)
    image_engine.build(tmp_path, "localhost/changed:latest", {"BASE": base}, output.append)
    text = "\n".join(output)
    assert text.count("sing cache") >= 3, text
    assert text.index("install.sh project") > text.rindex("sing cache")


@pytest.mark.parametrize("recipe", ["Dockerfile.cpu", "Dockerfile.gpu"])
def test_recipes_need_no_special_builder_and_contain_no_devices(recipe: str) -> None:
    text = (Path(__file__).parents[2] / "containers" / recipe).read_text()
    words = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert words[0].startswith("ARG BASE=")
    assert building.DEFAULT_BASES[recipe.rpartition(".")[2]] == words[0].removeprefix("ARG BASE=")
    assert not [line for line in words if "--mount" in line or "<<" in line or "VISIBLE_DEVICES" in line]
    assert not text.startswith("# syntax")
    assert words.index("COPY wheels /build/wheels") < words.index("COPY project /build/project")
    assert ("UNVERIFIED" in text) == recipe.endswith("gpu")
