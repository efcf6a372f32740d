"""The SLURM_* variables of a batch script and its tasks, compared with the documentation of Slurm 22.05."""

from __future__ import annotations

BATCH = {
    "SLURM_CPUS_ON_NODE": "2",
    "SLURM_CPUS_PER_TASK": "1",
    "SLURM_JOBID": "1",
    "SLURM_JOB_CPUS_PER_NODE": "2(x2)",
    "SLURM_JOB_ID": "1",
    "SLURM_JOB_NAME": "co ra",
    "SLURM_JOB_NODELIST": "node[1-2]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_JOB_PARTITION": "main",
    "SLURM_LOCALID": "0",
    "SLURM_NNODES": "2",
    "SLURM_NODEID": "0",
    "SLURM_NODELIST": "node[1-2]",
    "SLURM_NPROCS": "4",
    "SLURM_NTASKS": "4",
    "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_OPEN_MODE": "a",
    "SLURM_PROCID": "0",
    "SLURM_TASKS_PER_NODE": "2(x2)",
    "SLURMD_NODENAME": "node1",
    "USER_VALUE": "kept\nas it is",
}
TASK_3 = {
    **BATCH,
    "SLURM_GTIDS": "2,3",
    "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "3",
    "SLURM_STEPID": "1",
    "SLURM_STEP_ID": "1",
    "SLURM_STEP_NODELIST": "node[1-2]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURMD_NODENAME": "node2",
}
SHAPE = ["--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=1", "--job-name=co ra", "--open-mode=append"]


def read(path):
    return dict(line.split("=", 1) for line in path.read_bytes().decode().split("\0") if line)


def test_the_batch_script_and_its_tasks_get_slurms_variables(cluster):
    text = """srun true
env -0 >batch.env
srun --cpus-per-task=1 bash -c 'env -0 >task$SLURM_PROCID.env; echo $$ >task$SLURM_PROCID.pid'"""
    state, log = cluster.finish(text, *SHAPE, USER_VALUE="kept\nas it is", SLURM_NTASKS="99", SLURM_STEP_ID="7")
    assert (state, log) == ("COMPLETED", "")
    batch, task = read(cluster.work / "batch.env"), read(cluster.work / "task3.env")
    assert {name: batch.get(name) for name in BATCH} == BATCH
    assert {name: task.get(name) for name in TASK_3} == TASK_3
    assert batch["PATH"].split(":")[0] == str(cluster.bin)
    assert batch["SLURM_SUBMIT_DIR"] == str(cluster.work)
    assert task["SLURM_TASK_PID"] == (cluster.work / "task3.pid").read_text().strip()
    assert not {"SLURM_RESTART_COUNT", "CUDA_VISIBLE_DEVICES", "SLURM_GPUS_ON_NODE"} & set(batch)


def test_nodes_and_jobs_do_not_share_gpus(make_cluster):
    cluster = make_cluster(nodes=2, cpus=4, gpus=4)
    text = """echo batch $CUDA_VISIBLE_DEVICES >gpus
srun bash -c 'echo $SLURM_PROCID $CUDA_VISIBLE_DEVICES' | sort >>gpus
touch ready; until [ -e leave ]; do sleep 0.02; done"""
    first = cluster.submit(text, "--nodes=2", "--ntasks-per-node=2", "--gpus-per-node=2")
    cluster.wait_for_ready()
    assert (cluster.work / "gpus").read_text() == "batch 0,1\n0 0,1\n1 0,1\n2 4,5\n3 4,5\n"
    state, log = cluster.finish("echo $CUDA_VISIBLE_DEVICES $SLURM_JOB_GPUS", "--gres=gpu:2")
    assert (state, log) == ("COMPLETED", "2,3 2,3\n")
    (cluster.work / "leave").touch()
    assert cluster.wait(first) == "COMPLETED"
