"""sinfo shows the virtual nodes in Slurm's format."""

from __future__ import annotations

import pytest

from clusterctl.launcher.slurm.nodes import SINFO, Gpus, parse_nodes


@pytest.fixture
def cluster(make_cluster):
    return make_cluster(nodes=3, cpus=4, gpus=2)


def inventory(cluster):
    return parse_nodes(cluster.call(*SINFO), 0.0)


def test_the_inventory_parses_like_that_of_a_real_slurm(cluster):
    found = inventory(cluster)
    assert found.skipped == 0
    assert [(node.state, node.cpus_free, node.gpus_free) for node in found.nodes.values()] == [("idle", 4, 2)] * 3
    assert found.partitions["main"].default
    assert found.partitions["main"].nodes == ("node1", "node2", "node3")


def test_gpu_types_are_shown(make_cluster):
    typed = make_cluster(nodes=1, cpus=4, gpus="a100:2")
    job = typed.submit("sleep 600", "--gpus-per-node=a100:1")
    typed.wait(job, "RUNNING")
    assert inventory(typed).nodes["node1"].gpus == (Gpus("a100", 2, 1),)
    assert typed.call("squeue", "-h", "-O", "tres-per-node:40").strip() == "gres:gpu:a100:1"
    assert "Gres=gpu:a100:2" in typed.call("scontrol", "show", "node", "node1")
    typed.call("scancel", job)


def test_running_jobs_and_lost_nodes_are_counted(cluster):
    job = cluster.submit("touch ready; sleep 600", "--gpus-per-node=1", "--ntasks=3")
    whole = cluster.submit("sleep 600", "--exclusive")
    cluster.wait(job, "RUNNING")
    cluster.wait(whole, "RUNNING")
    cluster.call("scontrol", "update", "nodename=node3", "state=down", "reason=disk full")
    nodes = inventory(cluster).nodes
    assert [(node.state, node.cpus_free, node.gpus_free) for node in nodes.values()] == [
        ("mixed", 1, 1),
        ("allocated", 0, 0),
        ("down", 0, 0),
    ]
    assert nodes["node3"].reason == "disk full"
    cluster.call("scancel", job, whole)


def test_unsupported_output_is_rejected(cluster):
    assert "shows only nodes" in cluster.run("sinfo").stderr
    assert "Invalid job format" in cluster.run("sinfo", "-N", "-O", "Weight").stderr
