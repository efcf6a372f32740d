"""Ranks are spread over a machine's NUMA nodes, within the CPUs that they may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterctl.shared.node.numa import bind


def machine(folder: Path, *lists: str) -> Path:
    for number, cpus in enumerate(lists):
        (folder / f"node{number}").mkdir(parents=True)
        (folder / f"node{number}" / "cpulist").write_text(f"{cpus}\n")
    (folder / "power").mkdir(parents=True)
    return folder


@pytest.mark.parametrize(
    ("lists", "allowed", "ranks", "expected"),
    [
        (["0-3,8-11", "4-7,12-15"], range(16), 4, [0, 0, 1, 1]),
        (["0-1", "2-3", "4-5"], range(6), 2, [0, 1]),
        (["0-1", "2-3"], range(4), 3, [0, 0, 1]),
        (["0-1", "", "2-3"], range(4), 2, [0, 2]),  # memory without CPUs
        (["0-1", "2-3"], [2], 2, [1, 1]),  # Slurm has bound them
        (["0-3"], range(4), 2, [0, 0]),
    ],
)
def test_each_rank_keeps_to_one_node(
    lists: list[str],
    allowed: range | list[int],
    ranks: int,
    expected: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes, bound = machine(tmp_path / "nodes", *lists), []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(allowed))
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cpus: bound.append(cpus))
    words = [bind(rank, ranks, nodes) for rank in range(ranks)]
    assert [int(text.split()[2]) for text in words] == expected
    assert all(cpus and cpus <= set(allowed) for cpus in bound)
    if lists[0] == "0-3,8-11":
        assert words[0] == "NUMA node 0 of 2: CPUs 0-3,8-11"
        assert bound[3] == {4, 5, 6, 7, 12, 13, 14, 15}


def test_this_machine_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    bound: list[set[int]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cpus: bound.append(cpus))
    assert bind(0, 1).startswith("NUMA node 0")
    assert bound[0] <= os.sched_getaffinity(0)


def test_a_kernel_without_numa_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no NUMA nodes"):
        bind(0, 2, machine(tmp_path / "none"))
