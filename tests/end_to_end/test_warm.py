"""Warm allocations: hold nodes, start runs on them in seconds, attach, give them back."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from support.scenario import ON_SLURM, Stage, wait_until

THROUGH_A_HOST = True

PROGRAM = """
import os, time
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "on", os.environ["SLURMD_NODENAME"], flush=True)
time.sleep(float(os.environ.get("NAP", "0")))
"""
SHAPE = "[resources]\nnodes = 2\ntasks_per_node = 2\n"
JOB = f'workload = "command"\nargv = ["python", "-c", {json.dumps(PROGRAM)}]\n{SHAPE}'


@pytest.fixture
def held(stage: Stage) -> Iterator[str]:
    """Two nodes, held for the test."""
    stage.write_job("held", JOB)
    done = stage.call("alloc", "./held.toml", "--cluster", stage.cluster)
    assert done.returncode == 0, done.stderr
    assert "2 nodes held: node[" in done.stderr
    number = done.stdout.strip()
    yield number
    given_back = stage.call("alloc", "--cluster", stage.cluster, "--end", number)
    assert given_back.returncode in (0, 5), given_back.stderr  # 5: the test already has
    marks = stage.runs / ".warm"
    wait_until(lambda: not list(marks.iterdir()), 20, "the holder to clean up")


@pytest.mark.long
@ON_SLURM
def test_several_runs_use_the_held_nodes(stage: Stage, held: str) -> None:
    job = stage.write_job("warm", JOB)
    first = stage.submit(job, "--in-allocation", held, "--wait")
    nodes = [line.split()[-1] for rank in range(4) for line in stage.log(first, rank).splitlines() if "rank" in line]
    assert (nodes[0], nodes[2], len(set(nodes))) == (nodes[1], nodes[3], 2)
    assert stage.status(first)["job_id"] == held

    second = stage.submit(job, "--in-allocation", held, "--set", 'env.NAP="600"')
    wait_until(lambda: all(second.attempt(0).log(rank).is_file() and stage.log(second, rank) for rank in range(4)))
    stage.wait_for_state(second, "training")
    attached = stage.call("attach", second.id, "--cluster", stage.cluster, "--rank", "3", "--", "printenv", "NAP")
    assert (attached.returncode, attached.stdout) == (0, "600\n"), attached.stderr
    assert stage.call("cancel", second.id, "--cluster", stage.cluster).returncode == 0
    stage.wait_for_state(second, "cancelled", seconds=30)

    third = stage.submit(job, "--in-allocation", held, "--wait", "--nodes", "1")  # the allocation is still there
    assert [stage.log(third, rank).split()[:4] for rank in range(2)] == [["rank", str(n), "of", "2"] for n in range(2)]
    assert json.loads(third.attempt(0).host_json.read_text())["nodes"].startswith("node[")


def test_a_run_uses_the_held_nodes_but_too_many_or_an_unknown_allocation_is_refused(stage: Stage, held: str) -> None:
    job = stage.write_job("large", JOB)
    run = stage.submit(job, "--in-allocation", held, "--wait")
    assert stage.job_id(run) == held
    assert stage.log(run, 3).split()[:4] == ["rank", "3", "of", "4"]
    before = set(stage.runs.glob("large-*"))
    large = stage.call("submit", job, "--cluster", stage.cluster, "--in-allocation", held, "--nodes", "3")
    assert (large.returncode, "--set resources.nodes=2" in large.stderr) == (2, True)
    gone = stage.call("submit", job, "--cluster", stage.cluster, "--in-allocation", "999")
    assert (gone.returncode, "error: you have no job with this ID: 999" in gone.stderr) == (5, True)
    assert set(stage.runs.glob("large-*")) == before


@pytest.mark.long
def test_a_run_ends_with_its_allocation(stage: Stage, held: str) -> None:
    run = stage.submit(stage.write_job("orphan", JOB), "--in-allocation", held, "--set", 'env.NAP="600"')
    wait_until(lambda: run.attempt(0).log(3).is_file() and stage.log(run, 3))
    assert stage.call("alloc", "--cluster", stage.cluster, "--end", held).returncode == 0
    stage.wait_for_state(run, "cancelled", seconds=45)
