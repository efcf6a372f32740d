"""Node classification with the user's own model, on a graph in the layout of Reddit or OGB, or from their own loader.

clusterctl submit ./my-job.toml --follow
torchrun --standalone --nproc-per-node 4 -m clusterctl.workloads.node_classification my-job.toml train.epochs=5

The guide docs/guides/your-own-model.md starts from scratch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterctl.errors import Cause, TaskError
from clusterctl.graph.features.arrangement import arranged
from clusterctl.graph.storage import Graph, LabelledHeteroGraph, Recipe, compressed, shared
from clusterctl.spec import NodeClassificationTrain
from clusterctl.task.task import joined
from clusterctl.training.loop import fit
from clusterctl.training.own_objective import OwnNodeClassification
from clusterctl.training.relation_objective import RelationNodeClassification
from clusterctl.workloads import igb_format, reddit
from clusterctl.workloads.generated import igb_like
from clusterctl.workloads.own_data import own_recipe
from clusterctl.workloads.standalone import run_alone

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from clusterctl.runs.context import Context
    from clusterctl.spec import Data

_GENERATED_SEED = 0
_SPLITS = ("train", "val", "test")
_GRAPH = "Data with x, y, edge_index, train_mask, val_mask and test_mask"
_RELATIONS = "HeteroData with x, and for one node type y, train_mask, val_mask and test_mask"


def main(context: Context) -> None:
    train, data = context.train(NodeClassificationTrain), context.job.data
    if train.model == "rgat":
        prepared = relations_recipe(data, train.generated)
        with joined(context) as task:
            relations = shared(task, LabelledHeteroGraph, *prepared)
            objective = RelationNodeClassification(relations, train, task, data.cache_bytes, split=data.is_split)
            fit(objective, train, task)
        return
    recipe_of_graph = recipe(data)
    with joined(context) as task:
        graph = shared(task, Graph, *recipe_of_graph)
        fit(OwnNodeClassification(graph, train, task, data.cache_bytes, split=data.is_split), train, task)


def recipe(data: Data) -> Recipe[Graph]:
    """How to prepare the data set, once for all ranks and runs. Raises TaskError."""
    if data.load is None:
        return reddit.recipe_of(data)
    return arranged(own_recipe(data, graph_of), data.order, data.disk_precision)


def relations_recipe(data: Data, generated: float) -> Recipe[LabelledHeteroGraph]:
    """Like `recipe`, for a graph with several types of nodes and edges."""
    if data.load is not None:
        return own_recipe(data, relations_of)
    if data.root is not None:
        return igb_format.recipe(data.root, undirected=data.undirected)
    if generated:
        return generated_relations(generated, undirected=data.undirected)
    hint = "set it to a folder in the layout of IGB-heterogeneous, or train.generated to the size of one to generate"
    raise TaskError("this workload needs a data set, and data.root is not set", hint, Cause.DATA)


def generated_relations(scale: float, *, undirected: bool = True) -> Recipe[LabelledHeteroGraph]:
    """How to generate and prepare data like IGB-heterogeneous."""

    def build(scratch: Path) -> LabelledHeteroGraph:
        igb_like.write(scratch, scale, _GENERATED_SEED)
        return igb_format.read_raw(scratch, scratch, undirected=undirected)

    return Recipe("igb", {"generated": scale, "undirected": undirected}, build)


def relations_of(data: Any, name: str) -> LabelledHeteroGraph:
    """The graph in PyG's `HeteroData`, or in a data set of one, with labels of one node type. Raises TaskError."""
    data = _single(data, "edge_types")
    if not hasattr(data, "edge_types"):
        raise _wrong(name, "is not HeteroData", _RELATIONS)
    labelled = [kind for kind in data.node_types if "y" in data[kind]]
    bare = [kind for kind in data.node_types if "x" not in data[kind] or data[kind].x.dim() != 2]
    if len(labelled) != 1 or bare:
        what = f"no features of {', '.join(bare)}" if bare else f"labels of {', '.join(labelled) or 'no node type'}"
        raise _wrong(name, f"has {what}", _RELATIONS)
    (kind,) = labelled
    own = data[kind]
    if missing := [f"{split}_mask" for split in _SPLITS if f"{split}_mask" not in own]:
        raise _wrong(name, f"has no {', '.join(missing)} of {kind}", _RELATIONS)
    masks = {split: own[f"{split}_mask"].nonzero().squeeze(1) for split in _SPLITS}
    counts = {node_type: len(data[node_type].x) for node_type in data.node_types}
    edges = {
        edge_type: compressed(data[edge_type].edge_index.long(), counts[edge_type[2]], counts[edge_type[0]])
        for edge_type in data.edge_types
    }
    return LabelledHeteroGraph(
        counts,
        {edge_type: indptr for edge_type, (indptr, _) in edges.items()},
        {edge_type: indices for edge_type, (_, indices) in edges.items()},
        {node_type: data[node_type].x.float() for node_type in data.node_types},
        kind,
        own.y.long().view(-1),
        **masks,
        num_classes=int(own.y.max()) + 1,
    )


def graph_of(data: Any, name: str) -> Graph:
    """The graph in PyG's `Data`, or in a data set of one: `x`, `y`, `edge_index` and three masks. Raises TaskError."""
    data = _single(data, "edge_index")
    wanted = ("x", "y", "edge_index", *(f"{split}_mask" for split in _SPLITS))
    missing = [attribute for attribute in wanted if getattr(data, attribute, None) is None]
    if missing:
        raise _wrong(name, f"has no {', '.join(missing)}")
    nodes = len(data.x)
    y = data.y.squeeze(-1) if data.y.dim() == 2 else data.y  # OGB's shape of labels
    if data.x.dim() != 2 or tuple(y.shape) != (nodes,):
        raise _wrong(name, f"has x of shape {[*data.x.shape]} and y of shape {[*data.y.shape]}")
    edges: Tensor = data.edge_index
    if edges.numel() and not 0 <= int(edges.min()) <= int(edges.max()) < nodes:
        raise _wrong(name, f"has edges between nodes {int(edges.min())} to {int(edges.max())}, of {nodes}")
    masks = {split: getattr(data, f"{split}_mask").nonzero().squeeze(1) for split in _SPLITS}
    labels = y.long()
    if any(len(chosen) and int(labels[chosen].min()) < 0 for chosen in masks.values()):
        raise _wrong(name, "has a node without a label in a split")
    return Graph(
        *compressed(edges.long(), nodes, shuffled=True),
        x=data.x.float(),
        y=labels,
        **masks,
        num_classes=int(labels.max()) + 1,
    )


def _single(data: Any, attribute: str) -> Any:
    """The graph itself, or the first one of a data set, which does not have the attribute."""
    return data[0] if not hasattr(data, attribute) and hasattr(data, "__getitem__") else data


def _wrong(name: str, what: str, wanted: str = _GRAPH) -> TaskError:
    return TaskError(f"the graph returned by data.load = {name} {what}", f"it must return PyG's {wanted}", Cause.USER)


if __name__ == "__main__":
    run_alone("node-classification", main)
