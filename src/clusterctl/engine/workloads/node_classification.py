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
from clusterctl.engine.data.graph_sets import one_graph
from clusterctl.engine.data.own_data import SPLITS, Given, is_graph, own_recipe, prepared
from clusterctl.engine.data.own_relations import relations_of
from clusterctl.engine.graph.features.arrangement import arranged
from clusterctl.engine.graph.storage import Graph, LabelledHeteroGraph, Recipe, compressed_with_order
from clusterctl.engine.graph.subgraphs import Clusters, clusters_recipe
from clusterctl.engine.task.task import joined
from clusterctl.engine.training.loop import fit
from clusterctl.engine.training.objectives.node import NodeClassification
from clusterctl.engine.training.objectives.own_node import OwnNodeClassification
from clusterctl.engine.training.objectives.relation import RelationNodeClassification
from clusterctl.engine.training.objectives.typed_node import TypedNodeClassification
from clusterctl.shared.errors import Cause, TaskError
from clusterctl.shared.spec import NodeClassificationTrain, NodeTrain

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from clusterctl.engine.task.task import Task
    from clusterctl.shared.node.events import Context
    from clusterctl.shared.spec import Data

_GENERATED_SEED = 0
_MASKS = tuple(f"{split}_mask" for split in SPLITS)


def main(context: Context) -> None:
    train, data = context.job.train, context.job.data
    assert isinstance(train, NodeTrain | NodeClassificationTrain)
    found = recipe_of(data, train)
    with joined(context) as task:
        graph = prepared(task, either, found)
        where: dict[str, Any] = {"cache": data.cache_bytes, "split": data.is_split}
        if isinstance(graph, LabelledHeteroGraph):
            fit(_on_several_types(graph, train, task, where, data), train, task)
        elif isinstance(train, NodeTrain):
            fit(NodeClassification(graph, train, task, **where, host=data.is_on_host), train, task)
        else:
            clusters = None
            if train.batch == "clusters":
                clusters = prepared(task, Clusters, clusters_recipe(found, train.clusters, graph))
            where |= {"host": data.is_on_host, "clusters": clusters}
            fit(OwnNodeClassification(graph, train, task, **where), train, task)


def _on_several_types(
    graph: LabelledHeteroGraph, train: NodeTrain | NodeClassificationTrain, task: Task, where: Any, data: Data
) -> RelationNodeClassification | TypedNodeClassification:
    unsupported = [f"data.{key}" for key in ("order", "disk_precision") if getattr(data, key) != "given"]
    unsupported += ['data.placement = "host"'] if data.is_on_host else []
    if unsupported:
        raise TaskError(f"{unsupported[0]} is not supported on several types of nodes", "remove this key", Cause.USER)
    if isinstance(train, NodeClassificationTrain) and train.model == "rgat":
        return RelationNodeClassification(graph, train, task, **where)
    if isinstance(train, NodeClassificationTrain) and ":" in train.model:
        return TypedNodeClassification(graph, train, task, **where)
    hint = 'use train.model = "rgat" or your own model of workload "node-classification", or return to_homogeneous()'
    raise TaskError(f'the data has several types of nodes, and model "{train.model}" takes one', hint, Cause.USER)


def recipe_of(data: Data, train: NodeTrain | NodeClassificationTrain) -> Recipe[Any]:
    """How to prepare the data set of a job, a graph of one type or of several. Raises TaskError."""
    if not isinstance(train, NodeClassificationTrain):
        return recipe(data)
    if train.model == "rgat":
        return relations_recipe(data, train.generated, train.reading)
    if ":" in train.model and data.load is None and (igb.is_here(data.root) if data.root else train.generated):
        return relations_recipe(data, train.generated)
    return recipe(data, train.reading)


def recipe(data: Data, reading: Mapping[str, str] = MappingProxyType({})) -> Recipe[Any]:
    """How to prepare the data set, once for all ranks and runs; `reading` is for `graph_of`. Raises TaskError."""
    if data.load is not None:
        found: Recipe[Any] = own_recipe(data, graph_or_relations, **reading)
    elif data.root is not None and ogb.is_here(data.root):
        found = ogb.recipe(data.root, undirected=data.undirected)
    else:
        found = reddit.recipe(data.root)
    return arranged(found, data.order, data.disk_precision)


def either(**record: Any) -> Graph | LabelledHeteroGraph:
    """A prepared graph, of one type or of several."""
    return LabelledHeteroGraph(**record) if "node_type" in record else Graph(**record)


def relations_recipe(
    data: Data, generated: float, reading: Mapping[str, str] = MappingProxyType({})
) -> Recipe[LabelledHeteroGraph]:
    """Like `recipe`, for a graph with several types of nodes and edges."""
    if data.load is not None:
        return own_recipe(data, relations_of, **reading)
    if data.root is not None:
        return igb.recipe(data.root, undirected=data.undirected)
    if generated:
        return generated_relations(generated, undirected=data.undirected)
    hint = "set it to a folder in the layout of IGB-heterogeneous, or train.generated to the size of one to generate"
    raise TaskError("this workload needs a data set, and data.root is not set", hint, Cause.DATA)


def generated_relations(scale: float, *, undirected: bool = True) -> Recipe[LabelledHeteroGraph]:
    """How to generate and prepare data like IGB-heterogeneous."""

    def build(scratch: Path) -> LabelledHeteroGraph:
        igb.write(scratch, scale, _GENERATED_SEED)
        return igb.read_raw(scratch, scratch, undirected=undirected)

    return Recipe("igb", {"generated": scale, "undirected": undirected}, build)


def graph_or_relations(
    result: Any, name: str, notes: list[str] | None = None, answers: str = "classes"
) -> Graph | LabelledHeteroGraph:
    """`relations_of` a HeteroData, or of a data set of one, and otherwise `graph_of`. Raises TaskError."""
    is_single = not is_graph(result) and hasattr(result, "__getitem__") and hasattr(result, "__len__")
    first = result[0] if is_single and not isinstance(result, dict) and len(result) == 1 else result
    return (relations_of if is_graph(first, "HeteroData") else graph_of)(result, name, notes, answers)


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
