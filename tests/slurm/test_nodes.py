"""Parsing sinfo's output."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launcher.slurm.nodes import FIELDS, SEPARATOR, Gpus, parse_gpus, parse_nodes

CAPTURED = Path(__file__).parent / "fixtures" / "sinfo-22.05.8.txt"


def line(**values: str) -> str:
    usual = {
        "NodeList": "n1",
        "Partition": "gpu*",
        "Available": "up",
        "Time": "1-00:00:00",
        "Size": "1-8",
        "StateComplete": "mixed",
        "CPUsState": "8/24/0/32",
        "Memory": "256000",
        "AllocMem": "64000",
        "FreeMem": "N/A",
        "Gres": "gpu:a100:4(S:0-1)",
        "GresUsed": "gpu:a100:1(IDX:0)",
        "Features": "ib,a100",
        "Reason": "none",
    }
    return "".join((usual | values)[field] + SEPARATOR for field in FIELDS)


def test_the_output_of_slurm_22_05_is_read_completely() -> None:
    """Captured from a sandbox of four nodes: two with a job, one drained, one with three GPUs in use."""
    found = parse_nodes(CAPTURED.read_text(), 5.0)
    assert (found.skipped, found.taken_at) == (0, 5.0)
    assert list(found.partitions) == ["main", "preemptable", "urgent"]
    assert [partition.default for partition in found.partitions.values()] == [True, False, False]
    assert all(partition.nodes == ("node1", "node2", "node3", "node4") for partition in found.partitions.values())
    drained = found.nodes["node3"]
    assert (drained.can_start, drained.reason, drained.gpus_free) == (False, "disk | bad [x]", 0)
    assert [node.gpus_free for node in found.nodes.values()] == [2, 2, 0, 1]
    assert [node.cpus_free for node in found.nodes.values()] == [14, 14, 0, 15]


def test_a_node_is_read_field_by_field() -> None:
    found = parse_nodes(line(), 0.0)
    node, partition = found.nodes["n1"], found.partitions["gpu"]
    assert (node.state, node.cpus, node.cpus_allocated, node.memory, node.memory_allocated) == (
        *("mixed", 32, 8),
        *(256000, 64000),
    )
    assert (node.memory_free, node.features, node.reason) == (None, {"ib", "a100"}, "")
    assert node.gpus == (Gpus("a100", 4, 1),)
    assert (partition.default, partition.up, partition.longest, partition.most_nodes) == (True, True, 86400, 8)


def test_a_node_in_two_partitions_is_one_node() -> None:
    found = parse_nodes(f"{line()}\n{line(Partition='a-cpu')}\n{line()}\n", 0.0)
    assert found.nodes["n1"].partitions == ("gpu", "a-cpu")
    assert [partition.nodes for partition in found.partitions.values()] == [("n1",), ("n1",)]
    assert found.partition_for(None) is found.partitions["gpu"]
    assert found.partition_for("none") is None


@pytest.mark.parametrize(
    ("state", "starts"),
    [
        ("idle", True),
        ("IDLE", True),
        ("mixed+planned", True),
        ("idle+cloud+powered_down", True),
        ("allocated", False),
        ("idle+drain", False),
        ("mixed+drain+not_responding", False),
        ("down+not_responding", False),
        ("idle+reserved", False),
        ("idle+maintenance", False),
        ("idle+reboot_requested", False),
        ("mixed+blocked", False),
        ("unknown", False),
        ("levitating", False),
    ],
)
def test_whether_a_node_can_start_jobs_depends_on_state_and_flags(state: str, starts: bool) -> None:
    """The states of 22.05 as captured; maintenance, blocked and reserved from sinfo(1) of 23.11 to 25.05."""
    assert parse_nodes(line(StateComplete=state), 0.0).nodes["n1"].can_start is starts


@pytest.mark.parametrize(
    ("gres", "used", "gpus"),
    [
        ("gpu:4", "gpu:3", (Gpus("", 4, 3),)),
        ("(null)", "(null)", ()),
        ("gpu:a100:8(S:0-1,3),nvme:2", "gpu:a100:3(IDX:0-1,5),nvme:0", (Gpus("a100", 8, 3),)),
        (
            "gpu:h100:2,gpu:1g.5gb:7",
            "gpu:h100:0(IDX:N/A),gpu:1g.5gb:7(IDX:0-6)",
            (Gpus("h100", 2, 0), Gpus("1g.5gb", 7, 7)),
        ),
        ("gpu", "gpu:0", (Gpus("", 1, 0),)),
    ],
)
def test_gpus_are_counted_by_type(gres: str, used: str, gpus: tuple[Gpus, ...]) -> None:
    assert parse_gpus(gres, used) == gpus


def test_a_later_version_is_read_as_documented() -> None:
    found = parse_nodes((CAPTURED.parent / "sinfo-25.05.txt").read_text(), 0.0)
    assert found.skipped == 0
    starts = {name for name, node in found.nodes.items() if node.can_start}
    assert starts == {"gpu01", "gpu02", "mig01"}
    assert found.nodes["gpu01"].gpus == (Gpus("h100", 8, 5),)
    assert found.nodes["mig01"].gpus == (Gpus("1g.10gb", 14, 0), Gpus("3g.40gb", 2, 0))
    assert found.nodes["cpu01"].gpus_free == 0
    assert found.nodes["gpu03"].reason == "GPU 3 has fallen off the bus"


def test_a_separator_in_a_reason_shifts_nothing() -> None:
    assert parse_nodes(line(Reason="a\x1fb"), 0.0).nodes["n1"].reason == "a\x1fb"


def test_short_and_unrelated_lines_are_skipped_and_counted() -> None:
    found = parse_nodes(f"slurm_load_partitions: warning\n{line()}\nn2\x1fgpu\n\n", 0.0)
    assert (list(found.nodes), found.skipped) == (["n1"], 2)


@given(st.text())
def test_nonsense_never_raises(text: str) -> None:
    parse_nodes(text, 0.0)


@given(st.lists(st.text(max_size=12), min_size=len(FIELDS), max_size=len(FIELDS) + 2))
def test_nonsense_in_every_field_never_raises(values: list[str]) -> None:
    found = parse_nodes(SEPARATOR.join([*values, ""]), 0.0)
    assert all(node.cpus_free >= 0 and node.gpus_free >= 0 for node in found.nodes.values())
