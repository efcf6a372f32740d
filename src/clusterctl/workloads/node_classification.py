"""Node classification with a model of the user's own, on a graph in the layout of Reddit or OGB or one of their own.

clusterctl submit ./my-job.toml --follow
torchrun --standalone --nproc-per-node 4 -m clusterctl.workloads.node_classification my-job.toml train.epochs=5

The guide docs/guides/your-own-model.md begins with nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterctl.errors import Cause, TaskError
from clusterctl.graph.storage import Graph, Recipe, compressed, shared
from clusterctl.spec import NodeClassificationTrain
from clusterctl.task.task import joined
from clusterctl.training.loop import fit
from clusterctl.training.own_objective import OwnNodeClassification
from clusterctl.workloads import reddit
from clusterctl.workloads.own_data import own_recipe
from clusterctl.workloads.standalone import run_alone

if TYPE_CHECKING:
    from torch import Tensor

    from clusterctl.runs.context import Context
    from clusterctl.spec import Data

_SPLITS = ("train", "val", "test")


def main(context: Context) -> None:
    train = context.train(NodeClassificationTrain)
    prepared = recipe(context.job.data)
    with joined(context) as task:
        graph = shared(task, Graph, *prepared)
        fit(OwnNodeClassification(graph, train, task, context.job.data.cache_bytes), train, task)


def recipe(data: Data) -> Recipe[Graph]:
    """How the data set is prepared, once for all ranks and runs. Raises TaskError."""
    if data.load is None:
        return reddit.recipe_of(data)
    return own_recipe(data, graph_of)


def graph_of(data: Any, name: str) -> Graph:
    """The graph in PyG's `Data`, or in a data set of one: `x`, `y`, `edge_index` and three masks. Raises TaskError."""
    if not hasattr(data, "edge_index") and hasattr(data, "__getitem__"):
        data = data[0]
    wanted = ("x", "y", "edge_index", *(f"{split}_mask" for split in _SPLITS))
    missing = [attribute for attribute in wanted if getattr(data, attribute, None) is None]
    if missing:
        raise _wrong(name, f"has no {', '.join(missing)}")
    nodes = len(data.x)
    y = data.y.squeeze(-1) if data.y.dim() == 2 else data.y  # as OGB has labels
    if data.x.dim() != 2 or tuple(y.shape) != (nodes,):
        raise _wrong(name, f"has x of shape {[*data.x.shape]} and y of shape {[*data.y.shape]}")
    edges: Tensor = data.edge_index
    if edges.numel() and not 0 <= int(edges.min()) <= int(edges.max()) < nodes:
        raise _wrong(name, f"has edges between nodes {int(edges.min())} to {int(edges.max())}, of {nodes}")
    masks = {split: getattr(data, f"{split}_mask").nonzero().squeeze(1) for split in _SPLITS}
    labels = y.long()
    if any(len(chosen) and int(labels[chosen].min()) < 0 for chosen in masks.values()):
        raise _wrong(name, "has a node of a split without a label")
    return Graph(
        *compressed(edges.long(), nodes, shuffled=True),
        x=data.x.float(),
        y=labels,
        **masks,
        num_classes=int(labels.max()) + 1,
    )


def _wrong(name: str, what: str) -> TaskError:
    hint = "it is to return PyG's Data with x, y, edge_index, train_mask, val_mask and test_mask"
    return TaskError(f"what data.load = {name} returns {what}", hint, Cause.USER)


if __name__ == "__main__":
    run_alone("node-classification", main)
