"""Runs that depend on other runs, from submission to the end, on every back end; and the guide to them."""

from __future__ import annotations

import json
import os
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from support.guide import follow
from support.scenario import ON_SLURM, Stage, wait_until

from clusterctl.shared.record.layout import RunDir

THROUGH_A_HOST = True

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "chains.md"
# Waits for a file next to its run directory and exits with the code in it, or with 0 where ENDS=well.
PROGRAM = """
import os, pathlib, sys, time
run = pathlib.Path(os.environ["CLUSTERCTL_RUN_DIR"])
gate = run.parent / ("." + run.name.partition("-")[0] + ".go")
while not gate.exists(): time.sleep(0.1)
sys.exit(int(gate.read_text() or 0) * (os.environ.get("ENDS") != "well"))
"""
JOB = f'workload = "command"\nargv = ["python", "-c", {json.dumps(PROGRAM)}]\n[resources]\nnodes = 1\n'


class Chain:
    """Named runs that keep running until the test calls `end`."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.job = stage.write_job("job", JOB)

    def submit(self, name: str, *words: str) -> RunDir:
        return self.stage.submit(self.job, "--name", name, *words)

    def end(self, name: str, code: str = "") -> None:
        self.stage.runs.mkdir(exist_ok=True)
        aside = self.stage.runs / f".{name}.new"
        aside.write_text(code)
        aside.rename(aside.with_suffix(".go"))

    def why(self, run: RunDir) -> str:
        done = self.stage.call("why", run.id, "--cluster", self.stage.cluster)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def wait(self, run: RunDir, stage: str) -> None:
        self.stage.wait_for_state(run, stage)


@pytest.fixture
def chain(stage: Stage) -> Chain:
    return Chain(stage)


@pytest.mark.long
@ON_SLURM
def test_a_broken_chain_is_explained_and_continues_once_its_runs_are_resumed(chain: Chain) -> None:
    fetch = chain.submit("fetch")
    train = chain.submit("train", "--after", "fetch")
    evaluate = chain.submit("evaluate", "--after", train.id, "--after-start", "fetch")
    tidy = chain.submit("tidy", "--after-any", "train")
    chain.wait(fetch, "training")
    wait_until(lambda: f"{fetch.id}: training" in chain.why(evaluate), 30, every=0.5)
    assert f"waiting for {train.id} to finish" in chain.why(evaluate)
    assert f"{train.id}: queued, waiting for {fetch.id} to finish" in chain.why(evaluate)
    chain.end("fetch", "3")
    for run in (train, evaluate):
        chain.wait(run, "cancelled")
    chain.end("tidy")
    chain.wait(tidy, "finished")
    shown = chain.why(evaluate)
    assert f"because {train.id}, on which it depends, was cancelled" in shown
    order = [f"clusterctl resume {run.id}" for run in (fetch, train, evaluate)]
    assert [line.removeprefix("next:").strip() for line in shown.splitlines()[-3:]] == order
    refused = chain.stage.call("resume", evaluate.id, "--cluster", chain.stage.cluster)
    assert refused.returncode == 2
    assert f"hint: first: clusterctl resume {train.id}" in refused.stderr
    for name in ("fetch", "train", "evaluate"):
        chain.end(name)
    for run in (fetch, train, evaluate):
        done = chain.stage.call("resume", run.id, "--cluster", chain.stage.cluster)
        assert done.returncode == 0, done.stderr
    for run in (fetch, train, evaluate):
        chain.wait(run, "finished")
    starts = [json.loads(run.attempts()[-1].host_json.read_text()) for run in (fetch, train, evaluate)]
    assert all(before["end"] <= after["start"] + 1 for before, after in pairwise(starts))


@pytest.mark.long
@ON_SLURM
def test_a_run_after_a_sweep_waits_for_all_its_runs(chain: Chain) -> None:
    sweep = chain.submit("sweep", "--sweep", "env.ENDS=well,badly").id
    best = chain.submit("best", "--after", "sweep")
    tidy = chain.submit("tidy", "--after-any", sweep)
    chain.end("best")
    chain.end("tidy")
    wait_until(lambda: f"{sweep}: 2 runs: 2 training" in chain.why(best), 60, every=0.5)
    assert f"waiting for all runs of {sweep} to finish" in chain.why(best)
    chain.end("sweep", "3")
    chain.wait(best, "cancelled")
    chain.wait(tidy, "finished")
    shown = chain.why(best)
    assert f"because 1 of the 2 runs of {sweep}, on which it depends, did not finish" in shown
    assert f"{sweep}: 2 runs: 1 finished, 1 failed" in shown
    (chain.stage.runs / ".sweep.go").unlink()
    for name in (sweep, best.id):  # as `why` suggests
        done = chain.stage.call("resume", name, "--cluster", chain.stage.cluster)
        assert done.returncode == 0, done.stderr
    wait_until(lambda: f"{sweep}: 2 runs: 1 training, 1 finished" in chain.why(best), 60, every=0.5)
    assert not best.attempts()
    chain.end("sweep")
    chain.wait(best, "finished")


@pytest.mark.long
@ON_SLURM
def test_a_dependent_run_waits_through_a_requeue(chain: Chain) -> None:
    train = chain.submit("train")
    evaluate = chain.submit("evaluate", "--after", "train")
    chain.end("evaluate")
    chain.wait(train, "training")
    chain.stage.slurm("scontrol", "requeue", chain.stage.job_id(train))
    wait_until(lambda: len(train.attempts()) == 2, 60)
    assert not evaluate.attempts()
    chain.end("train")
    chain.wait(evaluate, "finished")


@pytest.mark.long
def test_a_dependency_that_has_ended_is_judged_by_its_run_directory(chain: Chain) -> None:
    chain.end("good")
    chain.end("bad", "3")
    good, bad = chain.submit("good"), chain.submit("bad")
    chain.wait(good, "finished")
    chain.wait(bad, "failed")
    chain.end("next")
    chain.submit("next", "--after", "good", "--after-any", "bad", "--wait")
    refused = chain.stage.call("submit", chain.job, "--after", "bad", "--cluster", chain.stage.cluster)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"error: {bad.id} has not finished: failed" in refused.stderr


@pytest.mark.long
@pytest.mark.parametrize("back_end", ["emulator"], indirect=True)
def test_every_command_in_the_guide_works(stage: Stage, update_golden: bool) -> None:
    (stage.folder / "jobs").mkdir()
    clusters = Path(stage.environment["XDG_CONFIG_HOME"]) / "clusterctl" / "cluster"
    clusters.mkdir(parents=True)
    # The guide's runs take less than the second for which squeue's answer is reused; a reader types more slowly.
    (clusters / "local.toml").write_text('kind = "emulator"\npolling_floor = 0\n')
    environment = stage.environment | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "CLUSTERCTL_CLUSTER": stage.cluster,
        "COLUMNS": "120",
    }
    assert follow(GUIDE, stage.folder, environment, update=update_golden, home=stage.folder.parent) >= 8
