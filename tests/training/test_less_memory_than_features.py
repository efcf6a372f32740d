"""Training under a real memory limit: features four times as large as it, and hidden rows that exceed it too."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from clusterctl.graph.storage import Graph, compressed, save

LIMIT, TIMES, WIDTH = 576 << 20, 4, 768  # a rank takes 440 MiB of it: torch, numba, the cache and what it computes
RANK = """
import os, sys
from dataclasses import replace
from pathlib import Path
Path(sys.argv[2], "cgroup.procs").write_text(str(os.getpid()))
from clusterctl.graph.storage import Graph, load
from clusterctl.runs.context import Context
from clusterctl.spec import NodeTrain
from clusterctl.task.task import joined
from clusterctl.training.loop import fit
from clusterctl.training.node_objective import NodeClassification

train = NodeTrain(epochs=2, batch_size=64, fan_out=(10, 5), hidden_channels=256, sampling="labor")
with joined(Context({"name": "x", "workload": "reddit"})) as task:
    graph = load(Graph, Path(sys.argv[1]))
    cache = 32 << 20 if sys.argv[3] == "disk" else None
    graph = graph if cache else replace(graph, x=graph.x.clone())
    fit(NodeClassification(graph, train, task, cache), train, task)
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


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    nodes = TIMES * LIMIT // (4 * WIDTH)
    (tmp_path / "x").touch()
    os.truncate(tmp_path / "x", 4 * nodes * WIDTH)
    x = torch.from_file(str(tmp_path / "x"), shared=True, size=nodes * WIDTH).view(nodes, WIDTH)
    edges = compressed(torch.randint(nodes, (2, 2 * nodes)), nodes, shuffled=True)
    train, val, test = torch.randperm(nodes)[:1500].sort().values.view(3, 500)
    save(Graph(*edges, x, torch.randint(4, (nodes,)), train, val, test, num_classes=4), tmp_path / "graph.pt")
    return tmp_path / "graph.pt"


@pytest.mark.long
def test_training_and_evaluation_fit_in_a_quarter_of_the_tables_size(graph: Path, limited: Path) -> None:
    def run(where: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", RANK, str(graph), str(limited), where]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = run("disk")
    assert done.returncode == 0, done.stderr
    assert "epoch 2/2" in done.stdout
    assert "test accuracy" in done.stdout
    assert run("memory").returncode == -9, "the limit has no effect"
