"""Tables that a user's function loads as `HeteroData`, with times: what is refused, and what is named as unused."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData

from clusterctl.engine.data.own_relations import relations_of
from clusterctl.engine.graph.storage import Graph, LabelledHeteroGraph
from clusterctl.engine.workloads.node_classification import graph_or_relations
from clusterctl.shared.errors import TaskError

SALE = ("sale", "of", "user")


def tables() -> HeteroData:
    data = HeteroData()
    data["user"].x = torch.randn(4, 2)
    data["sale"].num_nodes = 6
    data["sale"].time = torch.tensor([5, 1, 2, 9, 4, 3])
    data[SALE].edge_index = torch.tensor([[0, 1, 2, 3, 4, 5], [0, 0, 1, 0, 2, 0]])
    data["user", "rev_of", "sale"].edge_index = data[SALE].edge_index.flip(0)
    data["user"].seed_index = torch.tensor([0, 1, 0, 3, 2])
    data["user"].seed_time = torch.tensor([4, 7, 9, 6, 8])
    data["user"].y = torch.tensor([0, 1, 0, 1, 1])
    for number, name in enumerate(("train", "val", "test")):
        data["user"][f"{name}_mask"] = torch.arange(5) % 3 == number
    return data


def test_tables_with_times_are_sorted_by_time() -> None:
    data, notes = tables(), list[str]()
    data["user", "likes", "user"].edge_index = torch.tensor([[0, 1, 3, 2], [1, 1, 1, 0]])
    data["user", "likes", "user"].edge_time = torch.tensor([7, 3, 5, 1], dtype=torch.int32)
    graph = relations_of(data, "load", notes)
    assert graph.num_nodes == {"user": 4, "sale": 6}
    assert set(graph.x) == {"user"}
    assert graph.indices[SALE].tolist() == [1, 5, 0, 3, 2, 4]
    assert graph.edge_times[SALE].tolist() == [1, 3, 5, 9, 2, 4]
    assert graph.edge_times["user", "likes", "user"].tolist() == [1, 3, 5, 7]
    assert ("user", "rev_of", "sale") not in graph.edge_times
    assert graph.seed_times is not None
    assert graph.seed_times.tolist() == [4, 7, 9, 6, 8]
    assert graph.nodes_of(torch.tensor([2, 3])).tolist() == [0, 3]
    assert notes == []


def test_an_edge_is_seen_when_it_and_its_source_are() -> None:
    data = tables()
    data[SALE].time = torch.tensor([1, 4, 2, 1, 4, 9])
    graph = relations_of(data, "load")
    assert sorted(zip(graph.edge_times[SALE].tolist(), graph.indices[SALE].tolist(), strict=True)) == [
        *((2, 2), (4, 1), (4, 4), (5, 0), (9, 3), (9, 5))
    ]


def test_without_seed_time_the_time_of_the_node_counts() -> None:
    data = tables()
    del data["user"].seed_time
    data["user"].time = torch.tensor([10, 20, 30, 40])
    graph = relations_of(data, "load")
    assert graph.seed_times is not None
    assert graph.seed_times.tolist() == [10, 20, 10, 40, 30]


def put(kind: Any, attribute: str, value: Any) -> Callable[[HeteroData], None]:
    def change(data: HeteroData) -> None:
        data[kind][attribute] = value

    return change


def without(kind: Any, attribute: str) -> Callable[[HeteroData], None]:
    def change(data: HeteroData) -> None:
        del data[kind][attribute]

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            put("sale", "time", torch.tensor([5, -1, 2, 9, 4, -3])),
            "sale: time is negative in 2 of 6 rows, first in row 1",
        ),
        (
            put("sale", "time", torch.tensor([5.0, torch.nan, 2, 9, 4, 3])),
            "sale: time has NaN or infinity in 1 of 6 rows",
        ),
        (put("sale", "time", torch.tensor([5, 1])), r"sale: time has shape \[2\], not \[6\]"),
        (put("sale", "time", torch.full((6,), 1.7e9)), "sale: time is float32, which does not hold times up to 17"),
        (put("sale", "time", torch.ones(6, dtype=torch.bool)), "sale: time is bool"),
        (put("sale", "time", "today"), "sale: time is str, not a tensor"),
        (put("sale", "time", torch.arange(6.0)), "seed_time and the times of edges are of different types"),
        (
            put(SALE, "time", torch.arange(6.0)),
            "times are of different types: sale in int64, sale, of, user in float64",
        ),
        (put("user", "time", torch.arange(4.0)), "times are of different types"),
        (without("user", "seed_time"), "the data has times, and y has no seed_time"),
        (without("sale", "time"), "it has seed_time, but no nodes or edges at their ends have a time"),
        (put("user", "seed_time", torch.tensor([4, 7])), r"user: seed_time has shape \[2\], not \[5\]"),
        (put("user", "seed_time", torch.zeros(5, dtype=torch.int64)), "all examples of train are at 0 or earlier"),
        (
            put("user", "seed_index", torch.tensor([0, 1, 4, 3, 2])),
            "user: seed_index has nodes from 0 to 4, beyond its 4",
        ),
        (put("user", "seed_index", torch.ones(5)), r"user: seed_index is float32 \[5\]"),
        (put("user", "y", torch.tensor([0, 1])), r"user: y has shape \[2\]"),
        (put("sale", "num_nodes", 0), "sale: num_nodes is 0"),
        (put(SALE, "edge_index", torch.tensor([[6], [0]])), "sale, of, user: edge_index has sources from 6 to 6"),
        (put(SALE, "edge_index", torch.tensor([[0], [-1]])), "sale, of, user: edge_index has targets from -1 to -1"),
        (put(SALE, "edge_index", torch.rand(2, 3)), "sale, of, user: edge_index is float32"),
        (put(("user", "of", "shop"), "edge_index", torch.tensor([[0], [0]])), "there are no nodes of type shop"),
    ],
)
def test_bad_tables_are_refused(change: Callable[[HeteroData], None], message: str) -> None:
    data = tables()
    change(data)
    with pytest.raises(TaskError) as caught:
        relations_of(data, "load")
    assert re.search(message, str(caught.value)), str(caught.value)
    assert str(caught.value).startswith("data.load = load: ")
    assert caught.value.hint


def test_a_type_without_features_needs_a_number_of_nodes() -> None:
    data = tables()
    del data["sale"].num_nodes
    assert relations_of(data, "load").num_nodes["sale"] == 6  # of its times
    del data["sale"].time
    data["user"].pop("seed_time")
    with pytest.raises(TaskError, match="sale: it has no x"):
        relations_of(data, "load")


def test_without_any_edges_the_data_is_refused() -> None:
    data = tables()
    for relation in data.edge_types:
        del data[relation]
    with pytest.raises(TaskError, match="it has no edges"):
        relations_of(data, "load")


def test_what_is_not_used_is_named() -> None:
    data, notes = tables(), list[str]()
    data["user", "knows", "user"].edge_index = torch.empty(2, 0, dtype=torch.int64)
    data["lonely"].x = torch.randn(3, 1)
    data["sale"].price = torch.randn(6)
    data["user"].time = torch.tensor([0, 8, 0, 0])
    data[SALE].edge_attr = torch.randn(6, 1)
    relations_of(data, "load", notes)
    assert sorted(notes) == [
        "no type of edges has nodes of type lonely: they are not used",
        "sale, of, user: edge_attr is not used",
        "sale: price is not used",
        "there are no edges of type user, knows, user",
        "user: 1 of 5 rows are earlier than the node that they are about",
    ]


def test_the_kind_of_graph_is_that_of_the_data() -> None:
    plain = Data(x=torch.randn(3, 2), y=torch.tensor([0, 1, 0]), edge_index=torch.tensor([[0, 1], [1, 2]]))
    for number, name in enumerate(("train", "val", "test")):
        plain[f"{name}_mask"] = torch.arange(3) == number
    assert isinstance(graph_or_relations(plain, "load"), Graph)
    assert isinstance(graph_or_relations(tables(), "load"), LabelledHeteroGraph)
    assert isinstance(graph_or_relations([tables()], "load"), LabelledHeteroGraph)
