"""Runs in images under Apptainer, with a stand-in written from its documentation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import apptainer
from support.scenario import Stage
from support.thin_image import ThinImage

PROGRAM = """
import os, sys, helper
from pathlib import Path
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "COLOUR", "SHAPE", "NVIDIA_VISIBLE_DEVICES")
print(helper.GREETING, sys.prefix, Path("/srv/own.txt").exists(), *map(os.environ.get, names))
"""


@pytest.fixture
def programs(stage: Stage, tmp_path: Path) -> Path:
    """The stand-in's folder. The cluster `with-apptainer` adds it to PATH in `setup`; `without` does not."""
    folder = apptainer.install(tmp_path / "apptainer")
    kind = {"local": "emulator"}.get(stage.cluster, stage.cluster)
    setup = json.dumps([f'export PATH="{folder}:$PATH"'])
    (stage.folder / "cluster").mkdir()
    for name, lines in {"with-apptainer": f"setup = {setup}\n", "without": ""}.items():
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
    assert [log.splitlines()[-1].split("Z ")[-1] for log in logs] == [
        f"hallo /opt/venv True {rank} 4 {rank % 2} image job void" for rank in range(4)
    ]
    argv = json.loads((programs / "records" / "3.json").read_text())
    assert argv[0] == "exec"
    assert f"--bind={stage.runs}:{stage.runs}" in argv
    assert f"--pwd={run}/work" in argv
    assert "--nv" not in argv


def test_if_apptainer_is_missing_submit_warns_and_why_reports_it(
    stage: Stage, programs: Path, thin_image: ThinImage
) -> None:
    done = stage.call("submit", job(stage, thin_image), "--cluster", "without", "--wait")
    assert done.returncode == 1
    assert "apptainer is not on PATH on this machine" in done.stderr
    why = json.loads(stage.call("why", "@last", "--cluster", "without", "-o", "json").stdout)
    assert (why["class"], why["cause"]) == ("launch", "Apptainer is not installed on the node")
