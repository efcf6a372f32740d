"""Layers of PyG and torch that are computed in another way give the same outputs and gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg

from clusterctl.engine.graph import blocks
from clusterctl.engine.graph.storage import Graph, compressed
from clusterctl.engine.graph.subgraphs import Subgraph, SubgraphSampler
from clusterctl.engine.training.own.layers import Layers

MakeGraph = Callable[..., Graph]


def sample_of(graph: Graph, *, loops: bool) -> Subgraph:
    """With one row for each node, and edges from some nodes to themselves."""
    if loops:
        edges = torch.cat([graph.edge_index, torch.arange(0, graph.num_nodes, 2).repeat(2, 2)], 1)
        indptr, indices = compressed(edges, graph.num_nodes)
        graph = replace(graph, indptr=indptr, indices=indices)
    return SubgraphSampler(graph, (4, 3), 0, merged=True).sample(graph.train, 0, 0)


def results(model: nn.Module, *given: Any) -> list[Tensor]:
    """The outputs and the gradients of a sum that weights each output."""
    model.zero_grad()
    x = given[0].detach().requires_grad_()
    out = model(x, *given[1:])
    (out * torch.arange(out.numel()).view_as(out).sin()).sum().backward()
    return [out.detach(), x.grad, *(one.grad for one in model.parameters())]


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"improved": True}, {"add_self_loops": False}, {"bias": False}, {"normalize": False}, {"cached": True}],
)
def test_a_gcn_gives_what_pygs_own_forward_gives(
    random_graph: MakeGraph, options: dict[str, bool], loops: bool
) -> None:
    graph = random_graph()
    sample = sample_of(graph, loops=loops)
    torch.manual_seed(0)
    model = pyg.GCNConv(7, 5, **options).double()
    given = graph.x.double()[sample.places], sample.edge_index
    weights = torch.rand(sample.num_edges, dtype=torch.float64)
    own = given[1].clone()[:, ::3]  # edges of the model's own making
    for arguments in (given, (*given, weights), (given[0], own)):
        expected = results(copy.deepcopy(model), *arguments)
        changed = copy.deepcopy(model)
        with Layers(changed).of(sample):
            found = results(changed, *arguments)
        assert "forward" not in vars(changed), "as before"
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_what_looks_into_a_gcn_still_sees_its_messages(random_graph: MakeGraph) -> None:
    graph, seen = random_graph(), []
    sample = sample_of(graph, loops=False)
    model = pyg.GCNConv(7, 5).double()
    model.register_message_forward_hook(lambda _, __, messages: seen.append(messages))
    with Layers(model).of(sample):
        model(graph.x.double()[sample.places], sample.edge_index)
    assert seen


@pytest.mark.parametrize("kind", [nn.Linear, pyg.Linear])
@pytest.mark.parametrize("bias", [False, True])
def test_a_linear_map_is_the_same_whichever_library_computes_it(
    random_graph: MakeGraph, monkeypatch: pytest.MonkeyPatch, kind: type[nn.Module], bias: bool
) -> None:
    monkeypatch.setattr(blocks, "_WORTH_COMPILING", 0)
    graph = random_graph()
    sample = sample_of(graph, loops=False)
    model: Any = nn.Sequential(kind(7, 6, bias=bias), nn.ReLU(), kind(6, 5, bias=bias))
    x = graph.x.float()[sample.places]
    for rows in (x, torch.stack([x, x * 2])):
        expected = results(copy.deepcopy(model), rows)
        with Layers(model).of(sample):
            found = results(model, rows)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [14, 17, 19, 20, 21])
def test_gradients_of_weights_in_pieces_are_those_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, rows: int, bias: bool
) -> None:
    """Also those of gradients, and in `torch.func`."""
    monkeypatch.setattr(blocks, "_PIECE", 7)
    given = [torch.randn(shape, dtype=torch.float64) for shape in ((rows, 5), (6, 5), (6,))[: 2 + bias]]
    passed = torch.randn(rows, 6, dtype=torch.float64)

    def in_pieces(*values: torch.Tensor) -> torch.Tensor:
        return blocks._InPieces.apply(*values, *[None] * (3 - len(values)))  # type: ignore[no-untyped-call, no-any-return]

    def gradients(product: Any) -> list[torch.Tensor]:
        values = [value.clone().requires_grad_() for value in given]
        out = product(*values)
        first = torch.autograd.grad(out, values, passed, create_graph=True)
        second = torch.autograd.grad(first[1].square().sum(), values[0])
        mapped = torch.func.grad(lambda weight: product(values[0].detach(), weight, *given[2:]).square().sum())(
            given[1]
        )
        return [out, *first, *second, mapped]

    for one, other in zip(gradients(in_pieces), gradients(nn.functional.linear), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_autocast_and_tensors_without_gradients_compute_the_product_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_WORTH_COMPILING", 0)
    monkeypatch.setattr(blocks, "_PIECE", 2)
    monkeypatch.setattr(blocks, "_WORTH_PIECES", 0)
    rows, weight = torch.randn(9, 5), torch.randn(64, 5, requires_grad=True)
    blocks.linear(rows, weight).sum().backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, rows.sum(0).expand(64, 5))
    with torch.autocast("cpu", torch.bfloat16):
        assert blocks.linear(rows, weight).dtype == torch.bfloat16
    with torch.no_grad():
        assert blocks.linear(rows, weight).grad_fn is None
