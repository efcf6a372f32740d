"""The rendered script: golden files, quoting, and how bash reads it."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.launcher.config import Resolved
from clusterctl.launcher.submission.plan import Plan, make_plan
from clusterctl.launcher.submission.script import STAGED, part, render
from clusterctl.shared.errors import ConfigError
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.spec import Cluster, CommandTrain, Container, Data, Job, RedditTrain, Resources
from clusterctl.shared.spec.job import NodeCheck, Restart, Role
from clusterctl.shared.spec.values import GpuCount

GENERATED = Path(__file__).parent / "golden" / "generated"  # test_warm.py has a complete script

HOST_JOB = Job(
    name="cora",
    workload="reddit",
    resources=Resources(nodes=2, gpus_per_node=0, tasks_per_node=2, time=1200, warning=120),
    data=Data(root="/data/cora"),
    train=RedditTrain(),
)
CONTAINER_JOB = Job(
    name="big",
    workload="command",
    argv=("python", "train.py"),
    code="/home/me/project",
    resources=Resources(
        nodes=4,
        gpus_per_node=8,
        tasks_per_node=8,
        cpus_per_task=14,
        memory="512G",
        time=86400,
        warning=300,
        partition="gpu",
        account="it's mine",
        exclusive=True,
        requeue=False,
        mail_type="END,FAIL",
        sbatch={"core-spec": "2", "contiguous": ""},
    ),
    container=Container(image="nvcr.io#nvidia/pyg:24.07-py3", mounts=("/scratch:/scratch",)),
    env={"NCCL_DEBUG": "WARN", "TRICKY": 'a\'b "c" $HOME `id` \\ \n é'},
    train=CommandTrain(),
)
FILE_JOB = replace(HOST_JOB, container=Container(image="/images/it's.sqsh", mounts=("/data:/data:ro",), writable=True))
STAGED_JOB = replace(
    CONTAINER_JOB,
    resources=Resources(nodes=4, gpus_per_node=8, tasks_per_node=8, warning=300, local_code=True),
    container=Container(),
    setup=("source '/shared/my env/bin/activate'", 'source "/shared/conda/bin/activate" third', "module load cuda"),
)
SPARES_JOB = replace(
    HOST_JOB,
    resources=replace(HOST_JOB.resources, spare_nodes=1),
    restart=Restart(min_nodes=1),
    train=RedditTrain(global_batch_size=1024),
)
ROLES_JOB = replace(
    CONTAINER_JOB,
    role={
        "server": Role(program=("python", "serve.py", "{port}"), nodes=2, image="/images/it's.sqsh"),
        "trainer": Role(program=("python", "train.py"), nodes=2, gpus_per_node=8, tasks_per_node=8, needs=("server",)),
    },
    argv=(),
    container=Container(mounts=("/scratch:/scratch",)),
)
CHECKED_JOB = replace(HOST_JOB, node_check=NodeCheck(enabled=True))
CONTAINER_CLUSTER = Cluster(
    name="site",
    gpu_request="gres",
    setup=("module purge", "export NCCL_SOCKET_IFNAME=ib0"),
    srun_args=("--gpu-bind=none",),
    interface="ib0",
)


def plan(job: Job, cluster: Cluster, folder: str = "/runs") -> Plan:
    resolved = Resolved(job, cluster, {}, Path("/jobs/x.toml"))
    run = RunDir(Path(folder, f"{job.name}-20260102-030405-abcd"))
    return make_plan(resolved, run, Path(folder, ".code/0123"), "0.0.0", interpreter="/venv/bin/python")


@pytest.mark.parametrize(
    ("name", "job", "cluster"),
    [
        ("host", HOST_JOB, Cluster(name="local", kind="emulator")),
        ("container", CONTAINER_JOB, CONTAINER_CLUSTER),
        ("builtin", FILE_JOB, Cluster(name="local", kind="emulator", setup=("export COLOUR=red",))),
        ("builtin_on_slurm", FILE_JOB, replace(CONTAINER_CLUSTER, container_runtime="builtin")),
        ("apptainer", FILE_JOB, replace(CONTAINER_CLUSTER, container_runtime="apptainer")),
        (
            "checked",
            replace(HOST_JOB, node_check=NodeCheck(enabled=True)),
            Cluster(name="site", local_scratch="$TMPDIR"),
        ),
        ("spares", SPARES_JOB, Cluster(name="site")),
        ("staged", STAGED_JOB, replace(CONTAINER_CLUSTER, local_scratch="/local/scratch")),
        ("roles", ROLES_JOB, CONTAINER_CLUSTER),
        ("image_code", replace(FILE_JOB, container=replace(FILE_JOB.container, code="image")), CONTAINER_CLUSTER),
    ],
)
def test_the_generated_part_matches_the_golden_file(name: str, job: Job, cluster: Cluster, update_golden: bool) -> None:
    text = render(plan(job, cluster))
    for fixed in ("shell.sh", "spares.sh", "work.sh", "setup.sh", "successor.sh", "leave_out.sh", "batch.sh"):
        assert text.count(part(fixed)) == (fixed != "spares.sh" or job.may_lose_nodes)
        text = text.replace(part(fixed), f"# {fixed}\n")
    path = GENERATED / f"{name}.sh"
    if update_golden:
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize(
    ("gpu_request", "line"), [("gpus-per-node", "--gpus-per-node=a100:8"), ("gres", "--gres=gpu:a100:8")]
)
def test_typed_gpus_are_requested_in_the_clusters_syntax(gpu_request: str, line: str) -> None:
    job = replace(CONTAINER_JOB, resources=replace(CONTAINER_JOB.resources, gpus_per_node=GpuCount("a100:8")))
    assert f"#SBATCH {line}\n" in render(plan(job, replace(CONTAINER_CLUSTER, gpu_request=gpu_request)))


def test_an_expedited_requeue_is_passed_to_slurm() -> None:
    job = replace(HOST_JOB, resources=replace(HOST_JOB.resources, requeue="expedite"))
    planned = plan(job, CONTAINER_CLUSTER)
    assert "#SBATCH --requeue=expedite\n" in render(planned)
    assert planned.restarts == job.restart.limit


@pytest.mark.parametrize("job", [HOST_JOB, CONTAINER_JOB, SPARES_JOB])
def test_bash_accepts_the_script(job: Job) -> None:
    checked = subprocess.run(["bash", "-n"], input=render(plan(job, CONTAINER_CLUSTER)).encode(), capture_output=True)
    assert (checked.returncode, checked.stderr) == (0, b"")


def test_values_reach_the_task_unchanged() -> None:
    script = render(plan(CONTAINER_JOB, CONTAINER_CLUSTER))
    exports = script[script.index("cctl_exports=(") : script.index("\ncctl_setup=")]
    export = f'{exports}\nexport "${{cctl_exports[@]}}"\nsh -c \'printf %s "$TRICKY"\''
    shown = subprocess.run(["bash", "-c", export], capture_output=True, check=True)
    assert shown.stdout.decode() == CONTAINER_JOB.env["TRICKY"]


@pytest.mark.parametrize("folder", ["/runs/a b", "/runs/it's", '/runs/"q"', "/runs/$HOME", "/runs/é", "/runs/#1;x"])
def test_paths_are_quoted_for_sbatch_and_for_the_shell(folder: str) -> None:
    lines = render(plan(HOST_JOB, CONTAINER_CLUSTER, folder)).splitlines()
    chdir = next(line for line in lines if line.startswith("#SBATCH --chdir="))
    run = next(line for line in lines if line.startswith("cctl_run="))
    for words in (chdir.removeprefix("#SBATCH --chdir="), run.removeprefix("cctl_run=")):
        shown = subprocess.run(["bash", "-c", f"printf %s {words}"], capture_output=True, check=True)
        assert shown.stdout.decode() == f"{folder}/cora-20260102-030405-abcd"


@pytest.mark.parametrize("folder", ["/runs/100%", "/runs/a\\b", "/runs/a\nb"])
def test_a_path_that_slurm_would_rewrite_is_refused(folder: str) -> None:
    with pytest.raises(ConfigError, match="path contains"):
        plan(HOST_JOB, CONTAINER_CLUSTER, folder)


def test_a_jobs_pythonpath_comes_after_its_code() -> None:
    job = Job(name="x", workload="command", argv=("a",), code="/p", env={"PYTHONPATH": "/mine"}, train=CommandTrain())
    exports = dict(plan(job, CONTAINER_CLUSTER).exports)
    assert exports["PYTHONPATH"] == "/runs/.code/0123/lib:/runs/x-20260102-030405-abcd/work:/mine"


def test_named_environments_replace_the_detected_ones() -> None:
    cluster = replace(CONTAINER_CLUSTER, python_environments=("/shared/python", "/shared/env"))
    staging, found = plan(STAGED_JOB, cluster).staging, plan(STAGED_JOB, CONTAINER_CLUSTER).staging
    assert staging is not None
    assert found is not None
    assert (staging.environments, staging.named) == (("/shared/python", "/shared/env"), True)
    assert (found.environments, found.named) == (("/venv", "/shared/my env", "/shared/conda/envs/third"), False)
    assert plan(HOST_JOB, CONTAINER_CLUSTER).staging is None


@pytest.mark.parametrize("disk", ["@/my disk's (1)", "$DISK", "$DISK/$OTHER;x"])
def test_a_task_imports_from_copies_on_its_node_if_the_user_owns_them(tmp_path: Path, disk: str) -> None:
    staging = plan(STAGED_JOB, replace(CONTAINER_CLUSTER, local_scratch=disk.replace("@", str(tmp_path)))).staging
    assert staging is not None
    names = {"DISK": f"{tmp_path}/a b", "OTHER": "c", "CLUSTERCTL_ATTEMPT": "2", "SLURMD_NODENAME": "n1"}
    environment = {**os.environ, **names, "PYTHONPATH": "/lib"}

    def call(*words: str) -> str:
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout

    def path_of_task() -> str:
        return call("sh", "-c", STAGED, staging.folder, "sh", "-c", 'printf %s "$PYTHONPATH"')

    assert path_of_task() == "/lib"
    place = disk.replace("@", str(tmp_path)).replace("$DISK", names["DISK"]).replace("$OTHER", "c")
    copies = Path(f"{place}/clusterctl-stage-big-20260102-030405-abcd.2@n1")
    (copies / "imports").mkdir(parents=True)
    assert path_of_task() == f"{copies}/imports:/lib"
    call(*staging.closing)
    assert not copies.exists()
    (elsewhere := tmp_path / "elsewhere" / "imports").mkdir(parents=True)
    copies.symlink_to(elsewhere.parent)
    assert path_of_task() == "/lib"
