"""Each run has its own working directory, wherever its program writes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from support.images import ThinImage
from support.scenario import Stage

from clusterctl.shared.record.layout import RunDir

THROUGH_A_HOST = True

JOB = """
workload = "command"
argv = ["python", "train.py"]
[resources]
nodes = 2
tasks_per_node = 2
time = "10m"
"""
PROGRAM = """
import os
import time
from pathlib import Path

from package.model import NAME

run, here = os.environ["CLUSTERCTL_RUN_DIR"], Path(__file__).resolve().parent
with open("config.yaml") as config:
    print(NAME, config.read().strip(), here == Path.cwd() == Path(run, "work"), flush=True)
started = here / "started" / os.environ["CLUSTERCTL_ATTEMPT"]
started.mkdir(parents=True, exist_ok=True)
(started / os.environ["RANK"]).touch()
if os.environ["RANK"] == "0":
    own = [
        here / "out" / "weights.txt",  # a common name
        Path("lightning_logs", "version_0", "metrics.csv"),  # Lightning's default
        Path("runs", "events.out.tfevents"),  # TensorBoard's
        Path("package", "cache.txt"),  # into a folder of the code
        Path("results.txt"),  # over a file of the code
    ]
    for path in own:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(run)
    with open("starts.txt", "a+") as file:
        file.write(run + "\\n")
        file.seek(0)
        starts = file.read().splitlines()
    assert set(starts) == {run}
    if len(starts) == 1:
        Path(os.environ["CLUSTERCTL_RESTART_FILE"]).touch()
    elif len(starts) == 2:
        while len(list(started.iterdir())) < 4:  # its failure ends the others
            time.sleep(0.05)
        raise ValueError("an error of the program")
"""
WRITTEN = {
    "lightning_logs/version_0/metrics.csv",
    "out/weights.txt",
    "package/cache.txt",
    "results.txt",
    "runs/events.out.tfevents",
}


def write_project(folder: Path) -> None:
    files = {
        "train.py": PROGRAM,
        "config.yaml": "lr: 1\n",
        "results.txt": "as submitted",
        "package/__init__.py": "",
        "package/model.py": "from .names import NAME\n",
        "package/names.py": "NAME = 'model'\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def content(folder: Path) -> dict[str, str]:
    """Name -> hash of the files in `folder`, without bytecode."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.long
@pytest.mark.here
def test_identical_submissions_do_not_share_files_but_restarts_of_a_run_do(stage: Stage) -> None:
    write_project(stage.folder)
    job = stage.write_job("twin", JOB)
    before = content(stage.folder)
    runs = [stage.submit(job) for _ in range(2)]
    assert runs[0].code.resolve() == runs[1].code.resolve()
    for run in runs:
        stage.wait_for_state(run, "failed", seconds=240)  # in its second attempt
        assert stage.call("resume", run.id, "--cluster", stage.cluster).returncode == 0
    for run in runs:
        status = stage.wait_for_state(run, "finished", seconds=240)
        assert (status["work"], status["attempts"]) == (str(run.work), 3)
        assert (run.work / "starts.txt").read_text() == f"{run.path}\n" * 3
        assert {name for name in WRITTEN if (run.work / name).read_text() == str(run.path)} == WRITTEN
        assert [stage.log(run, rank).splitlines()[-1] for rank in range(4)] == ["model lr: 1 True"] * 4
        _report_lists(stage, run)
    assert content(runs[0].project) == before == content(stage.folder)


def _report_lists(stage: Stage, run: RunDir) -> None:
    assert stage.call("report", run.id, "--cluster", stage.cluster).returncode == 0
    section = run.report.read_text().partition("<h2>Files</h2>")[2]
    for name in (*WRITTEN, "starts.txt"):
        assert f">{name}</a>" in section
    assert "train.py" not in section


@pytest.mark.long
def test_the_working_directory_is_the_same_in_an_image(stage: Stage, thin_image: ThinImage) -> None:
    write_project(stage.folder)
    job = stage.write_job("twin", JOB + thin_image.table)
    before = content(stage.folder)
    run = stage.submit(job)
    stage.wait_for_state(run, "failed", seconds=240)
    assert (run.work / "starts.txt").read_text() == f"{run.path}\n" * 2
    assert {name for name in WRITTEN if (run.work / name).read_text() == str(run.path)} == WRITTEN
    assert stage.log(run, 3, attempt=1).splitlines()[-1] == "model lr: 1 True"
    assert content(run.project) == before


@pytest.mark.long
def test_missing_code_is_a_launch_error_and_leaves_no_working_directory(stage: Stage) -> None:
    write_project(stage.folder)
    run = stage.submit(stage.write_job("gone", JOB), "--hold")
    run.project.rename(run.project.with_name("aside"))
    assert stage.call("release", run.id, "--cluster", stage.cluster).returncode == 0
    stage.wait_for_state(run, "failed")
    cause = json.loads(stage.call("why", run.id, "--cluster", stage.cluster, "-o", "json").stdout)
    assert cause["class"] == "launch"
    assert "cannot create the run's working directory" in cause["cause"]
    assert list(run.path.glob("*work*")) == []
