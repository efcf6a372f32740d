"""What PyG's loaders would misread in silence, or crash on: ids out of range, masks and times of other lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData

from clusterctl import pyg

TO = ("a", "to", "b")
TIMES = torch.arange(5)


def ring(**others: Any) -> Data:
    return Data(x=torch.randn(5, 2), edge_index=torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 0]]), **others)


def typed() -> HeteroData:
    data = HeteroData()
    for kind, count in (("a", 4), ("b", 3), ("alone", 2)):
        data[kind].x = torch.randn(count, 2)
    data[TO].edge_index = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 0]])
    data["a", "empty", "a"].edge_index = torch.empty(2, 0, dtype=torch.int64)
    return data


def with_end(data: Any, side: int, node: int, edge_type: Any = None) -> Any:
    store = data[edge_type] if edge_type else data
    store.edge_index[side, 1] = node
    return data


def valued(kind: Any, values: torch.Tensor) -> HeteroData:
    data = typed()
    data[kind].w = values
    return data


def nodes(data: Any = None, **options: Any) -> Any:
    return pyg.NeighborLoader(ring() if data is None else data, [2, 2], batch_size=2, **options)


def links(ends: list[list[int]], **options: Any) -> Any:
    return pyg.LinkNeighborLoader(ring(), [2], edge_label_index=torch.tensor(ends), batch_size=2, **options)


BAD: list[tuple[Callable[[], Any], str]] = [
    (lambda: nodes(input_nodes=torch.tensor([7, 1])), "input_nodes has nodes from 1 to 7, and there are 5 nodes"),
    (lambda: nodes(input_nodes=torch.tensor([-1, 1])), "input_nodes has nodes from -1 to 1"),
    (lambda: nodes(input_nodes=[2, 5]), "input_nodes has nodes from 2 to 5"),
    (lambda: nodes(input_nodes=torch.tensor([1.0])), "input_nodes is float32, where whole numbers are wanted"),
    (lambda: nodes(input_nodes=torch.ones(2, dtype=torch.bool)), r"a mask of shape \[2\], and there are 5 nodes"),
    (lambda: nodes(input_nodes=torch.ones(7, dtype=torch.bool)), r"a mask of shape \[7\], and there are 5 nodes"),
    (lambda: nodes(with_end(ring(), 0, 9)), "edge_index has sources from 0 to 9, and there are 5 nodes"),
    (lambda: nodes(with_end(ring(), 1, 9)), "edge_index has targets from 0 to 9"),
    (lambda: nodes(with_end(ring(), 0, -2)), "edge_index has sources from -2 to 4"),
    (lambda: nodes(with_end(ring(), 1, -2)), "edge_index has targets from -2 to 4"),
    (lambda: nodes(Data(x=torch.randn(5, 2), edge_index=torch.rand(2, 3))), "edge_index is float32"),
    (lambda: nodes(Data(x=torch.randn(5, 2), edge_index=torch.ones(3, 2).long())), r"edge_index has shape \[3, 2\]"),
    (lambda: nodes(ring(time=torch.tensor([0, 1, torch.nan, 3, 4])), time_attr="time"), "time is NaN in 1 of 5 rows"),
    (
        lambda: nodes(ring(time=TIMES), time_attr="time", input_time=TIMES[:2]),
        "input_time has 2 values for the 5 of input_nodes",
    ),
    (
        lambda: nodes(ring(time=TIMES), time_attr="time", input_nodes=TIMES > 2, input_time=TIMES),
        "input_time has 5 values for the 2 of input_nodes",
    ),
    (
        lambda: nodes(ring(time=TIMES), time_attr="time", input_time=torch.full((5,), torch.nan)),
        "input_time is NaN in 5 of 5 rows",
    ),
    (lambda: nodes(ring(w=TIMES[:4]), weight_attr="w"), r"w has shape \[4\], not \[5\]"),
    (lambda: nodes(ring(w=TIMES[:, None]), weight_attr="w"), r"w has shape \[5, 1\], not \[5\]"),
    (lambda: nodes(ring(time=TIMES[:, None]), time_attr="time"), r"time has shape \[5, 1\], not \[5 or 5\]"),
    (lambda: nodes(ring(time=TIMES[:3]), time_attr="time"), r"time has shape \[3\], not \[5 or 5\]"),
    (lambda: nodes(valued("a", TIMES), input_nodes="b", time_attr="w"), r"a: w has shape \[5\], not \[4\]"),
    (lambda: nodes(valued(TO, TIMES), input_nodes="b", time_attr="w"), r"a, to, b: w has shape \[5\], not \[4\]"),
    (lambda: nodes(valued(TO, TIMES), input_nodes="b", weight_attr="w"), r"a, to, b: w has shape \[5\], not \[4\]"),
    (lambda: nodes(typed(), input_nodes="c"), "input_nodes has nodes of type c, and there are a, b, alone"),
    (lambda: nodes(typed(), input_nodes=("b", torch.tensor([5]))), "input_nodes has nodes from 5 to 5"),
    (lambda: nodes(with_end(typed(), 0, 4, TO), input_nodes="b"), "a, to, b: edge_index has sources from 0 to 4"),
    (lambda: nodes(with_end(typed(), 1, 3, TO), input_nodes="b"), "a, to, b: edge_index has targets from 0 to 3"),
    (lambda: pyg.HGTLoader(typed(), [2], ("b", torch.tensor([5]))), "input_nodes has nodes from 5 to 5"),
    (lambda: pyg.HGTLoader(with_end(typed(), 0, 4, TO), [2], "b"), "a, to, b: edge_index has sources from 0 to 4"),
    (lambda: pyg.ShaDowKHopSampler(ring(), 2, 2, torch.tensor([9])), "node_idx has nodes from 9 to 9"),
    (lambda: pyg.ShaDowKHopSampler(ring(), 2, 2, TIMES[:3] > 0), r"node_idx is a mask of shape \[3\]"),
    (lambda: pyg.ShaDowKHopSampler(with_end(ring(), 1, 9), 2, 2), "edge_index has targets from 0 to 9"),
    (
        lambda: pyg.NeighborSampler(ring().edge_index, [2], torch.tensor([-1]), num_nodes=5),
        "node_idx has nodes from -1 to -1",
    ),
    (lambda: pyg.NeighborSampler(with_end(ring(), 0, 5).edge_index, [2], num_nodes=5), "sources from 0 to 5"),
    (lambda: pyg.ClusterData(with_end(ring(), 0, 5), 2, log=False), "edge_index has sources from 0 to 5"),
    (lambda: links([[0, 9], [1, 2]]), "edge_label_index has sources from 0 to 9"),
    (lambda: links([[0, 1], [1, -2]]), "edge_label_index has targets from -2 to 1"),
    (
        lambda: links([[0, 1], [1, 2]], edge_label=torch.ones(1)),
        "edge_label has 1 values for the 2 of edge_label_index",
    ),
]


@pytest.mark.parametrize(("make", "message"), BAD)
def test_what_cannot_be_meant_is_refused_when_the_loader_is_made(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_times_for_other_numbers_of_seed_edges_are_refused() -> None:
    with pytest.raises(ValueError, match="edge_label_time has 1 values for the 2 of edge_label_index"):
        pyg.LinkNeighborLoader(
            ring(time=TIMES), [2], torch.tensor([[0, 1], [1, 2]]), edge_label_time=TIMES[:1], time_attr="time"
        )


def test_types_without_edges_and_empty_relations_are_sampled_as_by_pyg() -> None:
    for kind, others in (("alone", 0), ("b", 4)):
        (batch,) = pyg.NeighborLoader(typed(), [-1], ("b" if others else kind, None), batch_size=9)
        assert batch["a"].num_nodes == others
        assert batch["a", "empty", "a"].edge_index.numel() == 0


@given(
    start=st.sampled_from([0, 1_700_000_000]),
    given_as=st.sampled_from([torch.int32, torch.int64, torch.float32, torch.float64]),
    seconds=st.integers(0, 12),
)
def test_no_neighbour_is_later_whatever_the_types_of_the_times(start: int, given_as: torch.dtype, seconds: int) -> None:
    """A float32 does not hold seconds since 1970, so int64 beside it must not be compared in float32."""
    times = start + torch.arange(13)
    ends = torch.stack([torch.arange(12), torch.full((12,), 12)])
    data = Data(x=torch.randn(13, 1), edge_index=ends, time=times)
    latest = torch.tensor([start + seconds]).to(given_as)
    (batch,) = pyg.NeighborLoader(
        data, [-1], torch.tensor([12]), input_time=latest, time_attr="time", batch_size=1, disjoint=True
    )
    assert sorted(batch.n_id[1:].tolist()) == [node for node in range(12) if int(times[node]) <= int(latest.double())]
