"""Features split over the nodes of a real Slurm: losses do not depend on the number of ranks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.ranks import CORA
from support.scenario import Stage, wait_until

from clusterctl.shared.record.files import read_lines
from clusterctl.shared.record.layout import RunDir

pytestmark = pytest.mark.long

TRAIN = '[train]\nepochs = {}\nglobal_batch_size = 256\nfan_out = [5, 3]\nprecision = "float64"\nsampling = "{}"\n'
DATA = f"[data]\nroot = {json.dumps(str(CORA))}\n"
SPLIT = f'{DATA}placement = "split"\n'
CACHED = f'{SPLIT}cache = "1M"\n'  # a tenth of the features
EPOCHS = 3


@pytest.fixture
def back_end() -> str:
    return "sandbox"


def job(nodes: int, tasks_per_node: int, data: str, sampling: str = "uniform", epochs: int = EPOCHS) -> str:
    shape = f"[resources]\nnodes = {nodes}\ntasks_per_node = {tasks_per_node}\n"
    return f'workload = "reddit"\n{shape}{TRAIN.format(epochs, sampling)}{data}[checkpoint]\nevery = "1s"\n'


def steps_of(run: RunDir) -> list[dict[str, Any]]:
    """The lines of each step, by step; a later attempt replaces the steps after the last checkpoint."""
    lines = [line for attempt in run.attempts() for line in read_lines(attempt.metrics) if "loss" in line]
    return [line for _, line in sorted({line["step"]: line for line in lines}.items())]


def losses(steps: list[dict[str, Any]]) -> list[float]:
    return [line["loss"] for line in steps]


@pytest.mark.parametrize("sampling", ["uniform", pytest.param("labor", marks=pytest.mark.matrix)])
def test_two_four_and_eight_ranks_have_the_losses_of_one(stage: Stage, sampling: str) -> None:
    def trained(name: str, nodes: int, tasks_per_node: int, data: str) -> tuple[list[dict[str, Any]], float]:
        text = job(nodes, tasks_per_node, data, sampling)
        run = stage.submit(stage.write_job(name, text), "--wait")
        return steps_of(run), stage.status(run)["test_accuracy"]

    whole, accuracy = trained("whole", 1, 1, DATA)
    assert losses(whole)[-1] < losses(whole)[0]
    for nodes, tasks_per_node in ((2, 1), (4, 1), (4, 2)):
        name = f"on-{nodes * tasks_per_node}"
        split, split_accuracy = trained(name, nodes, tasks_per_node, SPLIT)
        cached, cached_accuracy = trained(f"{name}-cached", nodes, tasks_per_node, CACHED)
        assert losses(split) == pytest.approx(losses(whole), rel=0, abs=1e-9)
        assert losses(cached) == losses(split)
        assert split_accuracy == cached_accuracy == accuracy
        for all_bytes, fewer in zip(split, cached, strict=True):
            assert all_bytes["bytes_exchanged"] > fewer["bytes_exchanged"] > 0
            assert 0 < fewer["cache_hit_rate"] < 1


def test_a_run_on_four_nodes_resumes_on_two(stage: Stage) -> None:
    whole = stage.submit(stage.write_job("whole", job(1, 1, DATA, epochs=40)), "--wait")
    run = stage.submit(stage.write_job("moved", job(4, 1, CACHED, epochs=40)))
    wait_until(lambda: list(run.checkpoints.glob("0-*")), what="a checkpoint")
    assert stage.call("cancel", run.id, "--cluster", stage.cluster).returncode == 0
    stage.wait_for_state(run, "cancelled")
    done = stage.call("resume", run.id, "--cluster", stage.cluster, "--nodes", "2", "--wait")
    assert done.returncode == 0, done.stderr
    first, second = (list(read_lines(run.attempt(number).metrics)) for number in (0, 1))
    assert min(line["step"] for line in second if "loss" in line) > 1
    assert max(line["step"] for line in first if "loss" in line) < len(steps_of(whole))
    assert losses(steps_of(run)) == pytest.approx(losses(steps_of(whole)), rel=0, abs=1e-9)
    assert stage.status(run)["nodes"] == 2
    assert stage.status(run)["test_accuracy"] == stage.status(whole)["test_accuracy"]
