"""Jobs whose program is a launcher: one on each node, the CPUs of its workers, and what is said about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.launcher.config import resolve
from clusterctl.launcher.submission.plan import make_plan
from clusterctl.shared.node.launch_command import problems, shown
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.spec import Cluster, Job

CLUSTER = Cluster(name="c", gpus_per_node="a100:8")


def job_of(typed: list[str], *settings: str, folder: Path = Path("/project")) -> tuple[Job, dict[str, str]]:
    resolved = resolve(None, CLUSTER, settings, {}, folder, typed)
    return resolved.job, resolved.origins


@pytest.mark.parametrize(
    ("typed", "settings", "tasks", "cpus"),
    [
        ("torchrun train.py", [], 1, 8),
        ("uv run accelerate launch train.py", [], 1, 8),
        ("deepspeed train.py", ["resources.gpus_per_node=4"], 1, 4),
        ("torchrun train.py", ["resources.cpus_per_task=2"], 1, 2),
        ("torchrun train.py", ["resources.cpus_per_gpu=2"], 1, 1),
        ("torchrun train.py", ["resources.tasks_per_node=2"], 2, 1),
        ("torchrun train.py", ["resources.gpus_per_node=0"], 1, 1),
        ("python train.py", [], 8, 1),
        ("uv run python train.py", [], 8, 1),
        ("bash -c", [], 8, 1),
    ],
)
def test_a_launcher_gets_one_task_a_node_with_the_cpus_of_its_workers(
    typed: str, settings: list[str], tasks: int, cpus: int
) -> None:
    resources = job_of(typed.split(), *settings)[0].resources
    assert (resources.tasks_per_node, resources.cpus_per_task) == (tasks, cpus)


def test_the_defaults_of_a_launcher_have_their_origin() -> None:
    _, origins = job_of(["torchrun", "train.py"])
    assert origins["resources.tasks_per_node"] == "default: torchrun starts the workers of a node"
    assert origins["resources.cpus_per_task"] == "default: one a GPU"


@pytest.mark.parametrize(
    ("typed", "settings", "threads"),
    [
        ("torchrun train.py", [], "1"),
        ("torchrun train.py", ["resources.cpus_per_task=64"], "8"),
        ("torchrun --nproc-per-node 2 train.py", ["resources.cpus_per_task=64"], "32"),
        ("torchrun train.py", ["resources.cpus_per_task=4"], "1"),
        ("torchrun train.py", ["resources.cpus_per_task=4", "resources.tasks_per_node=2"], "4"),
        ("python train.py", ["resources.cpus_per_task=4"], "4"),
    ],
)
def test_the_workers_share_the_threads(tmp_path: Path, typed: str, settings: list[str], threads: str) -> None:
    resolved = resolve(None, CLUSTER, settings, {}, tmp_path, typed.split())
    plan = make_plan(resolved, RunDir(tmp_path / "run"), tmp_path / "code", "1")
    assert dict(plan.exports)["OMP_NUM_THREADS"] == threads


def test_what_is_filled_in_is_shown_before_the_run() -> None:
    job, _ = job_of(["env", "A=b c", "torchrun", "--nnodes", "2", "train.py"], "resources.nodes=2")
    assert shown(job).splitlines() == [
        (
            "torchrun starts the workers of its node: 1 task per node; filled in: --node-rank=$NODE_RANK "
            "--master-addr=$MASTER_ADDR --master-port=$MASTER_PORT --nproc-per-node=8"
        ),
        (
            'each task runs: env \'A=b c\' torchrun "--node-rank=$NODE_RANK" "--master-addr=$MASTER_ADDR" '
            '"--master-port=$MASTER_PORT" --nproc-per-node=8 --nnodes 2 train.py'
        ),
    ]
    job, _ = job_of(["torchrun", "train.py"], "resources.gpus_per_task=1", "env.PET_NNODES=1")
    assert "--nproc-per-node" not in shown(job)
    assert "--nnodes" not in shown(job)
    assert "not recognised" in shown(job_of(["bash", "-c", "torchrun train.py"])[0])
    assert shown(job_of(["python", "train.py"])[0]) == ""


@pytest.mark.parametrize(
    ("typed", "settings", "message"),
    [
        (
            ["torchrun", "t.py"],
            ["resources.tasks_per_node=8"],
            "each of the 8 tasks per node starts torchrun, and nothing",
        ),
        (["torchrun", "--standalone", "t.py"], ["resources.nodes=2"], "each of the 2 nodes trains by itself"),
        (["torchrun", "--nnodes=4", "t.py"], ["resources.nodes=2"], "torchrun expects 4 nodes, and the job has 2"),
        (["accelerate", "launch", "--num_machines", "1", "t.py"], ["resources.nodes=2"], "expects 1 node, and the job"),
        (["bash", "-c", "torchrun t.py"], [], "each of the 8 tasks per node starts torchrun: in the command line"),
        (["bash", "-c", "torchrun t.py"], ["resources.tasks_per_node=1"], ""),
        (["torchrun", "--nnodes=1:4", "t.py"], ["resources.nodes=2"], ""),
        (["torchrun", "t.py", "--standalone"], ["resources.nodes=2"], ""),
        (["python", "t.py"], [], ""),
        (["mpirun", "./solve"], ["resources.tasks_per_node=1"], ""),
    ],
)
def test_what_will_hardly_be_meant_is_a_warning(typed: list[str], settings: list[str], message: str) -> None:
    job, origins = job_of(typed, *settings)
    given = not origins["resources.tasks_per_node"].startswith("default")
    found = [text for text, _ in problems(job, tasks_are_given=given)]
    assert len(found) == bool(message)
    assert message in "".join(found)
