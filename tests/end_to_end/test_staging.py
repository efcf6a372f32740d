"""Ranks import from one copy per node, which is removed when the run ends."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from support.environments import make_index, make_wheel, uv_lock
from support.scenario import Stage, wait_until

from clusterctl.shared.record.layout import RunDir

CLUSTER = """
kind = "{kind}"
python_environments = ["{environment}"]
local_scratch = "{scratch}"
"""
JOB = """
workload = "command"
argv = ["python", "train.py"]
env = {{ PYTHONPATH = "{environment}/lib/python3/site-packages" }}
[resources]
nodes = 2
tasks_per_node = 2
time = "10m"
local_code = true
"""
PROGRAM = """
import json, os, sys, time
from pathlib import Path
import installed, package.model
hook = sys.modules.get("clusterctl_imports")
print(json.dumps({
    "node": os.environ["SLURMD_NODENAME"],
    "copy": str(Path(hook.__file__).parents[1]) if hook else None,
    "where": [installed.WHERE, package.model.WHERE],
    "files": [__file__, package.model.__file__, installed.__file__],
    "data": Path(package.model.__file__).with_name("data.txt").read_text(),
}), flush=True)
Path("written-by-" + os.environ["RANK"]).touch()
if "again" in sys.argv and os.environ["RANK"] + os.environ["CLUSTERCTL_ATTEMPT"] == "00":
    Path(os.environ["CLUSTERCTL_RESTART_FILE"]).touch()
if "stay" in sys.argv:
    time.sleep(600)
"""


@pytest.fixture
def site(stage: Stage, tmp_path: Path) -> Path:
    """A folder with a project, an environment and the nodes' scratch disk; the cluster `copying` uses them."""
    files = {
        "project/train.py": PROGRAM,
        "project/package/__init__.py": "",
        "project/package/model.py": "WHERE = 'as submitted'\n",
        "project/package/data.txt": "beside it",
        "environment/lib/python3/site-packages/installed.py": "WHERE = 'as submitted'\n",
        "scratch/of-another-user": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    kind = {"local": "emulator"}.get(stage.cluster, stage.cluster)
    (tmp_path / "project" / "cluster").mkdir()
    text = CLUSTER.format(kind=kind, environment=tmp_path / "environment", scratch=tmp_path / "scratch")
    (tmp_path / "project" / "cluster" / "copying.toml").write_text(text)
    stage.cluster = "copying"
    return tmp_path


def left(site: Path) -> list[str]:
    return sorted(path.name for path in (site / "scratch").iterdir())


def reported(stage: Stage, run: RunDir, rank: int, attempt: int = 0) -> dict[str, Any]:
    return dict(json.loads(stage.log(run, rank, attempt=attempt).splitlines()[-1]))


@pytest.mark.long
def test_ranks_import_from_one_copy_per_node_and_attempt_which_is_removed(stage: Stage, site: Path) -> None:
    job = JOB.format(environment=site / "environment").replace('"train.py"', '"train.py", "again"')
    run = stage.submit(stage.write_job("copied", job), "--hold")
    installed = site / "environment" / "lib" / "python3" / "site-packages" / "installed.py"
    installed.write_text("WHERE = 'where it is installed'\n")
    assert stage.call("release", run.id, "--cluster", stage.cluster).returncode == 0
    stage.wait_for_state(run, "finished", "failed", seconds=240)
    copies = defaultdict(set)
    for rank in [reported(stage, run, rank, attempt) for rank in range(4) for attempt in (0, 1)]:
        assert rank["where"] == ["as submitted", "as submitted"]
        assert rank["files"] == [str(run.work / "train.py"), str(run.work / "package" / "model.py"), str(installed)]
        assert rank["data"] == "beside it"
        copies[rank["node"]].add(rank["copy"])
    assert len(copies) == 2
    assert all(len(folders) == 2 for folders in copies.values()), copies  # one per attempt
    assert len(set.union(*copies.values())) == 4
    assert sorted(path.name for path in run.work.glob("written-*")) == [f"written-by-{rank}" for rank in range(4)]
    assert not list(run.work.rglob("*.pyc"))
    wait_until(lambda: left(site) == ["of-another-user"], 60, "the copies to be removed")


@pytest.mark.long
def test_leftovers_of_a_killed_run_are_removed_by_the_next(stage: Stage, site: Path) -> None:
    text = JOB.format(environment=site / "environment")
    stay = text.replace('"train.py"', '"train.py", "stay"').replace("[resources]", "[resources]\nrequeue = false")
    killed = stage.submit(stage.write_job("killed", stay))
    wait_until(lambda: (killed.work / "written-by-3").exists(), 120, "the ranks to begin")
    assert stage.call("cancel", "--yes", killed.id, "--cluster", stage.cluster).returncode == 0
    stage.wait_for_state(killed, "cancelled", "failed", "preempted", "lost", seconds=120)
    run = stage.submit(stage.write_job("next", text))
    stage.wait_for_state(run, "finished", "failed", seconds=240)
    assert reported(stage, run, 0)["copy"]
    wait_until(lambda: left(site) == ["of-another-user"], 60, "the copies of both runs to be removed")


@pytest.mark.long
def test_without_local_scratch_ranks_import_from_the_shared_file_system_and_host_log_notes_it(
    stage: Stage, site: Path
) -> None:
    (site / "scratch").rename(site / "elsewhere")
    done = stage.call(
        "submit",
        stage.write_job("bare", JOB.format(environment=site / "environment")),
        "--cluster",
        stage.cluster,
        "--wait",
    )
    assert done.returncode == 0, done.stderr
    assert f"no such folder: {site / 'scratch'}: ranks import from the shared file system" in done.stderr
    (run,) = map(RunDir, stage.runs.glob("bare-*"))
    warnings = run.attempt(0).host_log.read_text()
    assert warnings.count("imports from the shared file system: cannot copy modules to") == 2
    assert reported(stage, run, 0)["copy"] is None


NODES, RANKS, MODULES, MOST_OPENS = 4, 64, 300, 2000
MANY = """
kind = "emulator"
local_scratch = "{scratch}"
[emulator]
nodes = 4
cpus_per_node = 16
"""
LOCKED = """
workload = "command"
argv = ["python", "-c", "import generated; print(len(generated.modules), generated.__file__)"]
environment = "uv.lock"
[resources]
nodes = 4
tasks_per_node = 16
time = "1h"
local_code = true
"""
_OPENED = re.compile(r'^open(?:at)?\((?:(?:AT_FDCWD|\d+)<(?P<folder>[^>]*)>, )?"(?P<name>[^"]*)"(?P<flags>.*) = \d')


def opened(traces: Path, below: Path) -> list[list[str]]:
    """The files in the folder `below` that each process opened, by strace's files in the folder `traces`."""
    found = []
    for trace in traces.iterdir():
        lines = map(_OPENED.match, trace.read_text(errors="replace").splitlines())
        files = [match for match in lines if match and "O_DIRECTORY" not in match["flags"]]
        paths = [os.path.join(match["folder"] or "/", match["name"]) for match in files]  # noqa: PTH118
        found.append([path for path in paths if path.startswith(f"{below}/")])
    return found


@pytest.mark.long
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.parametrize("back_end", ["emulator"], indirect=True)
def test_64_ranks_import_a_locked_environment_with_at_most_2000_opens_on_the_shared_disk(
    stage: Stage, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    stage.keep_runs_in(shared / "runs")
    stage.folder = shutil.move(stage.folder, shared / "project")
    (tmp_path / "scratch").mkdir()
    names = [f"m{number}" for number in range(MODULES)]
    files = {f"generated/{name}.py": f"NAME = {name!r}\n" for name in names}
    files["generated/__init__.py"] = f"from generated import {', '.join(names)}\nmodules = [{', '.join(names)}]\n"
    wheel = make_wheel(tmp_path, "generated", "1.0", files={**files, "generated.py": ""})
    (stage.folder / "uv.lock").write_text(uv_lock(make_index(tmp_path / "simple", [wheel]), [wheel]))
    (stage.folder / "cluster").mkdir()
    (stage.folder / "cluster" / "copying.toml").write_text(MANY.format(scratch=tmp_path / "scratch"))
    stage.cluster = "copying"
    run = stage.submit(stage.write_job("many", LOCKED), "--hold")

    traces = tmp_path / "traces"
    traces.mkdir()
    supervisor = supervisor_of(stage)
    words = ["strace", "-ff", "-qq", "-y", "-s", "4096", "-e", "trace=open,openat", "-e", "signal=none"]
    with subprocess.Popen([*words, "-o", traces / "of", "-p", str(supervisor)], stderr=subprocess.DEVNULL) as tracer:
        try:
            wait_until(lambda: is_traced(supervisor), 60, "strace to attach")
            assert stage.call("release", run.id, "--cluster", stage.cluster).returncode == 0
            stage.wait_for_state(run, "finished", "failed", seconds=900)
            tracer.wait(60)  # the supervisor has ended
        finally:
            tracer.terminate()
    assert {stage.log(run, rank).split()[0] for rank in range(RANKS)} == {str(MODULES)}
    processes = opened(traces, shared)
    # A slow machine starts more writers than the one that each node keeps: they connect too late.
    writers = [process for process in processes if any("/node_writer." in path for path in process)]
    ranks = [path for process in processes if process not in writers for path in process]
    found = [*ranks, *(path for process in writers[:NODES] for path in process)]
    imports = [path for path in found if not path.startswith(str(run.attempts_folder))]  # the rest are logs and marks
    print(f"{len(imports)} opens on the shared disk for imports, {len(found) - len(imports)} in the run directory")
    assert RANKS < len(imports) <= MOST_OPENS, sorted(set(imports))
    assert not [path for path in imports if "/generated/" in path], "all modules come from the nodes' own disks"


def is_traced(process: int) -> bool:
    return "TracerPid:\t0\n" not in Path(f"/proc/{process}/status").read_text()


def supervisor_of(stage: Stage) -> int:
    """The process that will start the only job of the emulator."""
    home = f"XDG_STATE_HOME={stage.environment['XDG_STATE_HOME']}"
    for process in Path("/proc").glob("[0-9]*"):
        try:
            is_ours = home.encode() in (process / "environ").read_bytes().split(b"\0")
            if is_ours and b"supervisor" in (process / "cmdline").read_bytes():
                return int(process.name)
        except OSError:
            continue  # it has just ended
    raise AssertionError("no supervisor")
