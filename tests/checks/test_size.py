"""Whether a job fits, the message if it does not, and which settings would make it fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launcher.checks.job_rules import misfit, request_rules, requeue_rules
from clusterctl.launcher.checks.look import sizes
from clusterctl.launcher.checks.surroundings import Answer, Check, Folder, NodeSize, Surroundings, Verdict, WantedRun
from clusterctl.launcher.config import Resolved, resolve
from clusterctl.launcher.slurm.nodes import configured_nodes, parse_nodes
from clusterctl.shared.errors import SlurmError
from clusterctl.shared.record.roles import seating
from clusterctl.shared.spec import Cluster, Job, RedditTrain, Resources, from_record, to_record
from clusterctl.shared.spec.job import Role
from clusterctl.shared.spec.values import GpuCount

GIB = 1024
LAPTOP = (NodeSize(0, 4, 24 * GIB),) * 4
GPU_NODE = NodeSize(8, 64, 512 * GIB)
FOLLOWS = {"resources.tasks_per_node": "default: one a GPU"}
CAPTURED = Path(__file__).parents[1] / "slurm" / "fixtures" / "sinfo-22.05.8.txt"


def asking(origins: dict[str, str] | None = None, device: str = "auto", **asked: object) -> Resolved:
    resources = Resources(**{"gpus_per_node": 0, "tasks_per_node": 1, **asked})  # type: ignore[arg-type]
    job = Job(name="reddit", workload="reddit", train=RedditTrain(device=device), resources=resources)
    return Resolved(job, Cluster(name="local"), origins or {}, Path("/jobs/reddit.toml"))


@pytest.mark.parametrize(
    ("asked", "nodes", "message", "changes"),
    [
        (
            asking(FOLLOWS, gpus_per_node=4, tasks_per_node=4, memory="64G"),
            LAPTOP,
            "reddit requests 4 GPUs and 64 GiB per node; local nodes have 0 GPUs and 24 GiB",
            {"resources.gpus_per_node": "0", "resources.memory": "24G"},
        ),
        (asking(nodes=9), LAPTOP, "reddit requests 9 nodes; local has 4", {"resources.nodes": "4"}),
        (
            asking(nodes=9, gpus_per_node=1),
            LAPTOP,
            "reddit requests 9 nodes with 1 GPU each; local has 4 with 0 GPUs",
            {"resources.nodes": "4", "resources.gpus_per_node": "0"},
        ),
        (
            asking(tasks_per_node=6),
            LAPTOP,
            "reddit requests 6 CPUs per node; local nodes have 4 CPUs",
            {"resources.tasks_per_node": "4"},
        ),
        (
            asking(tasks_per_node=2, cpus_per_task=4),
            LAPTOP,
            "reddit requests 8 CPUs per node; local nodes have 4 CPUs",
            {"resources.cpus_per_task": "2"},
        ),
        (
            asking(tasks_per_node=2, mem_per_cpu="20G"),
            LAPTOP,
            "reddit requests 40 GiB per node; local nodes have 24 GiB",
            {"resources.mem_per_cpu": "12G"},
        ),
        (
            asking(FOLLOWS, gpus_per_node=16, tasks_per_node=16),
            (GPU_NODE, *LAPTOP),
            "reddit requests 16 GPUs per node; local nodes have at most 8 GPUs",
            {"resources.gpus_per_node": "8"},
        ),
        (
            asking(gpus_per_node=1, memory="1T"),
            (NodeSize(1, 4, GIB), NodeSize(0, 4, 1024 * GIB)),
            "reddit requests 1 GPU, 1 CPU and 1024 GiB per node; local nodes have at most 1 GPU, 4 CPUs and 1024 GiB",
            {"resources.memory": "1G"},
        ),
        (
            asking(gpus_per_node=1, device="cuda"),
            LAPTOP,
            "reddit requests 1 GPU per node; local nodes have 0 GPUs",
            {"resources.gpus_per_node": "0", "train.device": "auto"},
        ),
        (
            asking(gres="gpu:a100:2"),
            LAPTOP,
            "reddit requests 2 a100 GPUs per node; local nodes have 0 a100 GPUs",
            {},
        ),
        (
            asking(FOLLOWS, gpus_per_node=GpuCount("a100:16"), tasks_per_node=16),
            (GPU_NODE, *LAPTOP),
            "reddit requests 16 a100 GPUs per node; local nodes have at most 8 a100 GPUs",
            {"resources.gpus_per_node": "a100:8"},
        ),
        (
            asking(FOLLOWS, gpus_per_node=GpuCount("a100:1")),
            LAPTOP,
            "reddit requests 1 a100 GPU per node; local nodes have 0 a100 GPUs",
            {"resources.gpus_per_node": "0"},
        ),
    ],
)
def test_the_message_compares_the_request_with_the_nodes(
    asked: Resolved, nodes: tuple[NodeSize, ...], message: str, changes: dict[str, str]
) -> None:
    check = misfit(asked, nodes, "local")
    assert check is not None
    assert (check.message, check.changes) == (message, changes)
    assert bool(check.hint) != bool(changes)


@pytest.mark.parametrize(
    ("wanted", "changes"),
    [
        ({"server": (2, False), "trainer": (4, False)}, {"role.trainer.nodes": "2"}),
        ({"server": (6, False), "beside": (3, True)}, {"role.server.nodes": "4"}),
        ({"server": (6, False), "beside": (5, True)}, {}),  # would no longer have the nodes of `server`
        ({f"r{number}": (1, False) for number in range(6)}, {}),
    ],
)
def test_roles_that_need_too_many_nodes_are_answered_with_a_key_of_a_role(
    wanted: dict[str, tuple[int, bool]], changes: dict[str, str]
) -> None:
    def asking_for(roles: dict[str, Role]) -> Resolved:
        asked = asking(nodes=seating(roles).nodes, tasks_per_node=seating(roles).tasks_per_node)
        return replace(asked, job=replace(asked.job, role=roles))

    roles = {name: Role(program=("x",), nodes=nodes, share=share) for name, (nodes, share) in wanted.items()}
    check = misfit(asking_for(roles), LAPTOP, "local")
    assert check is not None
    assert check.message == "reddit requests 6 nodes; local has 4"
    assert (check.changes, bool(check.hint)) == (changes, not changes)
    for key, text in changes.items():
        name = key.split(".")[1]
        roles[name] = replace(roles[name], nodes=int(text))
        assert misfit(asking_for(roles), LAPTOP, "local") is None


def test_a_job_that_fits_some_of_the_nodes_is_not_refused() -> None:
    assert misfit(asking(gpus_per_node=8), (*LAPTOP, GPU_NODE), "local") is None


def test_an_unknown_gpu_type_is_answered_with_the_available_ones() -> None:
    check = misfit(asking(gpus_per_node=GpuCount("h100:2")), LAPTOP, "local", ("a100", "v100"))
    assert check is not None
    assert check.message == "reddit requests 2 h100 GPUs per node; local nodes have 0 h100 GPUs"
    assert (check.hint, check.changes) == ("available GPU types: a100, v100", {})


node_sizes = st.builds(
    NodeSize, st.integers(0, 8), st.integers(1, 64), st.sampled_from([500, GIB, 24 * GIB, 512 * GIB])
)


@given(
    st.lists(node_sizes, min_size=1, max_size=5),
    st.integers(1, 8),
    st.integers(0, 9),
    st.integers(1, 20),
    st.integers(1, 20),
    st.sampled_from([{}, {"memory": "64G"}, {"memory": "600M"}, {"mem_per_cpu": "4G"}, {"mem_per_gpu": "100G"}]),
)
def test_the_suggested_changes_make_the_job_fit(
    nodes: list[NodeSize], count: int, gpus: int, tasks: int, cpus: int, memory: dict[str, str]
) -> None:
    asked = asking(nodes=count, gpus_per_node=gpus, tasks_per_node=tasks, cpus_per_task=cpus, **memory)
    check = misfit(asked, nodes, "local")
    if check is None:
        return
    assert check.changes
    record = to_record(asked.job.resources)
    for key, text in check.changes.items():
        name = key.removeprefix("resources.")
        record[name] = text if name.startswith("mem") else int(text)
    smaller = replace(asked, job=replace(asked.job, resources=from_record(Resources, record)))
    assert misfit(smaller, nodes, "local") is None


def test_busy_nodes_count_too() -> None:
    where, nodes, gpu_types = sizes(Resources(), parse_nodes(CAPTURED.read_text(), 0.0))
    assert (where, gpu_types) == ("main partition", ())
    assert len(nodes) == 4
    assert {node.gpus for node in nodes} == {4}


def test_only_gpus_of_the_requested_type_count() -> None:
    typed = CAPTURED.read_text().replace("gpu:4", "gpu:a100:4")
    known = sizes(Resources(gpus_per_node=GpuCount("h100:1")), parse_nodes(typed, 0.0))
    assert ({node.gpus for node in known.sizes}, known.gpu_types) == ({0}, ("a100",))
    known = sizes(Resources(gpus_per_node=GpuCount("a100:1")), parse_nodes(typed, 0.0))
    assert {node.gpus for node in known.sizes} == {4}


def test_an_unknown_partition_has_no_sizes() -> None:
    assert sizes(Resources(partition="none"), parse_nodes(CAPTURED.read_text(), 0.0)) == ("", (), ())


def warned(asked: Resolved, nodes: tuple[NodeSize, ...]) -> list[tuple[Verdict, str]]:
    folder = Folder("/runs", True, True)
    wanted = WantedRun(asked, nodes=nodes, where="main partition")
    found = request_rules(Surroundings(asked.cluster, folder, 1024, wanted=wanted))
    return [(check.verdict, check.message) for check in found]


def test_a_misfit_is_a_warning_on_slurm_and_refused_on_the_emulator() -> None:
    on_slurm = replace(asking(nodes=9), cluster=Cluster(name="site", kind="slurm"))
    message = "reddit requests 9 nodes; main partition has 4"
    assert warned(on_slurm, LAPTOP) == [(Verdict.WARN, message)]
    assert warned(replace(on_slurm, cluster=Cluster(name="local", kind="emulator")), LAPTOP) == [
        (Verdict.FAIL, message)
    ]


def test_more_nodes_than_the_partition_will_ever_have_are_refused() -> None:
    asked = replace(asking(nodes=9), cluster=Cluster(name="site", kind="slurm"))

    def judged(configured: int | None) -> list[Check]:
        wanted = WantedRun(asked, nodes=LAPTOP, where="main partition", configured=configured)
        return [*request_rules(Surroundings(asked.cluster, Folder("/runs", True, True), 1024, wanted=wanted))]

    (check,) = judged(8)
    assert (check.verdict, check.changes) == (Verdict.FAIL, {"resources.nodes": "4"})
    assert check.message == "reddit requests 9 nodes; main partition has 8, with those that are down or off"
    for enough in (9, 64, None):  # nodes of a cloud are hidden while they are off
        assert [one.verdict for one in judged(enough)] == [Verdict.WARN]


PARTITIONS = """PartitionName=main-2
   AllocNodes=ALL Default=NO QoS=N/A
   State=UP TotalCPUs=16 TotalNodes=7 SelectTypeParameters=NONE

PartitionName=main
   AllocNodes=ALL Default=YES QoS=N/A
   MaxNodes=2 Nodes=node[1-4]
   State=UP TotalCPUs=16 TotalNodes=4 SelectTypeParameters=NONE
"""


@pytest.mark.parametrize(
    ("name", "count"), [(None, 4), ("main", 4), ("main-2", 7), ("mai", None), ("main,main-2", None)]
)
def test_the_configured_nodes_of_a_partition(name: str | None, count: int | None) -> None:
    assert configured_nodes(PARTITIONS, name) == count
    assert configured_nodes("", name) is None


@pytest.mark.parametrize(
    ("version", "refused"),
    [
        ("slurm 25.11.0\n", False),
        ("slurm-wlm 26.05.1", False),
        ("slurm 25.05.4", True),
        ("slurm-wlm 22.05.8", True),
        ("", True),
        (SlurmError("sbatch gave no answer"), True),
    ],
)
def test_an_expedited_requeue_is_refused_if_slurm_lacks_it(version: Answer, refused: bool) -> None:
    asked = asking(requeue="expedite")
    wanted = WantedRun(asked, slurm_version=version)
    found = Surroundings(asked.cluster, Folder("/runs", True, True), 1024, wanted=wanted)
    assert [check.verdict for check in requeue_rules(found)] == [Verdict.FAIL] * refused


@pytest.mark.parametrize(
    ("config", "refused"),
    [
        ("SlurmctldParameters     = enable_configless,enable_expedited_requeue\n", False),
        ("SlurmctldParameters     = (null)\n", True),
        (SlurmError("scontrol gave no answer"), False),
    ],
)
def test_an_expedited_requeue_is_refused_where_it_is_switched_off(config: Answer, refused: bool) -> None:
    asked = asking(requeue="expedite")
    wanted = WantedRun(asked, slurm_version="slurm 26.05.1", slurm_config=config)
    checks = list(requeue_rules(Surroundings(asked.cluster, Folder("/runs", True, True), 1024, wanted=wanted)))
    assert [check.verdict for check in checks] == [Verdict.FAIL] * refused
    assert all("SlurmctldParameters=enable_expedited_requeue" in check.hint for check in checks)


@pytest.mark.parametrize(("tasks", "gpus", "warns"), [(2, 4, True), (4, 4, False), (1, 4, False), (2, 0, False)])
def test_gpus_that_no_task_would_use_are_a_warning(tasks: int, gpus: int, warns: bool) -> None:
    found = warned(asking(tasks_per_node=tasks, gpus_per_node=gpus), (GPU_NODE,))
    assert found == ([(Verdict.WARN, "2 tasks per node use 2 of its 4 GPUs")] if warns else [])


def test_the_shipped_command_job_has_one_task_per_gpu_of_the_cluster() -> None:
    cluster = Cluster(name="site", kind="slurm", gpus_per_node=4)
    job = resolve("command", cluster, ["resources.nodes=4"]).job
    assert (job.resources.tasks_per_node, job.resources.time) == (4, 3600)
