"""Which requests fit, according to sinfo's output."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launcher.slurm import Inventory, Node, Partition
from clusterctl.launcher.slurm.nodes import (
    Asked,
    Gpus,
    Largest,
    asked_of,
    gpus_by_type,
    has_room,
    largest_now,
    room_for,
)
from clusterctl.shared.spec import Resources
from clusterctl.shared.spec.values import GpuCount

IDLE = Node("n1", ("gpu",), "idle", frozenset(), "", 32, 0, 256_000, 0, None, (Gpus("a100", 4, 0),), frozenset({"ib"}))
DRAINED = replace(IDLE, flags=frozenset({"drain"}), reason="fan")
HALF = replace(IDLE, state="mixed", cpus_allocated=16, memory_allocated=128_000, gpus=(Gpus("a100", 4, 2),))
WANTED = Asked(nodes=1, cpus=8, gpus=4, seconds=3600)


def cluster(*nodes: Node, **partition: object) -> Inventory:
    named = {f"n{number}": replace(node, name=f"n{number}") for number, node in enumerate(nodes, 1)}
    usual: dict[str, object] = {"default": True, "up": True, "longest": None, "most_nodes": None}
    return Inventory(named, {"gpu": Partition(name="gpu", nodes=tuple(named), **(usual | partition))}, 0.0)  # type: ignore[arg-type]


def largest(inventory: Inventory) -> Largest | None:
    return largest_now(inventory.partitions["gpu"], inventory)


def test_a_jobs_request_per_node_is_the_sum_over_its_tasks() -> None:
    asked = asked_of(Resources(nodes=2, tasks_per_node=4, cpus_per_task=3, gpus_per_node=4, memory="64G", time=600))
    assert asked == Asked(nodes=2, cpus=12, gpus=4, seconds=600, memory=65536)
    assert asked_of(Resources(mem_per_cpu="2G", cpus_per_task=3)).memory == 6144
    assert asked_of(Resources(mem_per_gpu="1T", gpus_per_node=2)).memory == 2 * 1024 * 1024


def test_only_gpus_of_the_requested_type_have_room() -> None:
    asked = asked_of(Resources(gpus_per_node=GpuCount("a100:2")))
    assert (asked.gpus, asked.gpu_type) == (2, "a100")
    mixed = replace(IDLE, gpus=(Gpus("a100", 2, 1), Gpus("v100", 4, 0)))
    assert not has_room(mixed, asked)
    assert has_room(mixed, replace(asked, gpus=1))
    room = room_for(asked, cluster(mixed).partitions["gpu"], cluster(mixed))
    assert room.objections == ("0 of 1 nodes have 2 a100 GPUs free",)


@pytest.mark.parametrize(("gres", "gpus", "kind"), [("gpu:a100:2", 2, "a100"), ("gpu:3,nvme:1", 3, ""), ("gpu", 1, "")])
def test_gpus_requested_as_gres_count(gres: str, gpus: int, kind: str) -> None:
    asked = asked_of(Resources(gres=gres))
    assert (asked.gpus, asked.gpu_type) == (gpus, kind)


@pytest.mark.parametrize(
    ("node", "asked", "fits"),
    [
        (IDLE, WANTED, True),
        (DRAINED, WANTED, False),
        (HALF, WANTED, False),
        (HALF, replace(WANTED, gpus=2), True),
        (HALF, replace(WANTED, gpus=2, exclusive=True), False),
        (HALF, replace(WANTED, gpus=2, cpus=17), False),
        (HALF, replace(WANTED, gpus=2, memory=200_000), False),
        (IDLE, replace(WANTED, gpu_type="h100"), False),
        (IDLE, replace(WANTED, gpu_type="a100"), True),
        (IDLE, replace(WANTED, constraint="ib"), True),
        (IDLE, replace(WANTED, constraint="ib&gen2"), False),
        (IDLE, replace(WANTED, constraint="[rack1|rack2]"), True),  # not ours to judge
    ],
)
def test_a_node_has_room_if_everything_asked_for_is_free(node: Node, asked: Asked, fits: bool) -> None:
    assert has_room(node, asked) is fits


@pytest.mark.parametrize(
    ("inventory", "asked", "objections"),
    [
        (cluster(IDLE, HALF), WANTED, ()),
        (cluster(IDLE, HALF), replace(WANTED, nodes=2), ("1 of 2 nodes have 4 GPUs free",)),
        (cluster(IDLE, up=False), WANTED, ("the partition is not accepting jobs",)),
        (cluster(IDLE, longest=1800), WANTED, ("the time limit is 30 min",)),
        (cluster(IDLE, IDLE, most_nodes=1), replace(WANTED, nodes=2), ("jobs are limited to 1 node",)),
        (cluster(IDLE, HALF), replace(WANTED, nodes=2, gpus=0, exclusive=True), ("1 of 2 nodes are completely free",)),
        (cluster(DRAINED), replace(WANTED, cpus=1, gpus=0), ("0 of 1 nodes have 1 CPU free",)),
        (cluster(IDLE), replace(WANTED, constraint="gen2"), ("0 of 1 nodes have the requested resources",)),
    ],
)
def test_reasons_against_a_partition_are_reported(
    inventory: Inventory, asked: Asked, objections: tuple[str, ...]
) -> None:
    room = room_for(asked, inventory.partitions["gpu"], inventory)
    assert (room.objections, room.fits_now) == (objections, not objections)


def test_the_largest_job_is_the_one_with_most_gpus() -> None:
    assert largest(cluster(IDLE, IDLE, HALF, DRAINED)) == Largest(2, 32, 4)
    assert largest(cluster(IDLE, HALF, HALF, HALF)) == Largest(4, 16, 2)
    assert largest(cluster(IDLE, IDLE, most_nodes=1)) == Largest(1, 32, 4)
    assert largest(cluster(DRAINED)) is None
    assert largest(cluster(IDLE, up=False)) is None


def test_without_gpus_the_largest_job_is_the_one_with_most_cpus() -> None:
    plain = replace(IDLE, gpus=())
    assert largest(cluster(plain, replace(plain, cpus_allocated=24, state="mixed"))) == Largest(1, 32, 0)


def test_gpus_of_a_drained_node_are_not_free() -> None:
    assert gpus_by_type([IDLE, HALF, DRAINED]) == {"a100": (6, 12)}


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 64)), min_size=1, max_size=8))
def test_there_is_room_for_the_reported_largest_job(nodes: list[tuple[int, int]]) -> None:
    made = [replace(IDLE, cpus=cpus, gpus=(Gpus("", gpus, 0),)) for gpus, cpus in nodes]
    inventory = cluster(*made)
    found = largest(inventory)
    assert found is not None
    asked = Asked(found.nodes, found.cpus_per_node, found.gpus_per_node, 60)
    assert room_for(asked, inventory.partitions["gpu"], inventory).nodes_with_room >= found.nodes
