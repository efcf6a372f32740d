"""The examples in docs/examples/pyg train as they are."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from clusterctl.engine.task.task import Task
from clusterctl.engine.workloads import graph_classification, link_prediction, node_classification
from clusterctl.launcher.config.resolution import contradictions
from clusterctl.shared.node.events import Context
from clusterctl.shared.record.files import read_lines
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.spec import Cluster

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples" / "pyg"
MAINS: dict[str, Any] = {
    "graphs_gine": (graph_classification, "test_accuracy"),
    "zinc_gine": (graph_classification, "test_mae"),
    "link_mlp": (link_prediction, "test_hits@20"),
    "purchases": (link_prediction, "test_auc"),
    "ppi_gat": (node_classification, "test_f1_micro"),
    **dict.fromkeys(
        (
            *("appnp", "arxiv_gcn", "gatv2", "gine", "graphconv"),
            *("pna", "products_sage", "reddit_sage", "sage_jk"),
            *("hgt", "rgcn", "shop", "to_hetero_sage"),
        ),
        (node_classification, "test_accuracy"),
    ),
}
ALWAYS = ("link_mlp", "reddit_sage")


@pytest.fixture
def joined(lone_task: Task, monkeypatch: pytest.MonkeyPatch) -> Task:
    """The task that every workload joins."""

    @contextmanager
    def alone(_: Context) -> Iterator[Task]:
        yield lone_task

    for workload, _ in MAINS.values():
        monkeypatch.setattr(workload, "joined", alone)
    monkeypatch.syspath_prepend(EXAMPLES)
    return lone_task


@pytest.mark.parametrize(
    "name", [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.long) for name in MAINS]
)
def test_an_example_trains_and_is_measured(joined: Task, tmp_path: Path, name: str) -> None:
    record = tomllib.loads((EXAMPLES / f"{name}.toml").read_text())
    context = Context({**record, "name": name, "train": {**record["train"], "epochs": 2}})
    assert not list(contradictions(context.job, Cluster(name="c")))
    workload, score = MAINS[name]
    workload.main(context)
    joined.metrics.write_left_out()
    records = list(read_lines(RunDir(tmp_path / "run").attempt(0).metrics))
    losses = [record["loss"] for record in records if "loss" in record]
    half = len(losses) // 2
    assert sum(losses[-half:]) < sum(losses[:half])
    assert any(score in record for record in records)
