"""Static blocks against those of `sampling`: the same edges, outputs and gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.nn import functional as F

from clusterctl.engine.graph.attention import Gat
from clusterctl.engine.graph.blocks import Block
from clusterctl.engine.graph.convolutions import GcnConv, Network, SageConv
from clusterctl.engine.graph.hops import sampled_hops
from clusterctl.engine.graph.sampling import NeighborSampler, StaticSampler, worth_static
from clusterctl.engine.graph.storage import Graph, compressed
from clusterctl.shared.spec import GatOptions

MakeGraph = Callable[..., Graph]


def edges_of(block: Block) -> set[tuple[int, tuple[int, ...]]]:
    """Each target with its sampled neighbours, in order."""
    width = block.neighbors.numel() // block.nodes.numel() if hasattr(block, "inner") else None
    found = set()
    for target, count in enumerate(block.sampled.tolist()):
        first = int(block.offsets[target]) if width is None else target * width
        found.add((int(block.nodes[target]), tuple(block.neighbors[first : first + count].tolist())))
    return found


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("fan_out", [(4, 3), (40, 2), (3, 0), (2, 2, 2)])
def test_static_and_ragged_samplers_take_the_same_neighbours(
    random_graph: MakeGraph, fan_out: Sequence[int], replaced: bool
) -> None:
    graph, seeds = random_graph(), torch.arange(5, 25)
    ragged, static = (
        kind(graph, fan_out, 7, replace=replaced).sample(seeds, 1, 2) for kind in (NeighborSampler, StaticSampler)
    )
    for ours, theirs in zip(static, ragged, strict=True):
        assert edges_of(ours) == edges_of(theirs)
        assert ours.neighbors.numel() == ours.nodes.numel() * (ours.neighbors.numel() // ours.nodes.numel())


@pytest.mark.parametrize("kind", [SageConv, GcnConv])
@pytest.mark.parametrize("widths", [[7, 9, 3], [7, 3, 9, 5]])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_network_gives_the_same_results_on_static_blocks(
    random_graph: MakeGraph, kind: type[SageConv | GcnConv], widths: list[int], replaced: bool
) -> None:
    graph, seeds = random_graph(edges=300), torch.arange(20)
    network = Network(kind, widths, dropout=0.5).double()
    fan_out = [4, 3, 5][: len(widths) - 1]
    results: list[list[Tensor]] = []
    for sampler in (NeighborSampler, StaticSampler):
        network.zero_grad()
        outputs = network(sampler(graph, fan_out, 0, replace=replaced).sample(seeds, 0, 0), graph.x, (0, 0, 0))
        outputs.square().sum().backward()
        results.append([outputs.detach(), *(parameter.grad.clone() for parameter in network.parameters())])  # type: ignore[union-attr]
    for static, ragged in zip(*reversed(results), strict=True):
        torch.testing.assert_close(static, ragged, rtol=0, atol=1e-12)


@pytest.mark.parametrize("self_loops", [False, True])
def test_an_attention_network_gives_the_same_results_on_static_blocks(
    random_graph: MakeGraph, self_loops: bool
) -> None:
    graph, seeds = random_graph(edges=300), torch.arange(20)
    loops = torch.stack([torch.arange(60, dtype=torch.int64)] * 2)  # sampled loops are ordinary neighbours
    targets = torch.arange(60).repeat_interleave(graph.degree)
    indptr, indices = compressed(torch.cat([torch.stack([graph.indices.long(), targets]), loops[:, 5:]], 1), 60)
    graph = replace(graph, indptr=indptr, indices=indices)
    options = GatOptions(hidden=4, heads=2, dropout=0.5, attention_dropout=0.3, self_loops=self_loops)
    network = Gat(7, 3, 2, options).double()
    results: list[list[Tensor]] = []
    for sampler in (NeighborSampler, StaticSampler):
        network.zero_grad()
        blocks = sampler(graph, [4, 3, 0], 0).sample(seeds, 0, 0)
        rows = graph.x[blocks[0].nodes]
        for number, hop in enumerate(sampled_hops(blocks, (0, 0, 0))):
            rows = network.layer(number, hop, rows)
        rows.square().sum().backward()
        results.append([rows.detach(), *(parameter.grad.clone() for parameter in network.parameters())])  # type: ignore[union-attr]
    for static, ragged in zip(*reversed(results), strict=True):
        torch.testing.assert_close(static, ragged, rtol=0, atol=1e-12)


def test_a_graph_without_edges_is_supported() -> None:
    nodes = torch.arange(6)
    graph = Graph(
        torch.zeros(7, dtype=torch.int64), torch.empty(0, dtype=torch.int32), torch.randn(6, 7), nodes, *[nodes] * 3, 6
    )
    outputs = Network(SageConv, [7, 9, 3], 0.0)(StaticSampler(graph, [4, 3], 0).sample(nodes, 0, 0), graph.x, (0, 0, 0))
    assert outputs.shape == (6, 3)


@pytest.mark.parametrize("kind", [SageConv, GcnConv])
@pytest.mark.parametrize("cached", [False, True])
def test_a_static_step_reads_no_value_and_no_data_dependent_size(
    random_graph: MakeGraph, kind: type[SageConv | GcnConv], cached: bool
) -> None:
    """On a GPU either would synchronize. The tensors are fake, so reading a value raises an error."""
    graph = random_graph(nodes=2000, edges=20_000)
    network = Network(kind, [7, 16, 3], dropout=0.5).double()

    def step(sampler: type[NeighborSampler | StaticSampler]) -> Tensor:
        mode = FakeTensorMode()
        stored = {name: mode.from_tensor(getattr(graph, name)) for name in ("indptr", "indices", "x", "y")}
        empty, model, seeds = replace(graph, **stored), fake_copy(network, mode), mode.from_tensor(torch.arange(64))
        with mode:
            aggregated = torch.zeros_like(empty.x) if cached else None
            blocks = sampler(empty, (4, 0 if cached else 3), 0).sample(seeds, 0, 0)
            F.cross_entropy(model(blocks, empty.x, (0, 0, 0), aggregated), empty.y[seeds]).backward()
        weight = next(model.parameters())
        assert weight.grad is not None
        return weight.grad

    assert step(StaticSampler).shape == (16, 7)
    with pytest.raises((DataDependentOutputException, DynamicOutputShapeException)):
        step(NeighborSampler)


def test_static_blocks_are_used_on_gpus_unless_layers_are_too_large() -> None:
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert worth_static(gpu, (25, 10), 1024)
    assert worth_static(gpu, (4, 0), 1024)
    assert not worth_static(cpu, (25, 10), 1024)
    assert not worth_static(gpu, (25, -1), 1024)
    assert not worth_static(gpu, (100, 100, 10), 1024)


def fake_copy(network: Network, mode: FakeTensorMode) -> Network:
    """A copy of the network with fake parameters."""
    copied = deepcopy(network)
    for module in copied.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, torch.nn.Parameter(mode.from_tensor(parameter.detach())))
    return copied
