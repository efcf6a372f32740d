"""Which launchers are recognised in a command, and which of their options are filled in."""

from __future__ import annotations

import shlex

import pytest

from clusterctl.shared.node.launch_command import LaunchedJob, expanded, find_launch, hostfile, shell_mentions

JOB = LaunchedJob(nodes=2, gpus=8, node_rank="1", address="10.0.0.1", port="29400", hostfile="/run/hostfile")
WHERE = "--node-rank=1 --master-addr=10.0.0.1 --master-port=29400"
MACHINES = "--num_machines=2 --machine_rank=1 --main_process_ip=10.0.0.1 --main_process_port=29400"
NO_SSH = "--no_ssh --node_rank=1 --master_addr=10.0.0.1 --master_port=29400"


@pytest.mark.parametrize(
    ("typed", "runs"),
    [
        ("torchrun t.py", f"torchrun --nnodes=2 {WHERE} --nproc-per-node=8 t.py"),
        ("/env/bin/torchrun t.py", f"/env/bin/torchrun --nnodes=2 {WHERE} --nproc-per-node=8 t.py"),
        ("torchrun --nproc_per_node 4 t.py", f"torchrun --nnodes=2 {WHERE} --nproc_per_node 4 t.py"),
        ("torchrun --nproc=4 t.py", f"torchrun --nnodes=2 {WHERE} --nproc=4 t.py"),
        ("torchrun -m pkg.t --nnodes 9", f"torchrun --nnodes=2 {WHERE} --nproc-per-node=8 -m pkg.t --nnodes 9"),
        ("torchrun -r3 t.py --nnodes=9", f"torchrun --nnodes=2 {WHERE} --nproc-per-node=8 -r3 t.py --nnodes=9"),
        ("torchrun --standalone t.py", "torchrun --nproc-per-node=8 --standalone t.py"),
        ("torchrun --nnodes 1:2 t.py", f"torchrun {WHERE} --nproc-per-node=8 --nnodes 1:2 t.py"),
        (
            "torchrun --rdzv-backend c10d t.py",
            "torchrun --nnodes=2 --rdzv-endpoint=10.0.0.1:29400 --nproc-per-node=8 --rdzv-backend c10d t.py",
        ),
        (
            "torchrun --rdzv_backend=c10d --rdzv_endpoint=$H t.py",
            "torchrun --nnodes=2 --nproc-per-node=8 --rdzv_backend=c10d '--rdzv_endpoint=$H' t.py",
        ),
        (
            "torchrun --master-addr h --master_port 1 --node_rank 0 t.py",
            "torchrun --nnodes=2 --nproc-per-node=8 --master-addr h --master_port 1 --node_rank 0 t.py",
        ),
        (
            "torchrun --rdzv-endpoint h:1 t.py",
            "torchrun --nnodes=2 --node-rank=1 --nproc-per-node=8 --rdzv-endpoint h:1 t.py",
        ),
        (
            "python -u -m torch.distributed.run t.py",
            (f"python -u -m torch.distributed.run --nnodes=2 {WHERE} --nproc-per-node=8 t.py"),
        ),
        (
            "python3.11 -mtorch.distributed.launch t.py",
            (f"python3.11 -mtorch.distributed.launch --nnodes=2 {WHERE} --nproc-per-node=8 t.py"),
        ),
        ("python /env/bin/torchrun t.py", f"python /env/bin/torchrun --nnodes=2 {WHERE} --nproc-per-node=8 t.py"),
        ("uv run torchrun t.py", f"uv run torchrun --nnodes=2 {WHERE} --nproc-per-node=8 t.py"),
        (
            "uv -q run --with torch --no-sync torchrun t.py",
            (f"uv -q run --with torch --no-sync torchrun --nnodes=2 {WHERE} --nproc-per-node=8 t.py"),
        ),
        (
            "uv run -m torch.distributed.run t.py",
            (f"uv run -m torch.distributed.run --nnodes=2 {WHERE} --nproc-per-node=8 t.py"),
        ),
        ("poetry run torchrun t.py", f"poetry run torchrun --nnodes=2 {WHERE} --nproc-per-node=8 t.py"),
        (
            "conda run -n e --no-capture-output torchrun t.py",
            (f"conda run -n e --no-capture-output torchrun --nnodes=2 {WHERE} --nproc-per-node=8 t.py"),
        ),
        (
            "env -u X A=B nice -n 5 numactl -N 0 torchrun t.py",
            (f"env -u X A=B nice -n 5 numactl -N 0 torchrun --nnodes=2 {WHERE} --nproc-per-node=8 t.py"),
        ),
        ("timeout -k 5 1h torchrun t.py", f"timeout -k 5 1h torchrun --nnodes=2 {WHERE} --nproc-per-node=8 t.py"),
        ("accelerate launch t.py", f"accelerate launch {MACHINES} --num_processes=16 --multi_gpu t.py"),
        ("accelerate launch --cpu t.py", f"accelerate launch {MACHINES} --num_processes=16 --cpu t.py"),
        (
            "accelerate launch --num-processes 4 t.py --multi_gpu",
            (f"accelerate launch {MACHINES} --multi_gpu --num-processes 4 t.py --multi_gpu"),
        ),
        ("accelerate launch --config_file c.yaml t.py", f"accelerate launch {MACHINES} --config_file c.yaml t.py"),
        (
            "accelerate launch --use_deepspeed t.py",
            (
                "accelerate launch --num_machines=2 --machine_rank=1 "
                "--main_process_ip=10.0.0.1 --deepspeed_multinode_launcher=standard --main_process_port=29400 "
                "--num_processes=16 --use_deepspeed t.py"
            ),
        ),
        ("accelerate-launch -m t", f"accelerate-launch {MACHINES} --num_processes=16 --multi_gpu -m t"),
        (
            "python -m accelerate.commands.launch t.py",
            (f"python -m accelerate.commands.launch {MACHINES} --num_processes=16 --multi_gpu t.py"),
        ),
        ("deepspeed t.py --deepspeed c.json", f"deepspeed --hostfile=/run/hostfile {NO_SSH} t.py --deepspeed c.json"),
        ("deepspeed -H mine --num_gpus 2 t.py", f"deepspeed {NO_SSH} -H mine --num_gpus 2 t.py"),
        (
            "deepspeed --master_port 1 t.py",
            ("deepspeed --hostfile=/run/hostfile --no_ssh --node_rank=1 --master_addr=10.0.0.1 --master_port 1 t.py"),
        ),
        ("mpirun -n 4 ./solve", "mpirun -n 4 ./solve"),
    ],
)
def test_what_the_user_left_out_is_filled_in(typed: str, runs: str) -> None:
    launch = find_launch(shlex.split(typed))
    assert launch is not None
    assert shlex.join(launch.completed(launch.filled_in(JOB, {}))) == runs


@pytest.mark.parametrize(
    "typed",
    [
        "python train.py",
        "python torchrun",
        "python torchrun.py",
        "./torchrun.py",
        "python -c 'import torch.distributed.run'",
        "python -m torch.distributed.runner t.py",
        "python -m pytest torchrun",
        "python train.py torchrun t.py",
        "bash -c 'torchrun t.py'",
        "accelerate config",
        "accelerate",
        "uv pip install torchrun",
        "uv run python train.py",
        "uv run -m pkg.train torchrun",
        "conda run -n torchrun python t.py",
        "conda install torchrun",
        "env A=B",
        "env -S 'torchrun t.py'",
        "nice -n 5",
        "srun torchrun t.py",
        "./run-torchrun",
        "deepspeed.py",
        "",
    ],
)
def test_what_only_looks_like_a_launcher_is_not(typed: str) -> None:
    assert find_launch(shlex.split(typed)) is None


def filled_in(typed: str, job: LaunchedJob, **environment: str) -> tuple[str, ...]:
    launch = find_launch(shlex.split(typed))
    assert launch is not None
    return launch.filled_in(job, environment)


def test_the_variables_of_torchrun_count_as_given() -> None:
    given = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "4", "NNODES": "3"}
    assert filled_in("torchrun t.py", JOB, **given) == ("--master-addr=10.0.0.1", "--master-port=29400")
    endpoint = "--rdzv-endpoint=10.0.0.1:29400"
    assert endpoint in filled_in("torchrun t.py", JOB, PET_RDZV_BACKEND="c10d")
    assert endpoint not in filled_in("accelerate launch t.py", JOB, PET_RDZV_BACKEND="c10d")


def test_on_one_node_without_gpus_only_the_port_is_chosen() -> None:
    job = JOB._replace(nodes=1, gpus=0, node_rank="0")
    assert filled_in("torchrun t.py", job) == (
        "--nnodes=1", "--node-rank=0", "--master-addr=10.0.0.1", "--master-port=29400"
    )  # fmt: skip
    assert filled_in("accelerate launch t.py", job) == ("--main_process_port=29400",)
    assert filled_in("deepspeed t.py", job) == ("--master_port=29400",)


@pytest.mark.parametrize(
    ("typed", "workers"),
    [
        ("torchrun t.py", 8),
        ("torchrun --nproc-per-node 4 t.py", 4),
        ("torchrun --nproc-per-node gpu t.py", 8),
        ("torchrun t.py --nproc-per-node 4", 8),
        ("accelerate launch --num_processes 4 t.py", 2),
        ("deepspeed --num_accelerators 3 t.py", 3),
    ],
)
def test_the_number_of_workers_of_a_node(typed: str, workers: int) -> None:
    launch = find_launch(shlex.split(typed))
    assert launch is not None
    assert launch.workers(JOB) == workers


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("bash -c 'exec torchrun t.py'", "torchrun"),
        ("/bin/sh -ec 'cd x && /env/bin/accelerate launch t.py'", "accelerate launch"),
        ("bash -c 'python -m torch.distributed.run t.py'", "torch.distributed.run"),
        ("bash -c 'python torchrun.py'", ""),
        ("bash train.sh torchrun", ""),
        ("bash -c", ""),
        ("torchrun t.py", ""),
    ],
)
def test_a_launcher_in_the_command_line_of_a_shell_is_noticed(typed: str, name: str) -> None:
    assert shell_mentions(shlex.split(typed)) == name


def test_a_hostfile_has_the_nodes_in_order() -> None:
    names = expanded("node1,node[03-04,7],gpu[9-10]-ib")
    assert names == ["node1", "node03", "node04", "node7", "gpu9-ib", "gpu10-ib"]
    assert expanded("") == []
    assert hostfile(names[:2], 4) == "node1 slots=4\nnode03 slots=4\n"
