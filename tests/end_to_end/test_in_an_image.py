"""Runs in an image on clusters without pyxis behave as they do outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from support import apptainer
from support.images import ThinImage
from support.ranks import CORA
from support.recorded import begun, recorded
from support.sandbox_fixture import RunningSandbox
from support.scenario import Stage, alive, wait_until

from clusterctl.shared.node.processes import stat_of
from clusterctl.shared.record.files import read_json, read_lines
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


TRAINING = f"""
workload = "reddit"
{SHAPE}time = "30m"
[checkpoint]
every = "1s"
[train]
epochs = 8
batch_size = 64
evaluate_every = 4
[data]
root = {json.dumps(str(CORA))}
"""


@pytest.mark.parametrize("runtime", ["builtin", "apptainer"])
def test_a_training_in_an_image_starts_again_by_forking(
    stage: Stage, thin_image: ThinImage, tmp_path: Path, runtime: str
) -> None:
    """The standbys of its first start are still in the image, and become the ranks of the second."""
    words = [*in_runtime(stage, tmp_path, runtime)]
    run = stage.submit(stage.write_job("boxed", TRAINING + thin_image.table), *words)
    wait_until(lambda: list(run.checkpoints.glob("0-*")), 120, "a checkpoint")
    standbys = standbys_of(run, 0)
    assert len(set(standbys.values())) == 2, "one on each node"
    (killed,) = (pid for pid, rank in ranks_of(run, 0) if rank == 1)
    assert Path(f"/proc/{killed}/root").stat().st_ino != Path("/").stat().st_ino
    assert os.readlink(f"/proc/{killed}/cwd").endswith(str(run.work))
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: len(ranks_of(run, 1)) == 4, 120, "the second start")
    assert standbys_of(run, 1) == standbys
    stage.wait_for_state(run, "finished", seconds=120)
    first, second = (read_json(attempt.host_json) for attempt in run.attempts())
    assert (first["restarting"], first["job_id"], second["exit_code"]) == (True, second["job_id"], 0)
    losses = [
        {line["step"]: line["loss"] for line in read_lines(attempt.metrics) if "loss" in line}
        for attempt in run.attempts()
    ]
    assert sorted(losses[0] | losses[1]) == list(range(1, max(losses[1]) + 1))
    assert all(losses[0][step] == losses[1][step] for step in losses[0].keys() & losses[1].keys())
    wait_until(lambda: not alive(run) and not any(map(stat_of, standbys.values())), 60, "all processes to end")


def in_runtime(stage: Stage, folder: Path, runtime: str) -> Sequence[str]:
    """The words that choose a cluster which enters images in this way; `stage` is changed to match."""
    programs = apptainer.install(folder / "apptainer") if runtime == "apptainer" else None
    kind = {"local": "emulator"}.get(stage.cluster, stage.cluster)
    setup = f"setup = {json.dumps([f'export PATH={programs}:$PATH'])}\n" if programs else ""
    (stage.folder / "cluster").mkdir()
    (stage.folder / "cluster" / "boxes.toml").write_text(
        f'kind = "{kind}"\ncontainer_runtime = "{runtime}"\npolling_floor = "1s"\n{setup}'
    )
    stage.cluster = "boxes"
    return ()


def ranks_of(run: RunDir, attempt: int) -> list[tuple[int, int]]:
    """Each process that a standby has forked for this attempt, and its rank."""
    found = []
    for rank in range(4):
        for pid in alive(run, rank):
            try:
                shown = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                parent = stat_of(pid)
                line = parent and Path(f"/proc/{parent.parent}/cmdline").read_bytes()
            except OSError:  # it has just ended
                continue
            if line and line.endswith(b"\0standby\0") and f"CLUSTERCTL_ATTEMPT={attempt}".encode() in shown:
                found.append((pid, rank))
    return found


def standbys_of(run: RunDir, attempt: int) -> dict[int, int]:
    """Rank -> the process that has forked it."""
    return {rank: stat.parent for pid, rank in ranks_of(run, attempt) if (stat := stat_of(pid))}
