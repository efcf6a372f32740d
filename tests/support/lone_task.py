"""Fixtures for a conftest.py: a task with a single rank, and small graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch import distributed as dist

from clusterctl.engine.graph.storage import Graph, compressed
from clusterctl.engine.task.task import Task, leave
from clusterctl.shared.node.events import Events
from clusterctl.shared.node.signals import StopRequest
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.metrics import MetricsWriter
from clusterctl.shared.record.place import Place


@pytest.fixture
def lone_task(tmp_path: Path) -> Iterator[Task]:
    """The only rank of attempt 0 in `tmp_path / "run"`."""
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    attempt = run.attempt(0)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    world = dist.group.WORLD
    assert world is not None
    yield Task(
        place=Place(),
        device=torch.device("cpu"),
        node=world,
        cache=tmp_path / "cache",
        events=Events(attempt, 0),
        metrics=MetricsWriter(attempt, 0),
        stop=StopRequest(),
    )
    leave()


@pytest.fixture(scope="session")
def random_graph() -> Callable[..., Graph]:
    """Makes graphs with isolated nodes, repeated edges left out, and no self loops."""

    def make(nodes: int = 60, edges: int = 500, features: int = 7, classes: int = 3, seed: int = 0) -> Graph:
        generator = torch.Generator().manual_seed(seed)
        pairs = torch.randint(0, nodes, (2, edges), generator=generator)
        pairs = pairs[:, (pairs[0] != pairs[1]) & (pairs[1] % 10 != 0)].unique(dim=1)  # every tenth has no neighbour
        order = torch.randperm(nodes, generator=generator)
        train, val, test = (part.sort().values for part in order.tensor_split([nodes // 2, nodes * 3 // 4]))
        return Graph(
            *compressed(pairs, nodes),
            x=torch.randn(nodes, features, generator=generator, dtype=torch.float64),
            y=torch.randint(0, classes, (nodes,), generator=generator),
            train=train,
            val=val,
            test=test,
            num_classes=classes,
        )

    return make


@pytest.fixture
def mapped(tmp_path: Path) -> Callable[[Tensor], Tensor]:
    """Copies of tables that are mapped from files, as those of prepared data are."""
    tables: list[Path] = []

    def from_file(table: Tensor) -> Tensor:
        tables.append(tmp_path / f"table_{len(tables)}")
        tables[-1].write_bytes(table.contiguous().numpy().tobytes())
        return torch.from_file(str(tables[-1]), size=table.numel(), dtype=table.dtype).view(table.shape)

    return from_file
