"""The compiled steps of our GIN networks against the networks in torch: losses and all gradients, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

pytest.importorskip("numba")  # optional for users; `make setup` installs it

from clusterctl.engine.graph.collection import Collection, joined_graphs
from clusterctl.engine.graph.compiled_gin import CompiledGin
from clusterctl.engine.graph.convolutions import Gin, PlainGin, first_sum
from clusterctl.engine.graph.storage import compressed

CLASSES, RANDOMNESS = 3, (5, 1, 7)


def collection_of(nodes: list[int], degree: float, generator: torch.Generator, x: Tensor | None = None) -> Collection:
    """Directed random graphs with these numbers of nodes; some have no edges, and nodes may have none either."""
    graphs = []
    for count in nodes:
        edges = round(count * degree)
        graphs.append((count, torch.randint(max(1, count), (2, edges), generator=generator)))
    bounds, joined = joined_graphs(graphs)
    total = sum(nodes)
    y = torch.randint(CLASSES, (len(nodes),), generator=generator)
    return Collection(bounds, *compressed(joined, total), torch.empty(total, 0) if x is None else x, y, CLASSES)


def both(
    network: Gin | PlainGin, collection: Collection, inputs: Tensor, graphs: Tensor, weights: Tensor
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The loss and the gradients in one vector: compiled, and of torch."""
    table, total = first_sum(collection, inputs), 2 * graphs.numel()
    y = collection.y[graphs]
    compiled = CompiledGin(network, collection, table)
    ours = compiled.differentiated(compiled.rows_of(graphs), y, weights, total, RANDOMNESS)
    batch = collection.batch(graphs)
    scores = network(batch, table.select(batch.nodes), RANDOMNESS)
    loss = (F.cross_entropy(scores, y, reduction="none") * weights).sum() / total
    gradients = torch.autograd.grad(loss, list(network.parameters()))
    return ours, (loss.detach(), torch.cat([gradient.flatten() for gradient in gradients]))


@given(
    nodes=st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(lambda nodes: sum(nodes) > 0),
    degree=st.sampled_from([0.0, 0.5, 3.0]),
    kind=st.sampled_from(["plain", "gin", "gin with dropout"]),
    layers=st.integers(1, 3),
    width=st.sampled_from([1, 2, 5, 16]),
    readout=st.sampled_from(["sum", "mean"]),
    channels=st.sampled_from([1, 4, 12]),
    share=st.sampled_from([0.05, 1.0]),
    seed=st.integers(0, 1 << 20),
)
def test_a_compiled_step_has_the_loss_and_the_gradients_of_the_network(
    nodes: list[int], degree: float, kind: str, layers: int, width: int, readout: str, channels: int, share: float,
    seed: int,
) -> None:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    collection = collection_of(nodes, degree, generator)
    inputs = torch.randn(sum(nodes), channels, generator=generator, dtype=torch.float64)
    inputs *= torch.rand(inputs.shape, generator=generator) < share  # most of them 0: read as a sparse matrix
    made: Any = (channels, width, CLASSES, layers, readout)
    network = PlainGin(*made) if kind == "plain" else Gin(*made, dropout=0.4 * ("dropout" in kind))
    graphs = torch.randint(len(nodes), (4,), generator=generator)  # in any order, and more than once
    weights = torch.rand(4, generator=generator) < 0.8
    ours, theirs = both(network.double(), collection, inputs, graphs, weights)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


def test_float32_is_as_close_as_its_rounding_and_stays_float32() -> None:
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    collection = collection_of([20] * 30, 4.0, generator)
    inputs = torch.randn(600, 7, generator=generator)
    network = Gin(7, 64, CLASSES, 2, "mean", dropout=0.5)
    ours, theirs = both(network, collection, inputs, torch.arange(30), torch.ones(30))
    assert ours[0].dtype == ours[1].dtype == torch.float32
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-6)


def test_padding_alone_has_no_loss_and_no_gradient() -> None:
    """A rank without a graph of its own in a step computes one of weight 0."""
    generator = torch.Generator().manual_seed(0)
    collection = collection_of([3, 4], 2.0, generator)
    inputs = torch.randn(7, 2, generator=generator, dtype=torch.float64)
    ours, _ = both(Gin(2, 4, CLASSES, 2, "sum").double(), collection, inputs, torch.tensor([1]), torch.zeros(1))
    assert ours[0] == 0
    assert not ours[1].any()


def test_scores_far_apart_have_a_finite_loss() -> None:
    generator = torch.Generator().manual_seed(0)
    collection = collection_of([3, 4], 2.0, generator)
    inputs = torch.full((7, 2), 1e5, dtype=torch.float64)
    ours, theirs = both(
        PlainGin(2, 4, CLASSES, 2, "sum").double(), collection, inputs, torch.tensor([0, 1]), torch.ones(2)
    )
    assert ours[0] > 100
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kind", [Gin, PlainGin])
@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_seen_in_the_loss(kind: type[Gin | PlainGin], broken: float) -> None:
    """A rectifier that makes 0 of NaN would hide that a training diverges."""
    generator = torch.Generator().manual_seed(0)
    collection = collection_of([3, 4], 2.0, generator)
    inputs = torch.randn(7, 2, generator=generator, dtype=torch.float64)
    for place in range(len(list(kind(2, 4, CLASSES, 2, "sum").parameters()))):
        network = kind(2, 4, CLASSES, 2, "sum").double()
        with torch.no_grad():
            [*network.parameters()][place].view(-1)[0] = broken
        ours, theirs = both(network, collection, inputs, torch.tensor([0, 1]), torch.ones(2))
        assert ours[0].isfinite() == theirs[0].isfinite()


def test_cut_graphs_name_each_distinct_input_once() -> None:
    generator = torch.Generator().manual_seed(0)
    collection = collection_of([2, 0, 3], 0.0, generator)
    inputs = torch.tensor([[1.0], [2.0], [2.0], [1.0], [3.0]])
    compiled = CompiledGin(Gin(1, 4, CLASSES, 1, "sum"), collection, first_sum(collection, inputs))
    for _ in range(2):  # the first call leaves nothing behind
        rows = compiled.rows_of(torch.tensor([2, 1, 0]))
        assert rows.bounds.tolist() == [0, 3, 3, 5]
        assert rows.places.tolist() == [0, 1, 2, 1, 0]
        assert rows.inputs.size == 3
        assert rows.edges == 0
