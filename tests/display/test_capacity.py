"""The tables of partitions and nodes."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from clusterctl.launcher.display.tables import largest_in_words, node_set, show_nodes, show_partitions, show_room
from clusterctl.launcher.slurm import Inventory
from clusterctl.launcher.slurm.nodes import FIELDS, SEPARATOR, Asked, Largest, parse_nodes, room_for

CAPTURED = Path(__file__).parents[1] / "slurm" / "fixtures" / "sinfo-22.05.8.txt"
MakeConsole = Callable[..., tuple[Console, StringIO]]


@pytest.fixture
def inventory() -> Inventory:
    return parse_nodes(CAPTURED.read_text(), 0.0)


def test_the_cluster_at_a_glance(inventory: Inventory, console: MakeConsole) -> None:
    screen, text = console(80)
    show_partitions(screen, inventory)
    show_nodes(screen, inventory.nodes.values())
    lines = [line.split() for line in text.getvalue().splitlines()]
    assert lines[1] == ["main*", "3", "of", "4", "5/16", "43/64", "2", "nodes", "x", "2", "GPUs"]
    assert lines[5] == ["node[1-2]", "mixed", "2/4", "14/16", "62/62", "GiB"]
    assert lines[6] == ["node3", "idle+drain", "0/4", "0/16", "0/62", "GiB", "disk", "|", "bad", "[x]"]


def test_the_reason_why_a_job_does_not_fit_is_shown_next_to_the_partition(
    inventory: Inventory, console: MakeConsole
) -> None:
    screen, text = console(80)
    asked = Asked(nodes=2, cpus=1, gpus=4, seconds=60)
    show_room(screen, [room_for(asked, inventory.partitions["main"], inventory)])
    assert " ".join(text.getvalue().splitlines()[1].split()) == "main no 0 0 of 2 nodes have 4 GPUs free"


def test_escape_sequences_and_markup_in_a_reason_have_no_effect(console: MakeConsole) -> None:
    values = dict.fromkeys(FIELDS, "1") | {"NodeList": "n1", "Reason": "\x1b[2J[red]fan[/red]", "StateComplete": "down"}
    screen, text = console(120)
    show_nodes(screen, parse_nodes("".join(values[field] + SEPARATOR for field in FIELDS), 0.0).nodes.values())
    assert "[red]fan[/red]" in text.getvalue()
    assert "\x1b" not in text.getvalue()


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["node1"], "node1"),
        (["node2", "node1", "node3"], "node[1-3]"),
        (["n01", "n02", "n04"], "n[01-02,04]"),
        (["n9", "n10", "n11"], "n9,n[10-11]"),
        (["login", "gpu-a1"], "gpu-a1,login"),
    ],
)
def test_sets_of_nodes_are_written_as_slurm_writes_them(names: list[str], text: str) -> None:
    assert node_set(names) == text


@given(st.lists(st.text(max_size=10), max_size=6))
def test_any_node_name_can_be_shown(names: list[str]) -> None:
    node_set(names)


@pytest.mark.parametrize(
    ("largest", "words"),
    [(Largest(3, 8, 4), "3 nodes x 4 GPUs"), (Largest(1, 1, 0), "1 node x 1 CPU"), (None, "nothing")],
)
def test_the_largest_job_in_words(largest: Largest | None, words: str) -> None:
    assert largest_in_words(largest) == words
