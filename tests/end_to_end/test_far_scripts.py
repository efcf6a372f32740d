"""Batch scripts that are typed on this machine, for a cluster whose login node is another one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.far import FarStage
from support.scenario import FAR, Stage

from clusterctl.shared.record.layout import RunDir

pytestmark = pytest.mark.parametrize("back_end", [FAR], indirect=True)
ASKED = """echo "in $PWD and $SLURM_SUBMIT_DIR: $(cat data.txt)"
echo "laptop: ${OF_LAPTOP:-unset}, given: $GIVEN, arguments: $*"
srun bash -c 'echo "rank $SLURM_PROCID"'
"""


def logs(stage: Stage, run: RunDir) -> str:
    return stage.call("logs", run.id, "--cluster", stage.cluster).stdout


def test_a_script_starts_in_a_copy_of_the_folder_with_the_environment_there(stage: FarStage, tmp_path: Path) -> None:
    stage.keep_runs_in(tmp_path / "runs")
    stage.environment["OF_LAPTOP"] = "leaked"
    (stage.folder / "data.txt").write_text("the data")
    (stage.folder / "train.sbatch").write_text(f"#!/bin/bash\n#SBATCH --output=out/%j.txt\n{ASKED}")
    run = stage.submit("./train.sbatch", "--set", "env.GIVEN=5", "--wait", "--", "a b")
    text = logs(stage, run)
    assert f"in {run.work} and {run.work}: the data" in text
    assert "laptop: unset, given: 5, arguments: a b" in text
    assert "rank 0" in text
    again = stage.call("rerun", run.id, "--cluster", stage.cluster, "--set", "env.GIVEN=6")
    assert again.returncode == 0, again.stderr
    repeated = RunDir(stage.runs / again.stdout.strip())
    stage.wait_for_state(repeated, "finished")
    assert "given: 6" in logs(stage, repeated)


def test_a_script_starts_in_a_folder_of_that_machine(stage: FarStage, tmp_path: Path) -> None:
    stage.keep_runs_in(tmp_path / "runs")
    there = tmp_path / "there"
    there.mkdir()
    (there / "data.txt").write_text("data there")
    (stage.folder / "train.sbatch").write_text(f"#!/bin/bash\n{ASKED}")
    run = stage.submit("./train.sbatch", "--chdir", str(there), "--wait")
    assert f"in {there} and {there}: data there" in logs(stage, run)
    assert not os.path.lexists(run.work)
    (stage.folder / "other.sbatch").write_text("#!/bin/bash\npython3.99 train.py\n")
    done = stage.call("submit", "./other.sbatch", "--cluster", stage.cluster, "--chdir", str(there))
    assert "other.sbatch:2: a login shell on " in done.stderr
    assert "has no python3.99 on its PATH" in done.stderr
    for folder, words in (("relative", "leave it out"), ("/no/such/folder", "no such folder")):
        done = stage.call("submit", "./train.sbatch", "--cluster", stage.cluster, "--chdir", folder)
        assert done.returncode in (2, 3)
        assert words in done.stderr
