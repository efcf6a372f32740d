"""Every command of a program comes from the same environment, however it was chosen."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support.environments import WORDS, asking, make_conda, make_environment
from support.images import ThinImage
from support.scenario import Stage

JOB = 'workload = "command"\nargv = {argv}\nsetup = {setup}\n[resources]\ntime = "10m"\n'


@pytest.fixture
def environments(tmp_path: Path) -> Path:
    """other, module, and conda/envs/third."""
    folder = tmp_path / "environments"
    for name in ("other", "module"):
        make_environment(folder / name)
    make_environment(make_conda(folder / "conda") / "envs" / "third")
    return folder


def environments_in(stage: Stage, setup: list[str], argv: list[str], *words: str) -> set[str]:
    """The environment of each command in WORDS, as reported by a run of `argv`."""
    (stage.folder / "ask.py").write_text(asking())
    run = stage.submit(stage.write_job("ask", JOB.format(argv=json.dumps(argv), setup=json.dumps(setup))), *words)
    stage.wait_for_stage(run, "finished", "failed", seconds=240)
    lines = stage.log(run, 0).splitlines()
    assert len(lines) == 1 + 2 * len(WORDS), stage.log(run, 0, "err")
    return set(lines)


@pytest.mark.parametrize(
    ("setup", "expected"),
    [
        (["source @/other/bin/activate"], "other"),
        pytest.param(["source @/conda/bin/activate third"], "conda/envs/third", marks=pytest.mark.long),
        pytest.param(['module() { PATH="@/$2/bin:$PATH"; }', "module load module"], "module", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize(
    "argv", [pytest.param(["python", "ask.py"], marks=pytest.mark.long), ["bash", "-c", "exec python3 ask.py"]]
)
def test_every_command_comes_from_the_environment_activated_in_setup(
    stage: Stage, environments: Path, setup: list[str], expected: str, argv: list[str]
) -> None:
    lines = [line.replace("@", str(environments)) for line in setup]
    assert environments_in(stage, lines, argv) == {str(environments / expected)}


def test_an_environment_active_in_the_shell_only_causes_a_warning(stage: Stage, environments: Path) -> None:
    other = environments / "other"
    path = f"{other}/bin:{stage.environment['PATH']}"
    stage.environment |= {"VIRTUAL_ENV": str(other), "PATH": path}
    job = stage.write_job("prefix", JOB.format(argv='["python3", "-c", "import sys; print(sys.prefix)"]', setup="[]"))
    done = stage.call("submit", job, "--cluster", stage.cluster, "--wait")
    assert done.returncode == 0, done.stderr
    assert "not from the environment active in your shell" in done.stderr
    assert f"source {other}/bin/activate" in done.stderr
    assert stage.call("logs", "prefix", "--cluster", stage.cluster).stdout == f"{sys.prefix}\n"


def test_in_an_image_commands_come_from_the_images_environment(
    stage: Stage, thin_image: ThinImage, environments: Path
) -> None:
    program = 'import os, shutil, sys; print(os.path.dirname(sys.executable), shutil.which("python3"))'
    setup = json.dumps([f"source {environments}/other/bin/activate"])
    argv = json.dumps(["python", "-c", program])
    run = stage.submit(stage.write_job("inside", JOB.format(argv=argv, setup=setup) + thin_image.table))
    stage.wait_for_stage(run, "finished", "failed", seconds=240)
    folder, python3 = stage.log(run, 0).split()
    assert python3 == f"{folder}/python3"
    assert str(environments) not in folder
