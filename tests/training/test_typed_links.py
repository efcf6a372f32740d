"""Link prediction on several types with the user's own encoder and decoder: exact, beside PyG, on ranks, mistakes."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from support.own_nets import BUYS, SOLD_TO, ShopNet, shop, split_shop
from support.ranks import run_program
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import HeteroData, InMemoryDataset

from clusterctl.engine.data.own_links import links_of, typed_link_graph
from clusterctl.engine.graph.links import TypedLinkGraph
from clusterctl.engine.graph.storage import load, save
from clusterctl.engine.task.task import Task
from clusterctl.engine.training.epoch_plan import Batch, EpochPlan
from clusterctl.engine.training.loop import fit
from clusterctl.engine.training.objectives.link import auc
from clusterctl.engine.training.objectives.typed_link import TypedLinkPrediction, TypedLinkSample
from clusterctl.engine.training.own import pyg_inference
from clusterctl.shared.errors import TaskError
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.spec import LinkPredictionTrain

TRAIN = LinkPredictionTrain(
    model="users:ShopNet", fan_out=(-1, -1), batch_size=16, precision="float64", embedding_width=5
)
KNOWS = ("user", "knows", "user")
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "pyg"


class OfBoth(ShopNet):
    def decode(self, z_user: Tensor, z_item: Tensor, edge_label_index: Tensor) -> Tensor:  # type: ignore[override]
        return super().decode({"user": z_user, "item": z_item}, edge_label_index)


class OfPairs(ShopNet):
    def decode(self, z_user: Tensor, z_item: Tensor) -> Tensor:  # type: ignore[override]
        return super().decode({"user": z_user, "item": z_item}, torch.arange(len(z_user)).expand(2, -1))


class OfForward(ShopNet):
    """An encoder that is `forward`, on PyG's HeteroData."""

    def __getattribute__(self, name: str) -> Any:
        if name == "encode":
            raise AttributeError(name)
        return super().__getattribute__(name)

    def forward(self, data: HeteroData) -> dict[str, Tensor]:
        return ShopNet.encode(self, data.x_dict, data.edge_index_dict)


class Products(ShopNet):
    """No decoder: products of rows."""

    def __getattribute__(self, name: str) -> Any:
        if name == "decode":
            raise AttributeError(name)
        return super().__getattribute__(name)


class Uneven(ShopNet):
    """Rows of items are wider than those of users."""

    def encode(self, x_dict: Any, edge_index_dict: Any) -> dict[str, Tensor]:
        rows = super().encode(x_dict, edge_index_dict)
        return {"user": rows["user"], "item": torch.cat([rows["item"], rows["item"][:, :2]], 1)}

    def decode(self, z_dict: Any, edge_label_index: Tensor) -> Tensor:
        assert (z_dict["user"].size(1), z_dict["item"].size(1)) == (6, 8)
        return super().decode({"user": z_dict["user"], "item": z_dict["item"][:, :6]}, edge_label_index)


class Friends(ShopNet):
    """For pairs of users."""

    def decode(self, z_dict: Any, edge_label_index: Tensor) -> Tensor:
        return super().decode({"user": z_dict["user"], "item": z_dict["user"]}, edge_label_index)


@pytest.fixture(autouse=True)
def users() -> Iterator[types.ModuleType]:
    """The user's module."""
    module = types.ModuleType("users")
    vars(module).update({name: value for name, value in globals().items() if isinstance(value, type)})
    sys.modules["users"] = module
    yield module
    del sys.modules["users"]


@pytest.fixture(scope="module")
def parts() -> dict[str, HeteroData]:
    return dict(zip(("train", "val", "test"), split_shop(), strict=True))


def objective(parts: Any, task: Task, **changes: Any) -> TypedLinkPrediction:
    return TypedLinkPrediction(typed_link_graph(parts, "my:load"), replace(TRAIN, **changes), task)


def rows_by_pyg(trained: TypedLinkPrediction, data: HeteroData, *others: Any) -> dict[str, Tensor]:
    """The rows that a plain call gives on the whole graph, with these `others` as further arguments."""
    network = trained._own.model
    x = {kind: data[kind].x.double() for kind in ("user", "item")}
    embeddings = trained._rows._embeddings
    assert embeddings is not None
    x |= embeddings.rows(embeddings.wanted({"tag": torch.arange(data["tag"].num_nodes)}))
    return network.encode(x, data.edge_index_dict, *others)  # type: ignore[operator, no-any-return]


def scores_by_pyg(trained: TypedLinkPrediction, data: HeteroData, edge_type: Any = BUYS) -> dict[int, Tensor]:
    """The scores of the pairs of a split with each label."""
    rows, store = rows_by_pyg(trained, data), data[edge_type]
    return {
        label: trained._decoder.scores(rows, store.edge_label_index[:, store.edge_label == label]) for label in (1, 0)
    }


def assert_scores_are_pygs(trained: TypedLinkPrediction, parts: Any, edge_type: Any = BUYS) -> None:
    trained.model.eval()
    for which, score in trained.evaluate(["val", "test"]).items():
        with torch.no_grad():
            found = scores_by_pyg(trained, parts[which], edge_type)
        assert len(found[0]) > 5
        assert score == auc(found[1], found[0])


@pytest.mark.parametrize("model", ["ShopNet", "OfBoth", "OfPairs", "Products", "Uneven"])
def test_each_split_is_scored_on_its_own_messages_as_by_pyg(parts: Any, lone_task: Task, model: str) -> None:
    assert_scores_are_pygs(objective(parts, lone_task, model=f"users:{model}"), parts)


def test_rows_are_those_of_pyg_whole_and_in_pieces(parts: Any, lone_task: Task, monkeypatch: Any) -> None:
    whole = objective(parts, lone_task)
    monkeypatch.setattr(pyg_inference.PygInference, "_planned", lambda *_: (2, 1.0, 1.0))
    monkeypatch.setattr(pyg_inference, "_SEEDS_AT_ONCE", 17)
    pieces = objective(parts, lone_task, model="users:Uneven")
    for trained in (whole, pieces):
        trained.model.eval()
        trained._rows.begin_evaluation()
        with torch.no_grad():
            for which, inference in trained._inferences.items():
                expected = rows_by_pyg(trained, parts[which])
                table = trained._encoded(inference).fetch(torch.arange(70)).rows()
                for kind, rows in trained._own.by_type(table, 40).items():
                    torch.testing.assert_close(rows, expected[kind], rtol=0, atol=1e-9)


class Attributed(ShopNet):
    """Adds a number of each edge to its target's row."""

    def encode(  # type: ignore[override]
        self, x_dict: Any, edge_index_dict: Any, edge_attr_dict: Any
    ) -> dict[str, Tensor]:
        rows = super().encode(x_dict, edge_index_dict)
        for relation, values in edge_attr_dict.items():
            targets, own = edge_index_dict[relation][1], rows[relation[2]]
            rows[relation[2]] = own.index_add(0, targets, values[:, None].expand(-1, own.size(1)))
        return rows


def test_numbers_of_edges_are_those_of_the_split(lone_task: Task, monkeypatch: Any) -> None:
    attributed = split_shop()
    for data in attributed:
        for relation in data.edge_types:
            sources, targets = data[relation].edge_index
            data[relation].edge_attr = torch.sin(sources + 100.0 * targets)
    parts = dict(zip(("train", "val", "test"), attributed, strict=True))
    monkeypatch.setattr(pyg_inference.PygInference, "_planned", lambda *_: (2, 1.0, 1.0))
    trained = objective(parts, lone_task, model="users:Attributed")
    trained.model.eval()
    trained._rows.begin_evaluation()
    for which, inference in trained._inferences.items():
        data = parts[which]
        attributes = {one: values.double() for one, values in data.edge_attr_dict.items()}
        with torch.no_grad():
            expected = rows_by_pyg(trained, data, attributes)
            table = trained._encoded(inference).fetch(torch.arange(70)).rows()
        for kind, rows in trained._own.by_type(table, 40).items():
            torch.testing.assert_close(rows, expected[kind], rtol=0, atol=1e-6)
    for batch in EpochPlan(trained.seeds, 16, 0, 0, 1).batches(1):  # some edges are hidden
        (sample,) = trained.prepare(batch).inputs
        for relation, values in sample.of_edges("edge_attr").items():
            rows, targets = sample.edge_index[relation]
            ends = sample.places[relation[0]][rows], sample.places[relation[2]][targets]
            torch.testing.assert_close(values, torch.sin(ends[0] + 100.0 * ends[1]))


def test_how_many_hops_the_rows_of_both_ends_depend_on_is_found_out(
    parts: Any, lone_task: Task, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    of = pyg_inference.Need.of
    monkeypatch.setattr(
        pyg_inference.Need, "of", lambda self, rows, edges: 1 << 50 if rows == 76 else of(self, rows, edges)
    )
    trained = objective(parts, lone_task, fan_out=(4,))
    assert "is evaluated in pieces of 2 hops" in capsys.readouterr().out
    assert_scores_are_pygs(trained, parts)


def whole_step(trained: TypedLinkPrediction) -> Batch:
    seeds = trained.seeds
    return Batch(1, 0, seeds, torch.ones(seeds.numel()), seeds.numel(), seeds)


def test_the_loss_is_that_of_pyg_without_the_edges_of_the_examples(parts: Any, lone_task: Task) -> None:
    """Half of the edges are examples; in either direction, they and their copies carry no messages."""
    split = split_shop(disjoint_train_ratio=0.5)
    train = split[0]
    store = train[BUYS]
    copies = store.edge_label_index[:, :9]
    store.edge_index = torch.cat([store.edge_index, copies], 1)
    train[SOLD_TO].edge_index = torch.cat([train[SOLD_TO].edge_index, copies[:, :4].flip(0)], 1)
    trained = objective(split, lone_task, negatives=2)
    batch = whole_step(trained)
    prepared = trained.prepare(batch)
    loss = trained.loss(batch, prepared)
    examples = {*map(tuple, store.edge_label_index.t().tolist())}
    left = train.clone()
    for relation, turned in ((BUYS, 0), (SOLD_TO, 1)):
        ends = train[relation].edge_index
        pairs = (ends.flip(0) if turned else ends).t().tolist()
        left[relation].edge_index = ends[:, [tuple(pair) not in examples for pair in pairs]]
        assert left[relation].edge_index.size(1) < ends.size(1)
    (sample,) = prepared.inputs
    ends = [sample.places[kind][own] for kind, own in zip(("user", "item"), prepared.scored.pairs, strict=True)]
    count = store.edge_label_index.size(1)
    assert torch.equal(torch.stack(ends)[:, :count], store.edge_label_index[:, batch.seeds])
    assert prepared.scored.y.tolist() == [1.0] * count + [0.0] * 2 * count
    assert not {*zip(*(side[count:].tolist() for side in ends), strict=True)} & examples
    embeddings = trained._rows._embeddings
    assert embeddings is not None
    embeddings.table.collect()
    scores = trained._own.model.decode(rows_by_pyg(trained, left), torch.stack(ends)).view(-1)  # type: ignore[operator]
    expected = F.binary_cross_entropy_with_logits(scores, prepared.scored.y)
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-9)


def messages(prepared: TypedLinkSample) -> set[tuple[int, int]]:
    """The (user, item) pairs along which a message is passed, in either direction."""
    (sample,) = prepared.inputs
    users, items = sample.places["user"], sample.places["item"]
    there, back = sample.edge_index[BUYS], sample.edge_index[SOLD_TO]
    found = {*zip(users[there[0]].tolist(), items[there[1]].tolist(), strict=True)}
    return found | {*zip(users[back[1]].tolist(), items[back[0]].tolist(), strict=True)}


@pytest.mark.parametrize("world_size", [1, 4])
def test_no_example_of_the_global_batch_carries_a_message(parts: Any, lone_task: Task, world_size: int) -> None:
    trained = objective(parts, lone_task, fan_out=(3, 2))
    plans = [EpochPlan(trained.seeds, 16, 0, rank, world_size) for rank in range(world_size)]
    everything: set[tuple[int, int]] = set()
    for batches in zip(*(plan.batches(1) for plan in plans), strict=True):
        hidden = {*map(tuple, trained._examples(batches[0].everyone).t().tolist())}
        passed = set().union(*(messages(trained.prepare(batch)) for batch in batches))
        assert not hidden & passed
        everything |= passed
    assert everything


def test_edges_between_nodes_of_one_type_are_predicted_too(lone_task: Task) -> None:
    parts = dict(zip(("train", "val", "test"), split_shop(edge_types=[KNOWS], rev_edge_types=[None]), strict=True))
    trained = objective(parts, lone_task, model="users:Friends", negatives=20)
    assert_scores_are_pygs(trained, parts, KNOWS)
    for batch in EpochPlan(trained.seeds, 8, 0, 0, 1).batches(1):
        prepared = trained.prepare(batch)
        (sample,) = prepared.inputs
        sources, targets = prepared.scored.pairs[:, prepared.scored.y == 0]
        assert not (sources == targets).any()
        pairs = trained._examples(batch.everyone)
        hidden = {*map(tuple, torch.cat([pairs, pairs.flip(0)], 1).t().tolist())}
        assert not hidden & {*map(tuple, sample.places["user"][sample.edge_index[KNOWS]].t().tolist())}


@pytest.mark.long
def test_the_best_score_is_nearly_reached_and_not_exceeded(lone_task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    example = import_module("purchases")
    graph = typed_link_graph(example.load(), "purchases:load", notes := [])
    assert [note for note in notes if "leak" in note] == []
    train = LinkPredictionTrain(
        model="purchases:Net", fan_out=(10, 5), epochs=6, batch_size=256, lr=0.01, embedding_width=16
    )
    score = fit(TypedLinkPrediction(graph, train, lone_task), train, lone_task)
    sys.modules.pop("purchases")
    spread = 3 * (1 / (6 * graph.test.size(1))) ** 0.5  # of a mean of so many ranks
    assert example.BEST - 0.1 < score.value < example.BEST + spread


def test_features_on_disk_give_the_same(parts: Any, lone_task: Task, tmp_path: Path) -> None:
    graph = typed_link_graph(parts, "my:load")
    save(graph, tmp_path / "graph.pt")
    train = replace(TRAIN, model="support.own_nets:ShopNet", fan_out=(4, 3), epochs=2, batch_size=60, lr=0.02)
    scores = [
        fit(TypedLinkPrediction(one, train, lone_task, cache), train, lone_task)
        for one, cache in ((graph, None), (load(TypedLinkGraph, tmp_path / "graph.pt"), 300))
    ]
    assert scores[0] == scores[1]


def test_data_may_be_the_users_alone(lone_task: Task) -> None:
    """Forward on HeteroData, examples that are all edges, negatives that are drawn, or that belong to pairs."""
    split = split_shop()
    for name in ("edge_label", "edge_label_index"):
        del split[0][BUYS][name]
    del split[1][BUYS].edge_label
    split[2][BUYS].edge_label_index = split[2][BUYS].edge_label_index[:, :10]
    split[2][BUYS].edge_label = None
    split[2][BUYS].dst_neg_index = torch.arange(30).view(10, 3)
    trained = TypedLinkPrediction(
        typed_link_graph(split, "my:load", notes := []),
        replace(TRAIN, model="users:OfForward", metric="mrr"),
        lone_task,
    )
    assert trained.seeds.numel() == split[0][BUYS].edge_index.size(1)
    assert [note for note in notes if note.startswith("val: no pair")]
    batch = whole_step(trained)
    assert trained.loss(batch, trained.prepare(batch)).isfinite()
    trained._rows._embeddings.table.collect()  # type: ignore[union-attr]
    assert trained.evaluate(["val", "test"])["test"].total == 40


# Data.


def test_what_a_split_leaks_is_named() -> None:
    graph = typed_link_graph(split_shop(), "my:load", notes := [])
    assert graph.reverse == [SOLD_TO]
    assert notes == [f"{SOLD_TO} is {BUYS} the other way round: examples pass no messages there either"]
    assert not graph.val_indptr
    assert graph.test_indptr
    typed_link_graph(split_shop(rev_edge_types=[None]), "my:load", notes := [])
    leaks = [note for note in notes if note.startswith("leak: ")]
    assert len(leaks) == 2
    assert all(f"in edge_index of {SOLD_TO}" in note for note in leaks)
    train, val, test = split_shop()
    val[BUYS].edge_label_index[:, :3] = train[BUYS].edge_label_index[:, :3]
    typed_link_graph((train, val, test), "my:load", notes := [])
    assert any("pairs to predict in val are examples of train" in note for note in notes)


def test_a_reverse_is_found_by_its_edges_too() -> None:
    data = shop()
    data["item", "sold_to", "user"].edge_index = data[SOLD_TO].edge_index
    data["item", "seen_by", "user"].edge_index = data[SOLD_TO].edge_index[:, 1:]
    del data[SOLD_TO]
    for part in (parts := [data.clone() for _ in range(3)]):
        part[BUYS].edge_label_index = data[BUYS].edge_index[:, :5]
    assert typed_link_graph(parts, "my:load").reverse == [("item", "sold_to", "user")]


def test_times_are_named_as_not_used() -> None:
    parts = split_shop()
    for part in parts:
        part["user"].time, part[BUYS].time = torch.arange(40), torch.arange(part[BUYS].edge_index.size(1))
        part["item"].price = torch.ones(30)
    typed_link_graph(parts, "my:load", notes := [])
    assert f"times of user, {BUYS} are not used: examples see edges of any time" in notes
    assert "item: price is not used" in notes
    assert "time" in parts[0]["user"]  # the user's data is left alone


def test_the_kind_of_graph_is_that_of_the_data() -> None:
    assert isinstance(links_of(split_shop(), "load"), TypedLinkGraph)
    assert isinstance(links_of(dict(zip(("train", "val", "test"), split_shop(), strict=True)), "load"), TypedLinkGraph)


def put(which: int, kind: Any, attribute: str, value: Any) -> Callable[[list[HeteroData]], None]:
    def change(parts: list[HeteroData]) -> None:
        parts[which][kind][attribute] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put(1, "user", "x", torch.zeros(40, 3)), "val: user: x is not that of train"),
        (put(2, "tag", "num_nodes", 7), "test: its nodes are not those of train"),
        (put(1, "tag", "x", torch.zeros(6, 1)), "val: its nodes are not those of train"),
        (put(1, ("tag", "of", "user"), "edge_index", torch.zeros(2, 1, dtype=torch.int64)), "only one of it and train"),
        (
            put(1, BUYS, "edge_label_index", torch.tensor([[40], [0]])),
            "val: user, buys, item: edge_label_index has sour",
        ),
        (
            lambda parts: put(1, KNOWS, "edge_attr", torch.ones(parts[1][KNOWS].num_edges))(parts),
            "val: only one of it and train has edge_attr of .'user', 'knows', 'user'. that can be used",
        ),
        (put(1, BUYS, "edge_label_index", torch.tensor([[0], [30]])), "edge_label_index has targets from 30 to 30"),
        (put(1, BUYS, "edge_label", torch.ones(3)), r"val: user, buys, item: edge_label has shape \[3\]"),
        (put(1, BUYS, "edge_label", torch.full((40,), 4)), "edge_label has values such as 4|edge_label has shape"),
        (put(1, KNOWS, "edge_label_index", torch.zeros(2, 1, dtype=torch.int64)), "val: it has edge_label_index of"),
        (put(0, KNOWS, "edge_label_index", torch.zeros(2, 1, dtype=torch.int64)), "train: it has edge_label_index of"),
        (
            put(0, BUYS, "edge_index", torch.tensor([[0], [-1]])),
            "train: user, buys, item: edge_index has targets from -1",
        ),
        (put(0, "user", "x", torch.full((40, 3), torch.nan)), "train: user: x has NaN"),
        (lambda parts: parts[1][BUYS].pop("edge_label_index"), "val: user, buys, item: it has no edge_label_index"),
        (
            lambda parts: [parts[1][BUYS].pop(f"edge_label{end}") for end in ("", "_index")],
            "edge_label_index of no type",
        ),
        (lambda parts: parts[2].__delitem__("user"), "test: "),
    ],
)
def test_bad_splits_are_refused(change: Callable[[list[HeteroData]], None], message: str) -> None:
    parts = [part.clone() for part in split_shop()]
    change(parts)
    with pytest.raises(TaskError, match=message) as caught:
        typed_link_graph(parts, "my:load")
    assert caught.value.hint


class Stored(InMemoryDataset):
    """A data set of one graph."""

    def __init__(self) -> None:
        super().__init__()
        self.data, self.slices = self.collate([shop()])


def test_one_graph_of_several_types_is_refused() -> None:
    for one in (shop(), [shop()], Stored()):
        with pytest.raises(TaskError, match="which edges are to be predicted") as caught:
            links_of(one, "my:load")
        assert "RandomLinkSplit(edge_types=" in caught.value.hint


# Models.


def changed(**methods: Any) -> type:
    return type("Changed", (ShopNet,), methods)


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ({"encode": lambda self, x_dict, edge_index_dict, edge_label_index: x_dict}, "nobody fills edge_label_index"),
        ({"encode": lambda self, x_dict, edge_index_dict, batch_size: x_dict}, "there are seeds of user and of item"),
        ({"encode": lambda self, x_dict, edge_index_dict: x_dict["user"]}, "encode gives Tensor"),
        (
            {"encode": lambda self, x_dict, edge_index_dict: {"user": self.encoders["user"](x_dict["user"])}},
            "encode gives rows of user",
        ),
        ({"encode": lambda self, *rest: None}, r"it is unknown what \*rest takes"),
        (
            {"encode": lambda self, x_dict, edge_index_dict: {k: x[1:] for k, x in x_dict.items()}},
            "where a row for each",
        ),
        ({"layer": lambda self, i, hop, x: x}, "has layer"),
    ],
)
def test_an_encoder_that_cannot_be_used_is_named(
    methods: Any, message: str, parts: Any, users: Any, lone_task: Task
) -> None:
    users.Net = changed(**methods)
    with pytest.raises(TaskError, match=message):
        objective(parts, lone_task, model="users:Net")


@pytest.mark.parametrize(
    ("decode", "message"),
    [
        (lambda self, z_dict, pos_edge_index, neg_edge_index, more: None, "it must take two arguments"),
        (lambda self, z, one, two: None, "it must take two arguments"),
        (lambda self, *rest: None, "it must take two arguments"),
        (lambda self, z_dict, edge_label_index: z_dict["user"], "decode gives a tensor"),
        (lambda self, z_dict, edge_label_index: z_dict["tag"], "decode fails on .* user .*, item "),
    ],
)
def test_a_decoder_that_cannot_be_used_is_named(
    decode: Any, message: str, parts: Any, users: Any, lone_task: Task
) -> None:
    users.Net = changed(decode=decode)
    with pytest.raises(TaskError, match=message):
        objective(parts, lone_task, model="users:Net").evaluate(["val"])


# Ranks.


PROGRAM = """
import json
import torch_geometric  # before the ranks are forked
from dataclasses import replace
from clusterctl.engine.graph.storage import shared
from clusterctl.shared.node.events import Context
from clusterctl.shared.record.layout import current_attempt
from clusterctl.shared.spec import Data, LinkPredictionTrain
from clusterctl.engine.task.task import joined
from clusterctl.engine.training.loop import fit
from clusterctl.engine.training.objectives.typed_link import TypedLinkPrediction
from clusterctl.engine.data.own_links import typed_link_graph
from clusterctl.engine.graph.links import TypedLinkGraph
from clusterctl.engine.data.own_data import own_recipe
from support.ranks import Losses

record = {"name": "t", "workload": "reddit", "data": {"placement": "split"}}
with joined(Context(record, attempt=current_attempt())) as task:
    graph = shared(task, TypedLinkGraph, *own_recipe(Data(load="support.own_nets:split_shop"), typed_link_graph))
    train = LinkPredictionTrain(
        model="support.own_nets:ShopNet", options=dict(p=0.3), batch_size=None, global_batch_size=60, epochs=3,
        precision="float64", lr=0.02, negatives=2, metric="mrr", fan_out=(4, 3), embedding_width=5
    )
    result = {}
    for way, cache, split in (("whole", None, False), ("split", None, True), ("replicas", 1 << 20, True)):
        losses = Losses()
        score = fit(TypedLinkPrediction(graph, train, task, cache, split=split), train, replace(task, metrics=losses))
        result[way] = [losses, score.value, score.total]
print(json.dumps(result))
"""


@pytest.mark.long
def test_losses_and_scores_do_not_depend_on_the_number_of_ranks_or_where_features_are(tmp_path: Path) -> None:
    """With dropout, embeddings and drawn negatives."""
    found = {}
    for name, tasks_per_node in (("one", [1]), ("three", [1, 2])):
        outputs = run_program(PROGRAM, RunDir(tmp_path / name).attempt(0), tasks_per_node)
        found[name] = [json.loads(output.splitlines()[-1]) for output in outputs]
    losses, score, total = found["one"][0]["whole"]
    assert len(losses) >= 9
    assert losses[-1] < losses[0]
    for rank in [*found["one"], *found["three"]]:
        for theirs, their_score, their_total in rank.values():
            assert theirs == pytest.approx(losses, rel=0, abs=1e-9)
            assert their_score == pytest.approx(score, rel=0, abs=1e-9)
            assert their_total == total
        assert rank["whole"] == rank["split"] == rank["replicas"]  # on the same ranks: no other bit
