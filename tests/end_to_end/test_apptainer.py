"""Runs in images under Apptainer: the real one if it is installed, else a stand-in written from its documentation."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support import apptainer
from support.images import ThinImage
from support.scenario import Stage

PROGRAM = """
import os, sys, helper
from pathlib import Path
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "COLOUR", "SHAPE", "NVIDIA_VISIBLE_DEVICES")
print(helper.GREETING, sys.prefix, Path("/srv/own.txt").exists(), *map(os.environ.get, names))
"""


REAL = shutil.which("apptainer") is not None


@pytest.fixture
def programs(stage: Stage, tmp_path: Path) -> Path:
    """The stand-in's folder. The cluster `with-apptainer` adds it to PATH in `setup`; `without` does not."""
    folder = tmp_path if REAL else apptainer.install(tmp_path / "apptainer")
    kind = {"local": "emulator"}.get(stage.cluster, stage.cluster)
    path = f'export PATH="{folder}:$PATH"'
    setup = "" if REAL else f"setup = {json.dumps([path])}\n"
    (stage.folder / "cluster").mkdir()
    for name, lines in {"with-apptainer": setup, "without": ""}.items():
        text = f'kind = "{kind}"\ncontainer_runtime = "apptainer"\n{lines}'
        (stage.folder / "cluster" / f"{name}.toml").write_text(text)
    return folder


def job(stage: Stage, image: ThinImage) -> str:
    (stage.folder / "helper.py").write_text("GREETING = 'hallo'\n")
    stage.environment |= {"COLOUR": "submitter"}
    text = f'workload = "command"\nargv = ["python", "-c", {json.dumps(PROGRAM)}]\n'
    shape = "[resources]\nnodes = 2\ntasks_per_node = 2\n"
    return stage.write_job("own", f'{text}{shape}{image.table}[env]\nSHAPE = "job"\n')


def test_a_program_in_an_image_gets_its_rank_and_its_code(stage: Stage, programs: Path, thin_image: ThinImage) -> None:
    done = stage.call("submit", job(stage, thin_image), "--cluster", "with-apptainer", "--wait")
    assert done.returncode == 0, done.stderr
    run = next(stage.runs.glob("own-*"))
    logs = [(run / "attempts" / "0" / "logs" / f"rank_{rank:05}.out").read_text() for rank in range(4)]
    colour = "submitter" if REAL else "image"  # Apptainer reads no /etc/environment, which a squashfs has its ENV in
    assert [log.splitlines()[-1].split("Z ")[-1] for log in logs] == [
        f"hallo /opt/venv True {rank} 4 {rank % 2} {colour} job void" for rank in range(4)
    ]
    if REAL:
        return
    argv = json.loads((programs / "records" / "3.json").read_text())
    assert argv[0] == "exec"
    assert f"--bind={stage.runs}:{stage.runs}" in argv
    assert f"--pwd={run}/work" in argv
    assert "--nv" not in argv


@pytest.mark.long
@pytest.mark.skipif(REAL, reason="Apptainer is installed here")
def test_if_apptainer_is_missing_submit_warns_and_why_reports_it(
    stage: Stage, programs: Path, thin_image: ThinImage
) -> None:
    done = stage.call("submit", job(stage, thin_image), "--cluster", "without", "--wait")
    assert done.returncode == 1
    assert "apptainer is not on PATH on this machine" in done.stderr
    why = json.loads(stage.call("why", "@last", "--cluster", "without", "-o", "json").stdout)
    assert (why["class"], why["cause"]) == ("launch", "Apptainer is not installed on the node")


@pytest.mark.long
def test_why_names_an_image_that_apptainer_cannot_read(stage: Stage, programs: Path) -> None:
    (stage.folder / "bad.sif").write_text("neither a SIF file nor a squashfs")
    text = f'workload = "command"\nargv = ["true"]\n[container]\nimage = "{stage.folder}/bad.sif"\n'
    done = stage.call("submit", stage.write_job("bad", text), "--cluster", "with-apptainer", "--wait")
    assert done.returncode == 1, done.stderr
    why = json.loads(stage.call("why", "@last", "--cluster", "with-apptainer", "-o", "json").stdout)
    assert why["class"] == "image"
    assert "bad.sif" in why["cause"]
