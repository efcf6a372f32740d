"""Runs in an image on clusters without pyxis behave as they do outside."""

from __future__ import annotations

import json
from pathlib import Path

from scenario import Stage
from thin_image import ThinImage

from clusterctl.runs.files import read_lines
from clusterctl.runs.layout import RunDir

SHAPE = "[resources]\nnodes = 2\ntasks_per_node = 2\n"


def command(image: ThinImage, program: str, more: str = "", shape: str = SHAPE) -> str:
    return f'workload = "command"\nargv = ["python", "-c", {json.dumps(program)}]\n{shape}{image.table}{more}'


def exits(run: RunDir) -> dict[int, int]:
    files = run.attempt(0).event_files()
    return {rank: [e["code"] for e in read_lines(path) if e["event"] == "exit"][-1] for rank, path in files.items()}


def test_a_program_finds_the_image_its_rank_and_its_code(stage: Stage, thin_image: ThinImage) -> None:
    (stage.folder / "helper.py").write_text("GREETING = 'hallo'\n")
    program = """
import os, sys, helper
from pathlib import Path
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "COLOUR", "SHAPE", "NVIDIA_VISIBLE_DEVICES")
print(helper.GREETING, sys.prefix, Path("/srv/own.txt").exists(), Path("/var").exists(), *map(os.environ.get, names))
"""
    stage.environment |= {"COLOUR": "submitter", "VIRTUAL_ENV": "/nowhere"}
    job = command(thin_image, program, '[env]\nSHAPE = "job"\n')
    run = stage.submit(stage.write_job("own", job), "--wait")
    assert [stage.log(run, rank).splitlines()[-1] for rank in range(4)] == [
        f"hallo /opt/venv True False {rank} 4 {rank % 2} image job void" for rank in range(4)
    ]


def test_an_exit_code_comes_out_of_the_image_and_the_others_are_ended(stage: Stage, thin_image: ThinImage) -> None:
    program = "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(3)\ntime.sleep(600)"
    job = stage.write_job("failing", command(thin_image, program))
    done = stage.call("submit", job, "--cluster", stage.cluster, "--wait")
    assert done.returncode == 1
    run = RunDir(stage.runs / done.stdout.strip())
    assert exits(run)[1] == 3
    assert json.loads(run.attempt(0).host_json.read_text())["exit_code"] != 0


def test_the_warning_signal_comes_into_the_image(stage: Stage, thin_image: ThinImage) -> None:
    program = """
import signal, sys, time
signal.signal(signal.SIGUSR2, lambda *_: sys.exit(print("warned", flush=True)))
while True: time.sleep(0.1)
"""
    shape = '[resources]\nnodes = 1\ntasks_per_node = 2\ntime = "60s"\nwarning = "54s"\n'
    run = stage.submit(stage.write_job("warned", command(thin_image, program, shape=shape)), "--wait")
    assert [stage.log(run, rank).splitlines()[-1] for rank in range(2)] == ["warned", "warned"]
    assert exits(run) == {0: 0, 1: 0}


def test_code_of_the_images_own_is_what_runs_where_it_is_asked_for(stage: Stage, thin_image: ThinImage) -> None:
    (stage.folder / "helper.py").write_text("raise SystemExit('the snapshot')\n")
    program = "import os, clusterctl; print(os.getcwd(), clusterctl.__file__)"
    run = stage.submit(stage.write_job("own", command(thin_image, program, shape="")), "--code", "image", "--wait")
    folder, file = stage.log(run, 0).split()[-2:]
    assert folder == "/srv"
    assert not Path(file).is_relative_to(stage.runs)
    assert list((run.code / "project").iterdir()) == []
