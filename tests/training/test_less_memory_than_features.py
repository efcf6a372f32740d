"""Training under a real memory limit: features four times as large as it, and hidden rows that exceed it too."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from clusterctl.engine.graph.storage import Graph, LabelledHeteroGraph, compressed, save

LIMIT, TIMES, WIDTH = 576 << 20, 4, 768  # a rank takes 440 MiB of it: torch, numba, the cache and what it computes
NODES = TIMES * LIMIT // (4 * WIDTH)
RANK = """
import os, sys
from dataclasses import replace
from pathlib import Path
Path(sys.argv[2], "cgroup.procs").write_text(str(os.getpid()))
from clusterctl.engine.graph.storage import Graph, LabelledHeteroGraph, load
from clusterctl.shared.node.events import Context
from clusterctl.shared.spec import NodeClassificationTrain, NodeTrain
from clusterctl.engine.task.task import joined
from clusterctl.engine.training.loop import fit
from clusterctl.engine.training.objectives.node import NodeClassification
from clusterctl.engine.training.objectives.own_node import OwnNodeClassification
from clusterctl.engine.training.objectives.relation import RelationNodeClassification

path, cache = Path(sys.argv[1]), 32 << 20 if sys.argv[3] == "disk" else None
batches = dict(epochs=2, batch_size=64, fan_out=(10, 5))
with joined(Context({"name": "x", "workload": "reddit"})) as task:
    if sys.argv[4] == "sage":
        train = NodeTrain(**batches, hidden_channels=256, sampling="labor")
        kind, objective = Graph, NodeClassification
    else:
        train = NodeClassificationTrain(**batches, model=sys.argv[4], options={"hidden": 64, "heads": 4})
        kind, objective = {"gat": (Graph, OwnNodeClassification),
                           "rgat": (LabelledHeteroGraph, RelationNodeClassification)}[train.model]
    graph = load(kind, path)
    if not cache:
        graph = replace(graph, x=graph.x.clone() if kind is Graph else {of: x.clone() for of, x in graph.x.items()})
    fit(objective(graph, train, task, cache), train, task)
"""


@pytest.fixture
def limited() -> Iterator[Path]:
    """A memory cgroup limited to LIMIT."""
    first = Path("/sys/fs/cgroup/memory")  # cgroup v1
    folder = (first if first.exists() else first.parent) / f"clusterctl-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / ("memory.limit_in_bytes" if first.exists() else "memory.max")).write_text(str(LIMIT))
    except OSError as error:
        pytest.skip(f"cannot create a memory cgroup here: {error}")
    yield folder
    folder.rmdir()


def features(path: Path, nodes: int) -> torch.Tensor:
    """Zeros that take no space on the disk until they are saved."""
    path.touch()
    os.truncate(path, 4 * nodes * WIDTH)
    return torch.from_file(str(path), shared=True, size=nodes * WIDTH).view(nodes, WIDTH)


def drawn(sources: int, targets: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two random edges into each target, on average."""
    ends = torch.stack([torch.randint(count, (2 * targets,)) for count in (sources, targets)])
    return compressed(ends, targets, sources, shuffled=True)


def one_type(folder: Path) -> Graph:
    splits = torch.randperm(NODES)[:1500].sort().values.view(3, 500)
    return Graph(
        *drawn(NODES, NODES), features(folder / "x", NODES), torch.randint(4, (NODES,)), *splits, num_classes=4
    )


def several_types(folder: Path) -> LabelledHeteroGraph:
    nodes = {"paper": NODES // 2, "author": NODES // 2}
    relations = [("paper", "cites", "paper"), ("author", "writes", "paper"), ("paper", "written_by", "author")]
    edges = {relation: drawn(nodes[relation[0]], nodes[relation[2]]) for relation in relations}
    return LabelledHeteroGraph(
        nodes,
        {relation: indptr for relation, (indptr, _) in edges.items()},
        {relation: indices for relation, (_, indices) in edges.items()},
        {kind: features(folder / kind, count) for kind, count in nodes.items()},
        "paper",
        torch.randint(4, (NODES // 2,)),
        *torch.randperm(NODES // 2)[:1500].sort().values.view(3, 500),
        num_classes=4,
    )


@pytest.mark.long
@pytest.mark.parametrize("model", ["sage", "gat", "rgat"])
def test_training_and_evaluation_fit_in_a_quarter_of_the_tables_size(tmp_path: Path, limited: Path, model: str) -> None:
    graph = tmp_path / "graph.pt"
    save(several_types(tmp_path) if model == "rgat" else one_type(tmp_path), graph)

    def run(where: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", RANK, str(graph), str(limited), where, model]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = run("disk")
    assert done.returncode == 0, done.stderr
    assert "epoch 2/2" in done.stdout
    assert "test accuracy" in done.stdout
    assert run("memory").returncode == -9, "the limit has no effect"
