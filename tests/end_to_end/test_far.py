"""The commands of a login node, typed here and carried out there: over ssh, to a machine with a home of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.far import Far, FarStage, made, staged
from support.scenario import wait_until
from support.thin_image import make_thin

from clusterctl.runs.layout import RunDir

SHAPE = "[resources]\nnodes = 2\n"
BOTH = ["emulator", pytest.param("sandbox", marks=pytest.mark.long)]


@pytest.fixture(params=BOTH)
def stage(request: pytest.FixtureRequest, far_shared: Path, tmp_path: Path) -> Iterator[FarStage]:
    variables = {}
    if request.param == "sandbox":
        sandbox = request.getfixturevalue("sandbox").environment
        variables = {name: sandbox[name] for name in ("XDG_STATE_HOME", "SLURM_CONF")}
    with made(far_shared, variables=variables) as far, staged(far, tmp_path, kind=request.param) as stage:
        yield stage


def program(text: str, more: str = SHAPE) -> str:
    return f'workload = "command"\nargv = ["python", "-c", {json.dumps(text)}]\n{more}'


def git(folder: Path, *words: str) -> None:
    own = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
    subprocess.run(["git", "-C", str(folder), *own, *words], check=True, capture_output=True)


def write_project(folder: Path) -> None:
    """A project that git knows, with a change, a new file, and one that is ignored."""
    (folder / "helper.py").write_text("GREETING = 'committed'\n")
    (folder / ".gitignore").write_text("ignored.bin\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "First")
    (folder / "helper.py").write_text("GREETING = 'changed'\n")
    (folder / "package").mkdir()
    (folder / "package" / "new.py").write_text("NAME = 'new'\n")
    (folder / "ignored.bin").write_bytes(os.urandom(2**20))


def test_a_job_goes_there_with_its_changed_project_and_is_seen_from_here(stage: FarStage) -> None:
    write_project(stage.folder)
    text = """
import helper, os, package.new
print(helper.GREETING, package.new.NAME, os.environ["OWN"], os.path.realpath(helper.__file__))
"""
    job = stage.write_job("own", program(text, f"{SHAPE}[env]\nOWN = \"it's\"\n"))
    submitted = stage.do("submit", job, "--wait", "--timeout", "250")
    run = RunDir(stage.runs / submitted.strip())
    words = stage.log(run, 1).splitlines()[-1].split(" ", 3)
    assert words[:3] == ["changed", "new", "it's"]
    assert words[3].startswith(str(stage.runs))
    assert not list(stage.runs.rglob("ignored.bin"))
    record = json.loads(run.run_json.read_text())
    assert record["git"]["dirty"]
    assert "+GREETING = 'changed'" in run.git_patch.read_text()
    assert stage.status(run)["stage"] == "finished"
    assert "changed new it's" in stage.do("logs", run.id, "--rank", "1")
    assert "finished" in stage.do("why", run.id)
    assert run.id in stage.do("monitor", "--once")
    assert stage.do("report", run.id) == f"{run.id}.html\n"
    assert run.id in (stage.folder / f"{run.id}.html").read_text()
    assert stage.do("export", "@last") == "last.tar.gz\n"
    with tarfile.open(stage.folder / "last.tar.gz") as archive:
        assert any(name.endswith("run.json") for name in archive.getnames())


def test_a_run_that_goes_on_is_followed_entered_and_cancelled(stage: FarStage) -> None:
    text = "import time; print('up', flush=True); time.sleep(600)"
    follow = stage.begin("submit", stage.write_job("long", program(text)), "--cluster", "far", "--follow")
    run = wait_until(lambda: next((RunDir(p) for p in stage.runs.glob("long-*")), None))
    wait_until(lambda: run.attempt(0).log(0).is_file() and "up" in stage.log(run, 0))
    inside = stage.do("attach", run.id, "--rank", "1", "--", "printenv", "CLUSTERCTL_RUN_DIR")
    assert inside.strip() == str(run.path)
    os.killpg(follow.pid, signal.SIGINT)
    printed, errors = follow.communicate(timeout=60)
    assert (follow.returncode, printed.strip()) == (130, run.id)
    assert "the run goes on" in errors
    assert stage.status(run)["stage"] not in ("cancelled", "failed", "lost")
    stage.do("cancel", run.id)
    stage.wait_for_stage(run, "cancelled")
    shown = stage.do("status", "--watch", "-o", "jsonl", run.id)
    assert json.loads(shown.splitlines()[-1])["stage"] == "cancelled"


def test_what_is_wrong_is_said_as_it_is_there(stage: FarStage) -> None:
    assert "error: no run" in stage.do("status", "nowhere", code=5)
    assert "no such job file" in stage.do("submit", "./nowhere.toml", code=5)
    data = stage.write_job("relative", f'workload = "reddit"\n{SHAPE}[data]\nroot = "./data"\n')
    assert "is a path of this machine, and the run will be on far" in stage.do("submit", data, code=3)
    assert not stage.runs.exists() or not list(stage.runs.glob("[!.]*"))
