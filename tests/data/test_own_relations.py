"""Tables that a user's function loads as `HeteroData`, with times: what is refused, and what is named as unused."""

from __future__ import annotations

import re
import warnings
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from clusterctl.engine.data.own_relations import relations_of
from clusterctl.engine.graph.storage import Graph, LabelledHeteroGraph
from clusterctl.engine.graph.subgraphs import TypedSampler
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


@pytest.mark.parametrize(("kind", "name"), [("sale", "node_time"), (SALE, "edge_time")])
def test_times_may_have_another_name(kind: Any, name: str) -> None:
    given, renamed = tables(), tables()
    times = renamed["sale"].time
    for data, attribute in ((given, "time"), (renamed, name)):
        del data["sale"].time
        data[kind][attribute] = times
    found = [relations_of(data, "load", notes := []) for data in (given, renamed)]
    assert notes == []
    assert torch.equal(found[0].edge_times[SALE], found[1].edge_times[SALE])
    assert torch.equal(found[0].indices[SALE], found[1].indices[SALE])


def test_numbers_may_have_different_types() -> None:
    """Features become float32, numbers of nodes and whole times int64; whole times beside others are refused below."""
    given, mixed = tables(), tables()
    mixed["user"].x = given["user"].x.double()
    mixed["sale"].x, given["sale"].x = torch.arange(6)[:, None], torch.arange(6.0)[:, None]
    mixed["sale"].time = given["sale"].time.to(torch.int32)
    mixed["user"].seed_time = given["user"].seed_time.to(torch.int16)
    mixed["user"].seed_index = given["user"].seed_index.to(torch.int32)
    mixed[SALE].edge_index = given[SALE].edge_index.to(torch.int32)
    one, other = (relations_of(data, "load") for data in (given, mixed))
    for kind in ("user", "sale"):
        assert torch.equal(one.x[kind], other.x[kind])
        assert other.x[kind].dtype == torch.float32
    assert torch.equal(one.edge_times[SALE], other.edge_times[SALE])
    assert torch.equal(one.indices[SALE], other.indices[SALE])
    assert torch.equal(one.nodes_of(one.train), other.nodes_of(other.train))
    assert one.seed_times is not None
    assert other.seed_times is not None
    assert torch.equal(one.seed_times, other.seed_times)


class Frame:
    """As much of a table of pandas as PyG's `from_relbench` and the guide use."""

    def __init__(self, **columns: Any) -> None:
        self._columns = {name: np.asarray(column) for name, column in columns.items()}
        self.columns = list(columns)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, names: Any) -> Any:
        return Column(self._columns[names]) if isinstance(names, str) else Frame(**{n: self._columns[n] for n in names})

    def to_numpy(self, dtype: Any, na_value: float) -> Any:
        return np.stack([*self._columns.values()], 1).astype(dtype)


class Column:
    def __init__(self, values: Any) -> None:
        self.values, self.dtype = values, values.dtype

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, mask: Any) -> Column:
        return Column(self.values[mask.values])

    def __invert__(self) -> Column:
        return Column(~self.values)

    def astype(self, dtype: Any) -> Column:
        return Column(self.values.astype(dtype))

    def isna(self) -> Column:
        return Column(np.isnan(self.values))

    def to_numpy(self, dtype: Any = None) -> Any:
        return self.values if dtype is None else self.values.astype(dtype)


def from_database(times: list[str]) -> HeteroData:
    """What PyG makes of customers, and reviews with times, of which one has no customer."""
    with warnings.catch_warnings(action="ignore"):  # PyG warns that it is experimental
        from torch_geometric.contrib.utils import from_relbench
    customers = Namespace(df=Frame(id=[0, 1, 2], age=[20.0, 30.0, 40.0]), pkey_col="id", time_col=None)
    customers.fkey_col_to_pkey_table = {}
    reviews = Namespace(pkey_col="id", time_col="date", fkey_col_to_pkey_table={"customer": "customers"})
    dates = np.array(times, dtype="datetime64[ns]")
    reviews.df = Frame(id=[0, 1, 2, 3], customer=[0.0, 2.0, np.nan, 0.0], date=dates)
    data: HeteroData = from_relbench(Namespace(table_dict={"customers": customers, "reviews": reviews}))
    return data


class Rows:
    """A task of RelBench: will a customer write a review?"""

    entity_table, entity_col, time_col, target_col = "customers", "customer", "date", "returns"

    def get_table(self, split: str, *, mask_input_cols: bool) -> Any:
        assert not mask_input_cols
        count = {"train": 3, "val": 2, "test": 1}[split]
        dates = np.array(["2024-01-05"] * count, dtype="datetime64[ns]")
        return Namespace(df=Frame(customer=np.arange(count), date=dates, returns=np.arange(count) % 2))


def test_a_database_of_relbench_is_such_data() -> None:
    """By PyG's own `from_relbench` and the function in the guide, down to what a row sees."""
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "time.md").read_text()
    code = next(block for block in guide.split("```python\n") if block.startswith("# from_relbench.py")).split("```")[0]
    own: dict[str, Any] = {}
    exec(code, own)
    data = own["with_task"](from_database(["2024-01-01", "2024-01-02", "2024-01-03", "2024-01-09"]), Rows())
    graph = relations_of(data, "load", notes := [])
    assert notes == []
    assert graph.num_nodes == {"customers": 3, "reviews": 4}
    assert set(graph.x) == {"customers"}  # of reviews, embeddings are learned
    written = ("reviews", "f2p_customer", "customers")
    assert graph.indices[written].tolist() == [0, 3, 1]
    days = (graph.edge_times[written] - int(graph.edge_times[written][0])) // 86_400
    assert days.tolist() == [0, 8, 1]
    assert [len(graph.train), len(graph.val), len(graph.test)] == [3, 2, 1]
    assert graph.seed_times is not None
    sampler = TypedSampler(graph, [-1], 0)
    sample = sampler.sample(
        {"customers": graph.nodes_of(graph.train)}, 0, 0, latest=graph.seed_times[graph.train], examples=graph.train
    )
    assert sorted(sample.places["reviews"].tolist()) == [0, 1]  # not the review of January 9


def test_a_missing_date_of_a_database_is_refused() -> None:
    data = from_database(["2024-01-01", "NaT", "2024-01-03", "2024-01-09"])
    data["customers"].y = torch.tensor([0, 1, 0])
    for number, name in enumerate(("train", "val", "test")):
        data["customers"][f"{name}_mask"] = torch.arange(3) == number
    data["customers"].seed_time = torch.full((3,), 1_800_000_000)
    with pytest.raises(TaskError, match="reviews: time is negative in 1 of 4 rows, first in row 1: a missing time"):
        relations_of(data, "load")


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
    data.seed_time = torch.arange(5)  # not of a type
    data["sale"].price = torch.randn(6)
    data["user"].time = torch.tensor([0, 8, 0, 0])
    data[SALE].edge_attr = torch.randn(5, 1)
    data[SALE].edge_weight = torch.full((6,), torch.nan)
    assert relations_of(data, "load", notes).edge_attr == {}
    assert sorted(notes) == [
        "no type of edges has nodes of type lonely: they are not used",
        "sale, of, user: edge_attr is not used: it has shape [5, 1], and there are 6 edges",
        "sale, of, user: edge_weight is not used: it has NaN or infinity",
        "sale: price is not used",
        "the graph itself: seed_time is not used",
        "there are no edges of type user, knows, user",
        "user: 1 of 5 rows are earlier than the node that they are about",
    ]


def test_times_that_nobody_sees_are_named() -> None:
    data, notes = tables(), list[str]()
    data["click"].time = 10**18 + torch.arange(3)  # in another unit
    data["click", "of", "user"].edge_index = torch.tensor([[0, 1, 2], [0, 1, 2]])
    data["user", "rev_of", "click"].edge_index = torch.tensor([[0, 1, 2], [0, 1, 2]])
    graph = relations_of(data, "load", notes)
    latest = int(graph.seed_times[graph.train].max())  # type: ignore[index]
    first = f"they begin at 1e+18, and the last such example is at {latest}"
    assert notes == [f"no example of train sees edges of type click, of, user: {first}"]
    data, notes = tables(), []
    del data["sale"].time, data["user"].seed_time, data["user", "rev_of", "sale"]
    data["sale"].num_nodes, data["user"].time = 6, torch.arange(4)
    assert not relations_of(data, "load", notes).is_temporal
    assert notes == ["times of user are not used: no edges lead from there, and none has a time"]


def test_the_kind_of_graph_is_that_of_the_data() -> None:
    plain = Data(x=torch.randn(3, 2), y=torch.tensor([0, 1, 0]), edge_index=torch.tensor([[0, 1], [1, 2]]))
    for number, name in enumerate(("train", "val", "test")):
        plain[f"{name}_mask"] = torch.arange(3) == number
    assert isinstance(graph_or_relations(plain, "load"), Graph)
    assert isinstance(graph_or_relations(tables(), "load"), LabelledHeteroGraph)
    assert isinstance(graph_or_relations([tables()], "load"), LabelledHeteroGraph)
