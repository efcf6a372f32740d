"""Runs in an image on clusters without pyxis behave as they do outside."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from support import apptainer
from support.forked import assert_restarts_by_forking
from support.images import ThinImage
from support.recorded import begun, recorded
from support.sandbox_fixture import RunningSandbox
from support.scenario import Stage, wait_until

from clusterctl.shared.record.layout import RunDir

SHAPE = "[resources]\nnodes = 2\ntasks_per_node = 2\n"


@pytest.fixture(params=["emulator", pytest.param("sandbox", marks=pytest.mark.long)])
def back_end(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def command(image: ThinImage, program: str, more: str = "", shape: str = SHAPE) -> str:
    return f'workload = "command"\nargv = ["python", "-c", {json.dumps(program)}]\n{shape}{image.table}{more}'


def exits(run: RunDir) -> dict[int, int]:
    attempt = run.attempt(0)
    return {rank: [e["code"] for e in recorded(attempt, rank) if e["event"] == "exit"][-1] for rank in begun(attempt)}


def test_a_program_in_an_image_gets_its_rank_and_its_code(stage: Stage, thin_image: ThinImage) -> None:
    (stage.folder / "helper.py").write_text("GREETING = 'hallo'\n")
    program = """
import os, sys, helper
from pathlib import Path
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "COLOUR", "SHAPE", "NVIDIA_VISIBLE_DEVICES")
print(helper.GREETING, sys.prefix, Path("/srv/own.txt").exists(), Path("/boot").exists(), *map(os.environ.get, names))
"""
    stage.environment |= {"COLOUR": "submitter", "VIRTUAL_ENV": "/nowhere"}
    job = command(thin_image, program, '[env]\nSHAPE = "job"\n')
    run = stage.submit(stage.write_job("own", job), "--wait")
    assert [stage.log(run, rank).splitlines()[-1] for rank in range(4)] == [
        f"hallo /opt/venv True False {rank} 4 {rank % 2} image job void" for rank in range(4)
    ]


@pytest.mark.long
def test_a_rank_failing_in_the_image_keeps_its_exit_code_and_ends_the_others(
    stage: Stage, thin_image: ThinImage
) -> None:
    program = "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(3)\ntime.sleep(600)"
    job = stage.write_job("failing", command(thin_image, program))
    done = stage.call("submit", job, "--cluster", stage.cluster, "--wait")
    assert done.returncode == 1
    run = RunDir(stage.runs / done.stdout.strip())
    assert exits(run)[1] == 3
    assert json.loads(run.attempt(0).host_json.read_text())["exit_code"] != 0


@pytest.mark.long
def test_the_warning_signal_reaches_the_program_in_the_image(stage: Stage, thin_image: ThinImage) -> None:
    program = """
import signal, sys, time
signal.signal(signal.SIGUSR2, lambda *_: sys.exit(print("warned", flush=True)))
print("ready", flush=True)
while True: time.sleep(0.1)
"""
    shape = '[resources]\nnodes = 1\ntasks_per_node = 2\ntime = "60s"\nwarning = "54s"\n'
    if stage.cluster == "sandbox":  # whose warning may come up to a minute early, before the program handles it
        shape = shape.replace("60s", "10m").replace("54s", "0")
    run = stage.submit(stage.write_job("warned", command(thin_image, program, shape=shape)))
    wait_until(lambda: [path.read_text().count("ready") for path in run.attempt(0).log_files("out").values()] == [1, 1])
    if stage.cluster == "sandbox":
        words = ["scancel", "--signal=USR2", stage.job_id(run)]
        subprocess.run(words, env=stage.environment, check=True, timeout=60)
    stage.wait_for_state(run, "finished")
    assert [stage.log(run, rank).splitlines()[-1] for rank in range(2)] == ["warned", "warned"]
    assert exits(run) == {0: 0, 1: 0}


def test_no_part_of_the_image_remains_on_the_nodes(
    sandbox: RunningSandbox, thin_image: ThinImage, tmp_path: Path
) -> None:
    environment = sandbox.environment | {"CLUSTERCTL_RUNS": str(tmp_path / "runs")}
    stage = Stage("site", tmp_path, environment)
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "site.toml").write_text('container_runtime = "builtin"\npolling_floor = "1s"\n')
    run = stage.submit(stage.write_job("tidy", command(thin_image, "import sys; print(sys.prefix)")), "--wait")
    assert stage.log(run, 3).splitlines()[-1] == "/opt/venv"
    nodes = json.loads(run.attempt(0).host_json.read_text())["nodes"]
    look = ["srun", f"--nodelist={nodes}", "--ntasks-per-node=1", "sh", "-c", "ls /dev/shm/clusterctl-*"]
    # The run finishes before its job: the cleanup step runs after the last rank.
    wait_until(lambda: (done := sandbox.try_to(*look)).returncode == 0 and thin_image.path.stem not in done.stdout, 60)


@pytest.mark.long
def test_code_image_runs_the_images_own_code(stage: Stage, thin_image: ThinImage) -> None:
    (stage.folder / "helper.py").write_text("raise SystemExit('the snapshot')\n")
    program = "import os, clusterctl; print(os.getcwd(), clusterctl.__file__)"
    run = stage.submit(stage.write_job("own", command(thin_image, program, shape="")), "--code", "image", "--wait")
    folder, file = stage.log(run, 0).split()[-2:]
    assert folder == "/srv"
    assert not Path(file).is_relative_to(stage.runs)
    assert list((run.code / "project").iterdir()) == []


@pytest.mark.parametrize("runtime", ["builtin", pytest.param("apptainer", marks=pytest.mark.long)])
def test_a_training_in_an_image_starts_again_by_forking(
    stage: Stage, thin_image: ThinImage, tmp_path: Path, runtime: str
) -> None:
    programs = apptainer.install(tmp_path / "apptainer") if runtime == "apptainer" else None
    setup = f"setup = {json.dumps([f'export PATH={programs}:$PATH'])}\n" if programs else ""
    kind = {"local": "emulator"}.get(stage.cluster, stage.cluster)
    (stage.folder / "cluster").mkdir()
    (stage.folder / "cluster" / "boxes.toml").write_text(
        f'kind = "{kind}"\ncontainer_runtime = "{runtime}"\npolling_floor = "1s"\n{setup}'
    )
    stage.cluster = "boxes"
    assert_restarts_by_forking(stage, thin_image)
