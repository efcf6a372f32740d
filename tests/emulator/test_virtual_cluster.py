"""Sets of nodes in Slurm's notation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launcher.emulator.virtual_cluster import Machine, node_list, per_node
from clusterctl.shared.node.launch_command import expanded


@pytest.mark.parametrize(
    ("nodes", "text"),
    [([], ""), ([3], "node3"), ([1, 2], "node[1-2]"), ([1, 3, 4, 9], "node[1,3-4,9]"), ([9, 10, 11], "node[9-11]")],
)
def test_node_lists_are_written_as_ranges(nodes, text):
    assert node_list(nodes) == text


@given(st.sets(st.integers(1, 200), min_size=1))
def test_written_node_lists_expand_back(nodes):
    assert expanded(node_list(sorted(nodes))) == [f"node{node}" for node in sorted(nodes)]


@pytest.mark.parametrize(("counts", "text"), [([2, 2], "2(x2)"), ([3], "3"), ([2, 2, 1], "2(x2),1")])
def test_counts_per_node_are_written_with_repetitions(counts, text):
    assert per_node(counts) == text


def test_no_two_nodes_share_a_gpu(tmp_path):
    machine = Machine(tmp_path, tmp_path, nodes=3, cpus_per_node=1, gpus_per_node=2, kill_wait=1)
    assert [list(machine.gpu_indices(node)) for node in (1, 2, 3)] == [[0, 1], [2, 3], [4, 5]]
