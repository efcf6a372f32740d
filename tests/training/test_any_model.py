"""Models with `forward(x, edge_index)`, unchanged: exact, and the same on any number of ranks."""

from __future__ import annotations

import sys
import tomllib
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clusterctl.engine.graph.storage import Graph
from clusterctl.engine.task.task import Task
from clusterctl.engine.training import pyg_inference
from clusterctl.engine.training.epoch_plan import Batch
from clusterctl.engine.training.own_objective import OwnNodeClassification
from clusterctl.engine.training.pyg_model import Signature
from clusterctl.engine.workloads.node_classification import graph_of
from clusterctl.shared.spec import NodeClassificationTrain, from_record

MakeGraph = Callable[..., Graph]
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "pyg"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.toml"))


@pytest.fixture(autouse=True)
def examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The folder of the examples, as the code of a run."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield
    for name in (*NAMES, "communities"):
        sys.modules.pop(name, None)


def train_of(name: str, **others: Any) -> NodeClassificationTrain:
    record = tomllib.loads((EXAMPLES / f"{name}.toml").read_text())["train"]
    return from_record(NodeClassificationTrain, {**record, "precision": "float64", **others})


def data_of() -> Any:
    return import_module("communities").load()


def called(model: nn.Module, data: Any) -> Tensor:
    """PyG's own call of the model on the whole graph."""
    if Signature(model).takes_data:
        return model(data)  # type: ignore[no-any-return]
    names = [name for name in Signature(model).parameters if name in data]
    return model(**{name: data[name] for name in names})  # type: ignore[no-any-return]


def in_float64(data: Any) -> Any:
    for name in ("x", "edge_weight", "edge_attr"):
        data[name] = data[name].double()
    return data


def outputs_of(objective: OwnNodeClassification, nodes: Tensor) -> Tensor:
    objective.model.eval()
    found = torch.full((objective._graph.num_nodes, objective.classes), torch.nan, dtype=torch.float64)
    with torch.no_grad():
        for some, rows in objective._inference.rows_at_once(nodes):  # type: ignore[union-attr]
            found[some] = rows
    return found[nodes]


@pytest.mark.parametrize("name", NAMES)
def test_the_outputs_are_those_of_pyg_on_the_whole_graph(
    name: str, lone_task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = graph_of(data_of(), "load")
    objective = OwnNodeClassification(graph, train_of(name), lone_task)
    data, nodes = in_float64(data_of()), torch.arange(graph.num_nodes)
    with torch.no_grad():
        ours = outputs_of(objective, nodes)
        torch.testing.assert_close(ours, called(objective.model, data), rtol=0, atol=1e-9)
        # In pieces too, whose number of hops it finds out.
        monkeypatch.setattr(pyg_inference, "free_memory", lambda _: 1 << 26)
        real = pyg_inference.Need.of
        monkeypatch.setattr(
            pyg_inference.Need, "of", lambda self, rows, edges: (1 << 40) * (rows == 1000 and edges == len(graph.indices)) or real(self, rows, edges)
        )
    del ours
