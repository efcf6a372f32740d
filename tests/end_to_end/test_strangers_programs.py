"""Programs that know nothing of clusterctl, and form their groups in the ways that their libraries teach."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.scenario import ON_BOTH, Stage, wait_until

from clusterctl.shared.record.layout import RunDir

pytestmark = [pytest.mark.long, ON_BOTH]
RECIPES = Path(__file__).resolve().parents[2] / ".venv-recipes" / "bin" / "python"
TWO_NODES = ("--nodes", "2", "--tasks-per-node", "1")

SPAWN = """
import os, sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

def main(local):
    rank = 2 * int(os.environ["SLURM_NODEID"]) + local
    address = f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=4)
    total = torch.ones(1)
    dist.all_reduce(total)
    if rank == 3 and len(sys.argv) > 1:
        raise KeyError("no such graph")
    print(f"rank {rank} sees {int(total)}", flush=True)
    dist.barrier()

if __name__ == "__main__":
    mp.spawn(main, nprocs=2)
"""
BY_SLURM = """
import os, subprocess
import torch
import torch.distributed as dist

rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
nodes = subprocess.check_output(["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]], text=True)
os.environ["MASTER_ADDR"] = nodes.split()[0]
os.environ["MASTER_PORT"] = str(20000 + int(os.environ["SLURM_JOB_ID"]) % 10000)
dist.init_process_group("gloo", rank=rank, world_size=world)
total = torch.tensor(rank)
dist.all_reduce(total)
print(f"rank {rank} sees {int(total)}", flush=True)
dist.barrier()
"""
IGNITE = """
import ignite.distributed as idist

def main(local):
    total = idist.all_reduce(idist.get_rank())
    print(f"rank {idist.get_rank()} sees {total} of {idist.get_world_size()}", flush=True)
    idist.barrier()

with idist.Parallel(backend="gloo") as parallel:
    parallel.run(main)
"""
REQUEUES = """
import os, subprocess, sys, time
from pathlib import Path

saved = Path("step.txt")
step = int(saved.read_text()) if saved.is_file() else 0
if os.environ["SLURM_PROCID"] == "0" and step == 0:
    saved.write_text("1")
    subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=True)
if step == 0:
    time.sleep(600)
print("went on from step", step, flush=True)
"""
UNEVEN = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
for batch in range(40 + 20 * dist.get_rank()):  # the usual mistake: a split that the ranks do not share evenly
    net(torch.ones(8, 4)).sum().backward()
print("trained", dist.get_rank(), flush=True)
"""
LOCALHOST = """
import os
import torch.distributed as dist

rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29507", rank=rank, world_size=world)
"""


def submit(
    stage: Stage, text: str, *words: str, options: tuple[str, ...] = TWO_NODES, python: str = "python"
) -> RunDir:
    (stage.folder / "program.py").write_text(text)
    done = stage.call("submit", "--cluster", stage.cluster, *options, "--", python, "program.py", *words)
    assert done.returncode == 0, done.stderr
    return RunDir(stage.runs / done.stdout.strip())


def why(stage: Stage, run: RunDir) -> dict[str, Any]:
    done = stage.call("why", run.id, "--cluster", stage.cluster, "-o", "json")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def printed(stage: Stage, run: RunDir, attempt: int = 0) -> list[str]:
    paths = sorted(run.attempt(attempt).path.glob("logs/rank_*.out"))
    return sorted(line.split("Z ", 1)[-1] for path in paths for line in path.read_text().splitlines())


def test_processes_that_a_task_spawns_form_one_group_over_the_nodes(stage: Stage) -> None:
    run = submit(stage, SPAWN)
    stage.wait_for_state(run, "finished")
    assert [line for line in printed(stage, run) if "sees" in line] == [f"rank {rank} sees 4" for rank in range(4)]


def test_the_exception_of_a_spawned_process_is_the_cause(stage: Stage) -> None:
    run = submit(stage, SPAWN, "fails")
    stage.wait_for_state(run, "failed")
    found = why(stage, run)
    assert (found["class"], found["rank"]) == ("user-error", 1)
    assert found["cause"].endswith("KeyError: 'no such graph'")


def test_ranks_that_read_slurms_variables_meet(stage: Stage) -> None:
    run = submit(stage, BY_SLURM, options=("--nodes", "2", "--tasks-per-node", "2"))
    stage.wait_for_state(run, "finished")
    assert [line for line in printed(stage, run) if "sees" in line] == [f"rank {rank} sees 6" for rank in range(4)]


def test_ignite_finds_its_ranks(stage: Stage) -> None:
    run = submit(stage, IGNITE, options=("--nodes", "2", "--tasks-per-node", "2"), python=str(RECIPES))
    stage.wait_for_state(run, "finished")
    assert [line for line in printed(stage, run) if "sees" in line] == [f"rank {rank} sees 6 of 4" for rank in range(4)]


def test_a_program_that_requeues_its_own_job_goes_on(stage: Stage) -> None:
    run = submit(stage, REQUEUES)
    assert stage.wait_for_state(run, "finished")["attempts"] == 2
    assert "went on from step 1" in printed(stage, run, attempt=1)


def test_a_rank_with_fewer_batches_than_the_others_is_named(stage: Stage) -> None:
    run = submit(stage, UNEVEN, options=(*TWO_NODES, "--set", "env.COLOUR=red"))
    stage.wait_for_state(run, "failed")
    found = why(stage, run)
    assert (found["class"], found["rank"]) == ("user-error", 0)
    assert found["cause"] == "exited with 0 while the others continued"
    assert [consequence["rank"] for consequence in found["secondary"]] == [1]
    assert found["commands"][-1] == f"clusterctl rerun {run.id}"  # a variable's value is not recorded


def test_ranks_that_wait_for_each_other_on_their_own_nodes_are_named_while_they_wait(stage: Stage) -> None:
    if stage.cluster == "local":
        pytest.skip("the emulator's nodes are one machine, where this works")
    run = submit(stage, LOCALHOST)
    found = wait_until(
        lambda: (it := why(stage, run))["class"] not in ("pending", "starting", "healthy") and it, 80, "a cause", 2
    )
    assert found["class"] == "hang"
    assert "no rank printed anything" in found["cause"]
