"""A program without a job file: submitted, rerun with a change, compared."""

from __future__ import annotations

import json
import os

import pytest
from support.scenario import Stage

from clusterctl.shared.record.layout import RunDir

THROUGH_A_HOST = True

PROGRAM = """
import json, os, sys
print(json.dumps([os.fsencode(word).hex() for word in sys.argv[1:]]), os.environ["WORLD_SIZE"])
"""
WORDS = ["a b", "", "$HOME", "*", "'\"`", "back\\slash", "two\nlines", "ümlaut", "\udcff", "--set", "--", "-c", "x;y"]


def test_a_program_runs_without_a_job_file_and_gets_its_arguments_unchanged(stage: Stage) -> None:
    (stage.folder / "train.py").write_text(PROGRAM)
    typed = ("submit", "--cluster", stage.cluster, "--nodes", "2", "--wait", "--", "python", "train.py", *WORDS)
    done = stage.call(*typed)
    assert done.returncode == 0, done.stderr
    first = RunDir(stage.runs / done.stdout.strip())
    assert first.id.startswith("train-")
    expected = json.dumps([os.fsencode(word).hex() for word in WORDS])
    assert [stage.log(first, rank) for rank in (0, 1)] == 2 * [f"{expected} 2\n"]
    (stage.folder / "train.py").unlink()
    done = stage.call("rerun", first.id, "--cluster", stage.cluster, "--nodes", "1", "--wait")
    assert done.returncode == 0, done.stderr
    second = RunDir(stage.runs / done.stdout.strip())
    assert stage.log(second, 0) == f"{expected} 1\n"
    differing = stage.call("diff", first.id, second.id, "--cluster", stage.cluster, "-o", "json")
    assert [change["key"] for change in json.loads(differing.stdout)["configuration"]] == ["resources.nodes"]


@pytest.mark.long
def test_a_run_without_a_job_file_is_resumed(stage: Stage) -> None:
    program = "import os, pathlib; pathlib.Path('went-on').mkdir(exist_ok='RESUMED' in os.environ); raise SystemExit(1)"
    done = stage.call("submit", "--cluster", stage.cluster, "--wait", "--", "python", "-c", program)
    assert done.returncode == 1, done.stderr
    resumed = stage.call("resume", "python", "--cluster", stage.cluster, "--set", "env.RESUMED=1", "--wait")
    assert resumed.returncode == 1, resumed.stderr
    (run,) = (RunDir(path) for path in stage.runs.glob("python-*"))
    assert "FileExistsError" not in stage.log(run, 0, "err", attempt=1)
    again = json.loads(stage.call("why", "python", "--cluster", stage.cluster, "-o", "json").stdout)["commands"][-1]
    assert again.startswith(f"clusterctl submit --cluster {stage.cluster} -- python -c ")


@pytest.mark.long
@pytest.mark.here
def test_init_writes_a_cluster_and_a_job_that_run(stage: Stage) -> None:
    """On the emulator, its stand-ins are on PATH: they answer some queries, and init reports the others."""
    if stage.cluster == "local":
        assert stage.call("nodes", "--cluster", "local").returncode == 0
        (stand_ins,) = stage.folder.parent.glob("state/clusterctl/emulator/bin-*")
        stage.environment["PATH"] = f"{stand_ins}:{stage.environment['PATH']}"
    del stage.environment["CLUSTERCTL_RUNS"]
    stage.environment["SCRATCH"] = str(stage.folder)
    written = stage.call("init", "site", "--yes")
    assert (written.returncode, written.stdout) == (0, "cluster/site.toml\njobs/first.toml\n"), written.stderr
    stage.environment["CLUSTERCTL_RUNS"] = str(stage.folder / "clusterctl" / "runs")  # where the test looks
    if stage.cluster == "local":
        assert "could not find out your accounts and QOS: " in written.stderr
    else:
        examined = stage.call("doctor", "--cluster", "site")
        assert "FAIL" not in examined.stdout, examined.stdout
        assert examined.returncode == 0, examined.stderr
    done = stage.call("submit", "first", "--cluster", "site", "--wait")
    assert done.returncode == 0, done.stderr
    run = RunDir(stage.runs / done.stdout.strip())
    assert stage.log(run, 1).startswith("rank 1 of ")


SCRIPT = """#!/bin/bash
#SBATCH --job-name=mine
#SBATCH --nodes=2 --ntasks=2
#SBATCH --time=5
export FIRST=one
SECOND=$(echo two)
srun python -c 'import os; print("got", os.environ["FIRST"], os.environ["SECOND"], os.environ["WORLD_SIZE"])'
"""


def test_a_batch_script_runs_as_a_job(stage: Stage) -> None:
    (stage.folder / "train.sbatch").write_text(SCRIPT)
    written = stage.call("init", "site", "--from", "train.sbatch", "--yes")
    assert (written.returncode, written.stdout.splitlines()[-1]) == (0, "jobs/train.toml"), written.stderr
    done = stage.call("submit", "train", "--cluster", stage.cluster, "--wait")
    assert done.returncode == 0, done.stderr
    run = RunDir(stage.runs / done.stdout.strip())
    assert run.id.startswith("mine-")
    assert [stage.log(run, rank) for rank in (0, 1)] == 2 * ["got one two 2\n"]
