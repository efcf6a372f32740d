"""Our GATv2 against PyG's on the same edges, in float64: outputs and gradients, compiled and plain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from torch import Tensor
from torch_geometric.nn import GATv2Conv

from clusterctl.engine.graph import attention
from clusterctl.engine.graph.attention import GatConv
from clusterctl.engine.graph.blocks import Neighborhoods
from clusterctl.engine.graph.hops import Hop, sampled_hops, whole_neighborhoods
from clusterctl.engine.graph.sampling import NeighborSampler
from clusterctl.engine.graph.storage import Graph

MakeGraph = Callable[..., Graph]
WIDTHS = 7, 5


@pytest.fixture(params=["compiled", "plain"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(attention, "WORTH_COMPILING", 0 if request.param == "compiled" else 1 << 62)
    return str(request.param)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def pyg_layer(ours: GatConv, heads: int, *, mean: bool, loops: bool) -> GATv2Conv:
    """PyG's layer with our parameters."""
    has_residual = ours.residual is not None
    theirs = GATv2Conv(*WIDTHS, heads, concat=not mean, add_self_loops=loops, residual=has_residual).double()
    theirs.load_state_dict(
        {
            "lin_l.weight": ours.left.weight,
            "lin_l.bias": ours.left.bias,
            "lin_r.weight": ours.right.weight,
            "lin_r.bias": ours.right.bias,
            "att": ours.attention[None],
            "bias": ours.bias,
        }
        | ({"res.weight": ours.residual.weight} if ours.residual else {})
    )
    return theirs


def layer_of(heads: int, *, mean: bool = False, residual: bool = False) -> GatConv:
    ours = GatConv(*WIDTHS, heads, mean=mean, residual=residual).double()
    for bias in (ours.left.bias, ours.right.bias, ours.bias):
        torch.nn.init.normal_(bias)
    return ours


def outer_hop(graph: Graph) -> Hop:
    """Sampled edges into 20 nodes and their neighbours: some targets have none, some have one."""
    blocks = NeighborSampler(graph, [4, 2, 0], seed=0).sample(torch.arange(20), epoch=0, step=0)
    hop = sampled_hops(blocks, None)[0]
    assert {0, 1, 2} <= set(hop.neighborhoods.offsets.diff().tolist())
    return hop


def assert_close(ours: Tensor | None, theirs: Tensor | None) -> None:
    assert ours is not None
    assert theirs is not None
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize(("heads", "mean"), [(1, False), (3, False), (3, True)])
@pytest.mark.usefixtures("engine", "threads")
def test_a_sampled_hop_matches_pyg_including_gradients(
    random_graph: MakeGraph, heads: int, mean: bool, loops: bool
) -> None:
    graph = random_graph(edges=200)
    hop = outer_hop(graph)
    ours = layer_of(heads, mean=mean, residual=loops)
    theirs = pyg_layer(ours, heads, mean=mean, loops=loops)
    mine, other = (graph.x[hop.nodes].requires_grad_() for _ in range(2))
    edges = hop.neighborhoods.with_self_loops() if loops else hop.neighborhoods
    got = ours.receive(edges, ours.send(mine), mine[: hop.targets])
    expected = theirs((other, other[: hop.targets]), hop.edge_index)
    assert_close(got, expected)
    got.square().sum().backward()  # type: ignore[no-untyped-call]
    expected.square().sum().backward()
    assert_close(mine.grad, other.grad)
    for name, grad in {
        "lin_l.weight": ours.left.weight.grad,
        "lin_l.bias": ours.left.bias.grad,
        "lin_r.weight": ours.right.weight.grad,
        "lin_r.bias": ours.right.bias.grad,
        "bias": ours.bias.grad,
    }.items():
        assert_close(grad, theirs.get_parameter(name).grad)
    assert_close(ours.attention.grad, theirs.att.grad[0])
    if ours.residual is not None:
        assert_close(ours.residual.weight.grad, theirs.res.weight.grad)


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.usefixtures("engine")
def test_pieces_of_the_whole_graph_match_pyg(random_graph: MakeGraph, loops: bool) -> None:
    graph = random_graph()
    targets = torch.arange(graph.num_nodes).repeat_interleave(graph.degree)
    ours = layer_of(2)
    with torch.no_grad():
        expected = pyg_layer(ours, 2, mean=False, loops=loops)(graph.x, torch.stack([graph.indices.long(), targets]))
        sent = ours.send(graph.x)
        seen = 0
        for part, piece in whole_neighborhoods(graph, range(5, 47), 30, 2 if loops else None):
            edges = piece.with_self_loops() if loops else piece
            rows = torch.arange(5, 47)[part]
            assert_close(ours.receive(edges, sent, graph.x[rows]), expected[rows])
            seen += len(rows)
    assert seen == 42


def test_self_loops_are_not_duplicated() -> None:
    edges = Neighborhoods(
        torch.tensor([5, 0, 0, 2, 2], dtype=torch.int32), torch.tensor([0, 3, 3, 5], dtype=torch.int32), torch.arange(3)
    )
    looped = edges.with_self_loops()
    assert looped.columns.tolist() == [5, 0, 1, 2]
    assert looped.offsets.tolist() == [0, 2, 3, 4]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_compiled_attention_with_dropout_matches_plain_torch(random_graph: MakeGraph, dtype: torch.dtype) -> None:
    pytest.importorskip("numba")
    from clusterctl.engine.graph.compiled import attend_compiled

    hop = outer_hop(random_graph(edges=200))
    edges, exact = hop.neighborhoods, torch.promote_types(dtype, torch.float32)
    generator = torch.Generator().manual_seed(0)
    shapes = (hop.nodes.numel(), 15), (hop.targets, 15), (3, 5)
    values = [torch.randn(shape, generator=generator, dtype=exact) for shape in shapes]
    factors = (torch.rand(edges.columns.numel(), 3, generator=generator, dtype=exact) > 0.5).to(exact) * 2
    results = []
    for attend in (attention.attend_plain, partial(attend_compiled, slope=attention.SLOPE)):
        left, right, weights = (value.clone().requires_grad_() for value in values)
        out = attend(left.to(dtype), right.to(dtype), weights, edges, factors)
        assert out.dtype == dtype
        out.to(exact).square().sum().backward()  # type: ignore[no-untyped-call]
        results.append([out, left.grad, right.grad, weights.grad])
    bound = {torch.float32: 1e-4, torch.float64: 1e-12, torch.bfloat16: 0.02}[dtype]
    for plain, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, plain, rtol=bound, atol=bound)
