"""Our relational attention against PyG's HeteroConv of GATv2Conv, in float64: outputs, gradients, evaluation."""

from __future__ import annotations

import pytest
import torch
from support.lone_task import lone_task as lone_task
from support.made_graphs import CITES, EMPLOYS, NODES, PAPER, WRITES, WRITTEN_BY, random_academy
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.nn import GATv2Conv, HeteroConv

from clusterctl.engine.graph import attention
from clusterctl.engine.graph.attention import GatConv, Rgat, fan_outs, layer_hops, relations_by_layer
from clusterctl.engine.graph.sampling import HeteroSampler
from clusterctl.engine.graph.storage import EdgeType, LabelledHeteroGraph
from clusterctl.engine.task.task import Task
from clusterctl.engine.training.epoch_plan import Batch
from clusterctl.engine.training.objectives import relation as relation_objective
from clusterctl.engine.training.objectives.relation import RelationNodeClassification
from clusterctl.shared.spec import GatOptions, NodeClassificationTrain

pytestmark = pytest.mark.filterwarnings("ignore:There exist node types:UserWarning")  # PyG warns about institutes
OPTIONS = GatOptions(hidden=3, heads=2, output_heads=2, dropout=0.0, residual=True)
Edges = dict[EdgeType, Tensor]


def pyg_layers(ours: Rgat) -> list[HeteroConv]:
    """PyG's layers with our parameters: `convs[relation]` of layer `i` matches `ours.of(i, relation)`."""
    layers = []
    for i, relations in enumerate(ours.relations):
        own = {relation: ours.of(i, relation) for relation in relations}
        layers.append(HeteroConv({relation: pyg_conv(relation, conv, i) for relation, conv in own.items()}, aggr="sum"))
    return layers


def pyg_conv(relation: EdgeType, ours: GatConv, i: int) -> GATv2Conv:
    heads, channels = ours.attention.shape
    widths = ours.left.in_features, ours.right.in_features
    loops = relation[0] == relation[2]
    theirs = GATv2Conv(widths, channels, heads, concat=i < 2, add_self_loops=loops, residual=True).double()
    theirs.load_state_dict(renamed(dict(ours.named_parameters())))
    return theirs


def renamed(ours: dict[str, Tensor]) -> dict[str, Tensor]:
    names = {"left": "lin_l", "right": "lin_r", "residual": "res", "attention": "att", "bias": "bias"}
    parts = {(names[name.split(".")[0]], *name.split(".")[1:]): tensor for name, tensor in ours.items()}
    return {".".join(key): tensor[None] if key == ("att",) else tensor for key, tensor in parts.items()}


def outputs(
    layers: list[HeteroConv], x: dict[str, Tensor], edges: list[Edges], targets: list[dict[str, int]]
) -> Tensor:
    for i, layer in enumerate(layers):
        x = {kind: rows[: targets[i].get(kind)] for kind, rows in layer(x, edges[i]).items()}
        x = x if i == len(layers) - 1 else {kind: F.elu(rows) for kind, rows in x.items()}
    return x[PAPER]


def model_of(graph: LabelledHeteroGraph) -> Rgat:
    torch.manual_seed(1)
    by_layer = relations_by_layer(list(graph.indptr), PAPER, 3)
    model = Rgat({kind: x.size(1) for kind, x in graph.x.items()}, 3, by_layer, OPTIONS).double()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    return model


def test_each_layer_has_only_the_relations_that_are_needed_and_available() -> None:
    first, second, last = relations_by_layer([CITES, WRITES, WRITTEN_BY, EMPLOYS], PAPER, 3)
    assert first == [CITES, WRITES, WRITTEN_BY, EMPLOYS]
    assert second == [CITES, WRITES, WRITTEN_BY]  # no relation leads to institutes, so they only have input rows
    assert last == [CITES, WRITES]
    assert fan_outs([first, second, last], [5, 4, 3]) == {
        CITES: (5, 4, 3),
        WRITES: (5, 4, 3),
        WRITTEN_BY: (0, 4, 3),
        EMPLOYS: (0, 0, 3),
    }


@pytest.mark.parametrize("engine", ["compiled", "plain"])
def test_sampled_layers_match_pyg_including_gradients(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "WORTH_COMPILING", 0 if engine == "compiled" else 1 << 62)
    graph = random_academy()
    model = model_of(graph)
    layers = pyg_layers(model)
    sample = HeteroSampler(graph, fan_outs(model.relations, [4, 3, 2]), 0).sample({PAPER: graph.train}, 1, 0)
    mine, other = ({kind: x.clone().requires_grad_() for kind, x in graph.x.items()} for _ in range(2))
    got = model(layer_hops(sample, self_loops=True), sample.nodes, mine, None)[PAPER]
    edges = [
        {
            relation: torch.stack(
                [block.columns.long(), torch.arange(len(block.nodes)).repeat_interleave(block.sampled)]
            )
            for relation, block in blocks.items()
        }
        for blocks in reversed(sample.hops)
    ]
    targets = [{relation[2]: len(block.nodes) for relation, block in hop.items()} for hop in reversed(sample.hops)]
    expected = outputs(layers, {kind: other[kind][nodes] for kind, nodes in sample.nodes.items()}, edges, targets)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
    got.square().sum().backward()  # type: ignore[no-untyped-call]
    expected.square().sum().backward()
    for kind, x in mine.items():
        torch.testing.assert_close(x.grad, other[kind].grad, rtol=0, atol=1e-12)
    for i, relations in enumerate(model.relations):
        for relation in relations:
            grads = {name: parameter.grad for name, parameter in model.of(i, relation).named_parameters()}
            assert all(grad is not None for grad in grads.values())
            for name, grad in renamed(grads).items():  # type: ignore[arg-type]
                theirs = layers[i].convs[relation].get_parameter(name).grad
                torch.testing.assert_close(grad, theirs, rtol=0, atol=1e-12)


def test_training_and_exact_evaluation_match_pyg_on_the_whole_graph(
    lone_task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relation_objective, "_MOST_EDGES", 40)  # many pieces
    graph = random_academy()
    options: dict[str, object] = {"hidden": 3, "heads": 2, "output_heads": 2, "dropout": 0.0, "residual": True}
    train = NodeClassificationTrain(model="rgat", fan_out=(-1, -1, -1), precision="float64", options=options)
    objective = RelationNodeClassification(graph, train, lone_task)
    edges: Edges = {}
    for relation, indices in graph.indices.items():
        rows = torch.arange(NODES[relation[2]]).repeat_interleave(graph.indptr[relation].diff())
        edges[relation] = torch.stack([indices.long(), rows])
    theirs = outputs(pyg_layers(objective.model), graph.x, [edges] * 3, [NODES] * 3)
    wanted = F.cross_entropy(theirs[graph.train], graph.y[graph.train])
    count = graph.train.numel()
    batch = Batch(1, 0, graph.train, torch.ones(count), count, graph.train)
    torch.testing.assert_close(objective.loss(batch, objective.prepare(batch)), wanted, rtol=0, atol=1e-12)
    correct = {split: int((theirs.argmax(1) == graph.y)[getattr(graph, split)].sum()) for split in ("val", "test")}
    assert {split: score.correct for split, score in objective.evaluate(("val", "test")).items()} == correct


def test_both_dropouts_depend_on_nodes_and_not_on_the_batch(lone_task: Task) -> None:
    graph = random_academy()
    options: dict[str, object] = {"hidden": 3, "heads": 2, "dropout": 0.5, "attention_dropout": 0.5}
    train = NodeClassificationTrain(model="rgat", fan_out=(4, 3), precision="float64", options=options)
    objective = RelationNodeClassification(graph, train, lone_task)

    def rows(seeds: Tensor, step: int) -> Tensor:
        prepared = objective.prepare(Batch(1, step, seeds, torch.ones(len(seeds)), len(seeds), seeds))
        out: Tensor = objective.model(prepared.hops, prepared.nodes, graph.x, (0, 1, step))[PAPER]
        return out

    together, alone = rows(graph.train, 0), rows(graph.train[5:6], 0)
    torch.testing.assert_close(alone, together[5:6], rtol=0, atol=1e-12)
    assert not torch.allclose(rows(graph.train[5:6], 1), alone)
