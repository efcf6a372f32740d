"""`clusterctl image run` from the command line."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support.images import ThinImage
from support.scenario import CLUSTERCTL


@pytest.fixture
def images(tmp_path: Path, thin_image: ThinImage) -> Path:
    (tmp_path / "data" / "clusterctl" / "images").mkdir(parents=True)
    (tmp_path / "data" / "clusterctl" / "images" / "thin.sqsh").symlink_to(thin_image.path)
    return tmp_path / "data"


def typed(images: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "XDG_DATA_HOME": str(images), "XDG_CONFIG_HOME": str(images), **variables}
    environment.pop("CLUSTERCTL_CLUSTER", None)
    folder = images.parent
    argv = [CLUSTERCTL, "image", "run", "--mount", "/usr:/usr:ro", *words]
    return subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_a_command_runs_in_an_image_by_its_name_or_its_path(images: Path, thin_image: ThinImage) -> None:
    for image in ("thin", str(thin_image.path), "./data/clusterctl/images/thin.sqsh"):
        done = typed(images, image, "--", "sh", "-c", "cat own.txt; exit 7")
        assert (done.returncode, done.stdout) == (7, "the image's own\n"), done.stderr


def test_options_after_the_image_belong_to_the_command(images: Path) -> None:
    assert typed(images, "thin", "echo", "--writable", "--", "-x").stdout == "--writable -- -x\n"


def test_without_a_command_the_image_runs_its_default_command(images: Path) -> None:
    assert typed(images, "thin").stdout == "started by the image\n"


def test_options_set_mounts_environment_user_and_write_access(images: Path) -> None:
    (images.parent / "here.txt").write_text("here\n")
    script = "pwd; cat here.txt; echo $COLOUR $SHAPE $(id -u); echo x >/srv/own.txt && echo written"
    words = (
        "--mount",
        ".",
        "--workdir",
        str(images.parent),
        "--writable",
        "--root",
        "--env",
        "COLOUR=red",
        "--env",
        "SHAPE",
    )
    done = typed(images, *words, "thin", "sh", "-c", script, SHAPE="round")
    assert done.stdout == f"{images.parent}\nhere\nred round 0\nwritten\n", done.stderr


@pytest.mark.parametrize(
    ("words", "code", "message", "hint"),
    [
        (["thick"], 5, "no such image", "did you mean thin?"),
        (["--mount", "/a,b", "thin"], 3, "container.mounts: ',' in a mounted path", "cannot escape"),
        (["--mount", "/nowhere/at/all", "thin"], 1, "cannot mount /nowhere/at/all", "mount"),
        (["--env", "NOBODY_SET_THIS", "thin"], 2, "--env: not a variable: NOBODY_SET_THIS", "NAME=VALUE"),
        (["--workdir", "/nowhere", "thin", "true"], 1, "cannot use the working directory", "workdir"),
    ],
)
def test_mistakes_are_reported(images: Path, words: list[str], code: int, message: str, hint: str) -> None:
    done = typed(images, *words)
    assert done.returncode == code
    assert f"error: {message}" in done.stderr
    assert hint in done.stderr
    assert "Traceback" not in done.stderr
