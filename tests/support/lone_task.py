"""A task with a single rank."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed as dist

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
