"""Which nodes and GPUs a job gets."""

from __future__ import annotations

import threading
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from clusterctl.emulator.jobs import Record, State
from clusterctl.emulator.machine import Machine
from clusterctl.emulator.request import make_request
from clusterctl.emulator.slots import choose, free_slots, lease


def machine(root, nodes=3, cpus=4, gpus=2):
    return Machine(root, root, nodes, cpus, gpus, kill_wait=1)


def request(nodes=1, tasks=1, gpus=0, **options):
    words = {"nodes": str(nodes), "ntasks-per-node": str(tasks), "gpus-per-node": str(gpus), **options}
    return make_request(words, [], "job", "/")


def running(placement):
    return Record(State.RUNNING, "None", 0.0, nodes=placement.nodes, gpus=placement.gpus)


def test_the_first_nodes_with_room_are_taken(tmp_path):
    cluster = machine(tmp_path)
    first = choose(cluster, request(nodes=2, tasks=3, gpus=1), free_slots(cluster, []))
    assert first == ([1, 2], [[0], [2]])
    taken = [(request(nodes=2, tasks=3, gpus=1), running(first))]
    assert choose(cluster, request(tasks=1, gpus=1), free_slots(cluster, taken)) == ([1], [[1]])
    assert choose(cluster, request(tasks=2), free_slots(cluster, taken)) == ([3], [[]])
    assert choose(cluster, request(nodes=2, tasks=2), free_slots(cluster, taken)) is None


def test_an_exclusive_job_shares_no_node(tmp_path):
    cluster = machine(tmp_path)
    taken = [(request(), running(choose(cluster, request(), free_slots(cluster, []))))]
    alone = request(exclusive="")
    placed = choose(cluster, alone, free_slots(cluster, taken))
    assert placed.nodes == [2]
    assert choose(cluster, request(nodes=2), free_slots(cluster, [*taken, (alone, running(placed))])).nodes == [1, 3]


def test_a_node_that_is_down_gives_nothing(tmp_path):
    cluster = machine(tmp_path)
    cluster.down_marker(1).parent.mkdir()
    cluster.down_marker(1).touch()
    assert [free.node for free in free_slots(cluster, [])] == [2, 3]


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(0, 2)), max_size=12))
def test_no_slot_is_given_twice(asked):
    cluster = machine(Path("/nowhere"))
    taken = []
    for nodes, tasks, gpus in asked:
        wanted = request(nodes, tasks, gpus)
        if placed := choose(cluster, wanted, free_slots(cluster, taken)):
            taken.append((wanted, running(placed)))
    for node in range(1, 4):
        held = [(req, rec.gpus[rec.nodes.index(node)]) for req, rec in taken if node in rec.nodes]
        assert sum(req.cpus_on_each for req, _ in held) <= 4
        used = [gpu for _, gpus in held for gpu in gpus]
        assert len(used) == len(set(used))
        assert set(used) <= set(cluster.gpu_indices(node))


def test_only_one_at_a_time_holds_the_lease(tmp_path):
    inside, most = 0, 0

    def decide():
        nonlocal inside, most
        with lease(machine(tmp_path)):
            inside += 1
            most = max(most, inside)
            threading.Event().wait(0.01)
            inside -= 1

    threads = [threading.Thread(target=decide) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (inside, most) == (0, 1)
