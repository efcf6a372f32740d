"""Every recipe runs as written, on both back ends, with the third-party libraries it uses."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.guide import follow, steps
from support.scenario import Stage, alive, wait_until

from clusterctl.shared.record.files import read_lines
from clusterctl.shared.record.layout import RunDir

pytestmark = pytest.mark.long
ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "guides" / "recipes.md"
RECIPES = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL))
ON_SLURM = "MPI (mpi4py)"
ON_NODES = "Ray, beside a training"
PYTHON = ROOT / ".venv-recipes" / "bin" / "python"


@pytest.fixture
def user(stage: Stage) -> Stage:
    """A user whose environment has the libraries and clusterctl."""
    stage.environment |= {
        "CLUSTERCTL_CLUSTER": stage.cluster,
        "PATH": f"{PYTHON.parent}:{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}",
        "COLUMNS": "120",
    }
    return stage


@pytest.mark.parametrize("title", sorted(RECIPES.keys() - {ON_SLURM, ON_NODES}))
def test_a_recipe_works(user: Stage, update_golden: bool, title: str) -> None:
    if "ddp.py" in RECIPES[title]:  # from another recipe
        write_files(user, "DistributedDataParallel")
    assert follow(RECIPES[title], user.folder, user.environment, update=update_golden, page=PAGE) >= 2


def test_a_lightning_training_resumes_after_a_warning(user: Stage) -> None:
    write_files(user, "Lightning, through a requeue")
    words = [PYTHON, "-m", "clusterctl", "submit", "./lightning.toml", "--set", "env.EPOCHS=200"]
    submitted = subprocess.check_output(words, cwd=user.folder, env=user.environment, text=True)
    run = RunDir(user.runs / submitted.strip())
    wait_until(lambda: len(list(read_lines(run.attempt(0).metrics))) >= 20, 120, "some steps")
    user.slurm("scancel", "--signal=USR2", user.job_id(run))
    assert user.wait_for_state(run, "finished", seconds=240)["attempts"] == 2
    began = re.search(r"began at step (\d+), ended at step 1600", user.log(run, 0, attempt=1))
    assert began
    assert int(began[1]) >= 20


def test_a_search_with_optuna_asks_and_tells(user: Stage) -> None:
    for example in (ROOT / "docs" / "examples" / "search").glob("*.py"):
        shutil.copy(example, user.folder)
    words = [PYTHON, "search.py", user.cluster]
    shown = subprocess.check_output(words, cwd=user.folder, env=user.environment, text=True, timeout=600)
    best = re.search(r"^best: (\S+) at a rate of (\S+)$", shown, re.MULTILINE)
    assert best
    assert float(best[1]) == pytest.approx((float(best[2]) - 0.03) ** 2, rel=0.1)
    assert len([*user.runs.glob("loss*/finished.json")]) == 8


@pytest.mark.parametrize("back_end", ["sandbox"], indirect=True)
def test_mpi_ranks_match_those_started_by_slurm(user: Stage, update_golden: bool) -> None:
    (user.folder / "cluster").mkdir()
    (user.folder / "cluster" / "mpi.toml").write_text('kind = "sandbox"\nmpi = "pmi2"\n')
    environment = user.environment | {"CLUSTERCTL_CLUSTER": "mpi"}
    assert follow(RECIPES[ON_SLURM], user.folder, environment, update=update_golden, page=PAGE) == 2


@pytest.mark.parametrize("back_end", ["sandbox"], indirect=True)
def test_ray_serves_a_training_and_leaves_nothing(user: Stage, update_golden: bool) -> None:
    assert follow(RECIPES[ON_NODES], user.folder, user.environment, update=update_golden, page=PAGE) == 2
    (path,) = user.runs.glob("rated-*")
    wait_until(lambda: not alive(RunDir(path)), 20, "the end of Ray's processes")


def write_files(user: Stage, title: str) -> None:
    """Write the files of a recipe without running its commands."""
    files = "".join(
        f"```{language}\n{block}```\n" for language, block in steps(RECIPES[title]) if language != "console"
    )
    assert follow(files, user.folder, user.environment) == 0
