"""Node classification on one large graph, with GraphSAGE, a GCN, a graph attention network, or the user's own model.

clusterctl submit reddit --set data.root=/data/Reddit --follow
clusterctl submit ./my-job.toml --follow
torchrun --standalone --nproc-per-node 4 -m clusterctl.train reddit jobs/cora.toml train.epochs=5

The graph is in the layout of PyG's Reddit, of the Open Graph Benchmark or of IGB-heterogeneous, or comes from the
user's own loader. The workloads `reddit` and `deep-sage` are this one with other settings: two layers of GraphSAGE that
sample 25 * 10 neighbours per seed, and three that sample 4 * 4 * 4. docs/guides/your-own-model.md starts from scratch.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from clusterctl.engine.data import igb, ogb, reddit
from clusterctl.engine.data.generated import igb_like
from clusterctl.engine.data.own_data import SPLITS, Given, own_recipe, prepared
from clusterctl.engine.data.own_graphs import one_graph
from clusterctl.engine.graph.clusters import Clusters, clusters_recipe
from clusterctl.engine.graph.features.arrangement import arranged
from clusterctl.engine.graph.storage import Graph, LabelledHeteroGraph, Recipe, compressed, compressed_with_order
from clusterctl.engine.task.task import joined
from clusterctl.engine.training.loop import fit
from clusterctl.engine.training.node_objective import NodeClassification
from clusterctl.engine.training.own_objective import OwnNodeClassification
from clusterctl.engine.training.relation_objective import RelationNodeClassification
from clusterctl.shared.errors import Cause, TaskError
from clusterctl.shared.spec import NodeClassificationTrain, NodeTrain

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from clusterctl.shared.node.events import Context
    from clusterctl.shared.spec import Data

_GENERATED_SEED = 0
_MASKS = tuple(f"{split}_mask" for split in SPLITS)


def main(context: Context) -> None:
    train, data = context.job.train, context.job.data
    assert isinstance(train, NodeTrain | NodeClassificationTrain)
    found = recipe(data, train)
    with joined(context) as task:
        graph = prepared(task, either, found)
        where: dict[str, Any] = {"cache": data.cache_bytes, "split": data.is_split}
        if isinstance(graph, LabelledHeteroGraph):
            fit(_on_several_types(graph, train, task, where, data), train, task)
        elif isinstance(train, NodeTrain):
            fit(NodeClassification(graph, train, task, **where), train, task)
        else:
            clusters = None
            if train.batch == "clusters":
                clusters = prepared(task, Clusters, clusters_recipe(found, train.clusters, graph))
            fit(OwnNodeClassification(graph, train, task, **where, clusters=clusters), train, task)


def _on_several_types(
    graph: LabelledHeteroGraph, train: NodeTrain | NodeClassificationTrain, task: Task, where: Any, data: Data
) -> RelationNodeClassification | TypedNodeClassification:
    for key in ("order", "disk_precision"):
        if getattr(data, key) != "given":
            what = f"data.{key} is not supported on several types of nodes"
            raise TaskError(what, "remove this key", Cause.USER)
    if isinstance(train, NodeClassificationTrain) and train.model == "rgat":
        return RelationNodeClassification(graph, train, task, **where)
    if isinstance(train, NodeClassificationTrain) and ":" in train.model:
        return TypedNodeClassification(graph, train, task, **where)
    hint = 'use train.model = "rgat" or your own model of workload "node-classification", or return to_homogeneous()'
    raise TaskError(f'the data has several types of nodes, and model "{train.model}" takes one', hint, Cause.USER)


def recipe(data: Data, train: NodeTrain | NodeClassificationTrain) -> Recipe[Any]:
    """How to prepare the data set, a Graph or LabelledHeteroGraph, once for all ranks and runs. Raises TaskError."""
    reading = train.reading if isinstance(train, NodeClassificationTrain) else {}
    is_own = isinstance(train, NodeClassificationTrain) and ":" in train.model
    if isinstance(train, NodeClassificationTrain) and train.model == "rgat":
        return relations_recipe(data, train.generated)
    if data.load is not None:
        found = own_recipe(data, graph_or_relations if is_own else graph_of, **reading)
    elif data.root is not None and ogb.is_here(data.root):
        found = ogb.recipe(data.root, undirected=data.undirected)
    elif is_own and data.root is not None and igb.is_here(data.root):
        return igb.recipe(data.root, undirected=data.undirected)
    elif is_own and data.root is None and isinstance(train, NodeClassificationTrain) and train.generated:
        return generated_relations(train.generated, undirected=data.undirected)
    else:
        found = reddit.recipe(data.root)
    return arranged(found, data.order, data.disk_precision)


def either(**record: Any) -> Graph | LabelledHeteroGraph:
    """The prepared graph, of one type or several."""
    return LabelledHeteroGraph(**record) if "node_type" in record else Graph(**record)


def graph_or_relations(
    result: Any, name: str, notes: list[str] | None = None, answers: str = "classes"
) -> Graph | LabelledHeteroGraph:
    """`relations_of` a HeteroData, otherwise `graph_of`. Raises TaskError."""
    if is_graph(result, "HeteroData") or (hasattr(result, "__getitem__") and is_graph(_first(result), "HeteroData")):
        return relations_of(result, name, notes, answers)
    return graph_of(result, name, notes, answers)


def relations_recipe(data: Data, generated: float) -> Recipe[LabelledHeteroGraph]:
    """Like `recipe`, for a graph with several types of nodes and edges."""
    if data.load is not None:
        return own_recipe(data, relations_of)
    if data.root is not None:
        return igb.recipe(data.root, undirected=data.undirected)
    if generated:
        return generated_relations(generated, undirected=data.undirected)
    hint = "set it to a folder in the layout of IGB-heterogeneous, or train.generated to the size of one to generate"
    raise TaskError("this workload needs a data set, and data.root is not set", hint, Cause.DATA)


def generated_relations(scale: float, *, undirected: bool = True) -> Recipe[LabelledHeteroGraph]:
    """How to generate and prepare data like IGB-heterogeneous."""

    def build(scratch: Path) -> LabelledHeteroGraph:
        igb_like.write(scratch, scale, _GENERATED_SEED)
        return igb.read_raw(scratch, scratch, undirected=undirected)

    return Recipe("igb", {"generated": scale, "undirected": undirected}, build)


def relations_of(result: Any, name: str, notes: list[str] | None = None) -> LabelledHeteroGraph:
    """The graph in PyG's `HeteroData`, or in a data set of one, with labels of one node type. Raises TaskError."""
    given = Given(name, notes)
    data = given.single(result, "HeteroData")
    labelled = [kind for kind in data.node_types if "y" in data[kind]]
    if len(labelled) != 1:
        hint = "set y, train_mask, val_mask and test_mask of one node type, and leave y of the others out"
        raise given.wrong(f"it has labels y of {', '.join(labelled) or 'no node type'}", hint)
    (kind,) = labelled
    x = {node_type: given.features(data[node_type], f"{node_type}: ") for node_type in data.node_types}
    counts = {node_type: len(rows) for node_type, rows in x.items()}
    edges = {}
    for edge_type in data.edge_types:
        source, _, target = edge_type
        where = f"{', '.join(edge_type)}: "
        if missing := [node_type for node_type in (source, target) if node_type not in counts]:
            raise given.wrong(f"{where}there are no nodes of type {missing[0]}", f"set x of {missing[0]}")
        pairs = given.edges(data[edge_type], counts[target], counts[source], where)
        edges[edge_type] = compressed(pairs, counts[target], counts[source])
        given.unused([data[edge_type]], ["edge_index"], where)
    labels = given.labels(data[kind], counts[kind], f"{kind}: ")
    masks = given.splits(data[kind], labels, f"{kind}: ")
    for node_type in data.node_types:
        given.unused([data[node_type]], ["x", *(("y", *_MASKS) if node_type == kind else ())], f"{node_type}: ")
    return LabelledHeteroGraph(
        counts,
        {edge_type: indptr for edge_type, (indptr, _) in edges.items()},
        {edge_type: indices for edge_type, (_, indices) in edges.items()},
        x,
        kind,
        labels,
        **masks,
        num_classes=given.number_of_classes(labels),
    )


def graph_of(result: Any, name: str, notes: list[str] | None = None, answers: str = "classes") -> Graph:
    """The graph in PyG's `Data`, or in a data set of one: `x`, `y`, `edge_index` and three masks. Raises TaskError.

    Three lists of graphs, for training, validation and testing, are one graph of unconnected parts. `answers` is the
    kind of `y`, as in `Given.answers`.
    """
    given = Given(name, notes)
    data = given.single(one_graph(given, result), "Data")
    x = given.features(data)
    nodes = len(x)
    edges = given.edges(data, nodes, nodes)
    y = given.answers(data, nodes, answers)
    masks = given.splits(data, y)
    given.unused([data], ["x", "y", "edge_index", "edge_weight", "edge_attr", *_MASKS])
    indptr, indices, order = compressed_with_order(edges, nodes, shuffled=True)
    weight, attributes = (given.of_edges(data, name, edges.size(1)) for name in ("edge_weight", "edge_attr"))
    return Graph(
        indptr,
        indices,
        x=x,
        y=y,
        **masks,
        num_classes=given.outputs(y),
        edge_weight=weight if weight is None else weight[order],
        edge_attr=attributes if attributes is None else attributes[order],
    )
