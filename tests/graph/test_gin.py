"""Our GIN layer and networks against PyG's on the same graphs, in float64: outputs and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GINConv, global_add_pool, global_mean_pool

from clusterctl.engine.graph.collection import Collection, GraphBatch, joined_graphs
from clusterctl.engine.graph.convolutions import Gin, GinConv, PlainGin, first_sum
from clusterctl.engine.graph.storage import compressed


@pytest.fixture
def both() -> tuple[Collection, GraphBatch, Batch]:
    """Three graphs, one with an isolated node and one without edges, in our format and in PyG's."""
    generator = torch.Generator().manual_seed(0)
    edges = [torch.tensor([[0, 1, 2, 0], [1, 0, 0, 2]]), torch.empty(2, 0, dtype=torch.int64), torch.tensor([[0], [1]])]
    xs = [torch.randn(nodes, 5, generator=generator, dtype=torch.float64) for nodes in (4, 2, 3)]
    bounds, joined = joined_graphs([(len(x), pairs) for x, pairs in zip(xs, edges, strict=True)])
    collection = Collection(bounds, *compressed(joined, 9), torch.cat(xs), torch.tensor([0, 1, 0]), 2)
    theirs = Batch.from_data_list([Data(x=x, edge_index=pairs) for x, pairs in zip(xs, edges, strict=True)])
    return collection, collection.batch(torch.arange(3)), theirs


def gradients(module: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


def test_the_gin_layer_matches_pyg(both: tuple[Collection, GraphBatch, Batch]) -> None:
    collection, batch, graphs = both
    ours = GinConv(nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))).double()
    theirs = GINConv(nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))).double()
    theirs.nn.load_state_dict(ours.network.state_dict())
    rows = [collection.x.clone().requires_grad_() for _ in range(2)]
    outputs = [ours(batch, rows[0]), theirs(rows[1], graphs.edge_index)]
    for output in outputs:
        output.square().sum().backward()
    torch.testing.assert_close(outputs[0], outputs[1], rtol=0, atol=1e-12)
    torch.testing.assert_close(rows[0].grad, rows[1].grad, rtol=0, atol=1e-12)
    torch.testing.assert_close(gradients(ours), gradients(theirs), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("readout", "pool"), [("sum", global_add_pool), ("mean", global_mean_pool)])
def test_gin_networks_match_the_same_networks_with_pyg_layers(
    both: tuple[Collection, GraphBatch, Batch], readout: str, pool: object
) -> None:
    collection, batch, graphs = both
    for ours in (PlainGin(5, 4, 2, 3, readout).double(), Gin(5, 4, 2, 3, readout).double()):
        rows, expected = graphs.x, torch.zeros(3, 2, dtype=torch.float64)
        for depth, layer in enumerate(ours.layers):
            if isinstance(ours, PlainGin) and depth:
                rows = rows.relu()
            rows = GINConv(layer.network)(rows, graphs.edge_index)  # type: ignore[arg-type]
            if isinstance(ours, Gin):
                expected = expected + ours.scores[depth](pool(rows, graphs.batch))  # type: ignore[operator]
        if isinstance(ours, PlainGin):
            expected = pool(rows, graphs.batch)  # type: ignore[operator]
        expected.square().sum().backward()
        wanted = [gradient.clone() for gradient in gradients(ours)]
        ours.zero_grad()
        got = ours.eval()(batch, first_sum(collection, collection.x).select(batch.nodes), ())
        got.square().sum().backward()
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(gradients(ours), wanted, rtol=0, atol=1e-12)


def test_a_graphs_scores_do_not_depend_on_its_batch(both: tuple[Collection, GraphBatch, Batch]) -> None:
    collection, batch, _ = both
    summed = first_sum(collection, collection.x)
    network = Gin(5, 4, 2, 3, "mean", dropout=0.5).double()  # in training mode, with normalisation and dropout
    together = network(batch, summed.select(batch.nodes), (1, 2, 3))
    for number in range(3):
        alone = collection.batch(torch.tensor([number]))
        torch.testing.assert_close(network(alone, summed.select(alone.nodes), (1, 2, 3))[0], together[number])
