"""Roles in images of their own: each program sees its own image, under every program that runs images."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import apptainer
from support.images import ThinImage, make_thin
from support.recorded import recorded
from support.sandbox_fixture import Pyxis
from support.scenario import BACK_ENDS, Stage, alive, wait_until

from clusterctl.launcher.containers import unpacked
from clusterctl.shared.record.layout import RunDir

PROGRAM = """
import http.server, os, sys, urllib.request
from clusterctl import program
own = open("/srv/own.txt").read().strip() if os.path.exists("/srv/own.txt") else "the host"
print(os.environ["CLUSTERCTL_ROLE"], os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "in", own, flush=True)
print("sees GPUs", os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
if sys.argv[1:]:
    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(own.encode())
    http.server.ThreadingHTTPServer((os.environ["CLUSTERCTL_HOST"], int(sys.argv[1])), Answers).serve_forever()
for address in os.environ["CLUSTERCTL_ROLE_FEATURES_ADDRESSES"].split(","):
    print("fed by", urllib.request.urlopen(f"http://{address}/").read().decode(), flush=True)
program.log(step=0, loss=1)
"""
JOB = """
code = "."
[container]
mounts = {mounts}
[resources]
time = "10m"

[[role]]
name = "features"
nodes = 2
image = "{first}"
program = ["python", "own.py", "{{port}}"]
ready = "http://{{host}}:{{port}}/"
grace = 1

[[role]]
name = "beside"
share = true
program = ["python", "own.py", "{{port}}"]
grace = 1

[[role]]
name = "trainer"
share = true
image = "./second.sqsh"
tasks_per_node = 2
nodes = 2
program = ["python", "own.py"]
needs = ["features"]
ends = "job"
"""
RANKS = {0: "features 0 of 2", 1: "beside 0 of 1", 2: "trainer 0 of 4", 3: "trainer 1 of 4", 4: "features 1 of 2"}


@pytest.fixture
def job(stage: Stage, thin_image: ThinImage) -> Iterator[str]:
    """Two roles in images and one on the host, all on the same two nodes."""
    second = make_thin(stage.folder, "second.sqsh", **{"srv/own.txt": "the second image"})
    (stage.folder / ".gitignore").write_text("*.sqsh*\n")
    (stage.folder / "own.py").write_text(PROGRAM)
    yield stage.write_job("parts", JOB.format(mounts=json.dumps([*thin_image.mounts]), first=thin_image.path))
    unpacked.release(second)


def check(stage: Stage, run: RunDir) -> None:
    lines = [[line.split("Z ", 1)[-1] for line in stage.log(run, rank).splitlines()] for rank in range(7)]
    own = {"features": "the image's own", "beside": "the host", "trainer": "the second image"}
    for rank, words in RANKS.items():
        assert f"{words} in {own[words.split()[0]]}" in lines[rank]
    for rank in (2, 3, 5, 6):
        assert lines[rank][-2:] == ["fed by the image's own"] * 2


def use(stage: Stage, runtime: str, setup: str = "") -> None:
    """Let the stage's cluster run images with `runtime`."""
    kind = {"local": "emulator"}.get(stage.cluster, stage.cluster)
    text = f'kind = "{kind}"\ncontainer_runtime = "{runtime}"\npolling_floor = "1s"\n{setup}'
    (stage.folder / "cluster").mkdir()
    (stage.folder / "cluster" / "site.toml").write_text(text)
    stage.cluster = "site"


@pytest.mark.parametrize("back_end", BACK_ENDS, indirect=True)
def test_each_role_runs_in_its_own_image(stage: Stage, job: str) -> None:
    done = stage.call("submit", job, "--cluster", stage.cluster, "--dry-run")
    assert (
        f"role trainer: nodes 0-1, 2 ranks per node, after features, ends the job, image {stage.folder}" in done.stderr
    )
    assert done.stdout.count("--container-image=") == 3  # trainer has other slots on its second node
    check(stage, stage.submit(job, "--wait"))


@pytest.mark.long
@pytest.mark.parametrize("back_end", ["emulator", "sandbox"], indirect=True)
def test_apptainer_runs_each_role_in_its_own_image(stage: Stage, job: str, tmp_path: Path) -> None:
    setup = ""
    if shutil.which("apptainer") is None:
        path = f'export PATH="{apptainer.install(tmp_path / "apptainer")}:$PATH"'
        setup = f"setup = {json.dumps([path])}\n"
    use(stage, "apptainer", setup)
    check(stage, stage.submit(job, "--wait"))


@pytest.mark.long
@pytest.mark.parametrize("back_end", ["sandbox"], indirect=True)
@pytest.mark.parametrize("of_the_job", [False, True], ids=["on the host", "in the job's image"])
def test_pyxis_runs_each_role_in_its_own_image(stage: Stage, pyxis: Pyxis, job: str, of_the_job: bool) -> None:
    stage.environment["PATH"] = f"{pyxis.programs}:{stage.environment['PATH']}"
    use(stage, "pyxis")
    words = []
    if of_the_job:  # the job's image is that of `features`, and `beside` still runs on the host
        (image,) = [line for line in (stage.folder / job).read_text().splitlines() if "thin.sqsh" in line]
        words = ["--set", f"container.{image}", "--set", "role.beside.image=none"]
    gpus = ("--set", "role.features.gpus_per_node=1", "--set", "role.trainer.gpus_per_node=2")
    run = stage.submit(job, *words, *gpus, "--wait")
    check(stage, run)
    assert all(f"sees GPUs {seen}\n" in stage.log(run, rank) for rank, seen in ((0, "0"), (2, "1,2"), (6, "1,2")))
    images = [
        line for path in pyxis.records.iterdir() for line in path.read_text().splitlines() if "container-image=" in line
    ]
    assert len(images) == 6 + of_the_job  # a step for each rank in an image; one rank is idle
    wait_until(lambda: not pyxis.containers, 20, "the containers to be removed")


@pytest.mark.long
@pytest.mark.parametrize("back_end", ["sandbox"], indirect=True)
def test_a_rank_killed_in_its_image_under_pyxis_is_named(stage: Stage, pyxis: Pyxis, job: str) -> None:
    stage.environment["PATH"] = f"{pyxis.programs}:{stage.environment['PATH']}"
    use(stage, "pyxis")
    program = 'role.trainer.program=["sleep", "600"]'
    run = stage.submit(job, "--set", program, "--set", "role.trainer.restart=never")
    wait_until(lambda: any(e["event"] == "ready" for e in recorded(run.attempt(0), 4)), 60, "the second server")
    wait_until(lambda: killed(run), 60, "the trainer's program")
    stage.wait_for_state(run, "failed")
    found = json.loads(stage.call("why", run.id, "--cluster", stage.cluster, "-o", "json").stdout)
    assert (found["class"], found["role"], found["role_rank"]) == ("killed", "trainer", 1), found
    wait_until(lambda: not alive(run), 15, "the end of all processes")


def killed(run: RunDir) -> bool:
    """Whether the program of trainer r01 was there, and has been killed."""
    marks = {"CLUSTERCTL_ROLE=trainer", "CLUSTERCTL_ROLE_RANK=1"}
    for pid in alive(run):
        variables = set(Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0"))
        if marks <= variables and Path(f"/proc/{pid}/comm").read_text().strip() == "sleep":
            os.kill(pid, signal.SIGKILL)
            return True
    return False
