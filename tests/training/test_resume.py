"""An interrupted training ends with the weights of an undisturbed one. The ranks keep running across attempts."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.ranks import CORA, IMDB, run_program

from clusterctl.shared.record.layout import RunDir

# Runs on each rank; `trained(...)` returns weights, losses and scores of a training that is interrupted at `steps`.
PROLOGUE = f"""
import hashlib, json, os, random, sys, torch
from dataclasses import replace
from pathlib import Path
from clusterctl.engine.graph.collection import Collection
from clusterctl.engine.graph.storage import Graph, shared
from clusterctl.shared.node.events import Context
from clusterctl.shared.node.events import Events
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.layout import current_attempt
from clusterctl.shared.record.metrics import MetricsWriter
from clusterctl.shared.record.place import Place
from clusterctl.shared.node.signals import StopRequest
from clusterctl.shared.spec import Checkpoint, Data, GraphClassificationTrain, RedditTrain
from clusterctl.engine.task.task import joined
from clusterctl.engine.training.checkpoint import Checkpoints
from clusterctl.engine.training.objectives.graph import GraphClassification
from clusterctl.engine.training.loop import fit
from clusterctl.engine.training.objectives.node import NodeClassification
from clusterctl.engine.training.progress import Fold
from clusterctl.engine.training.state import PartState, Sharded
from clusterctl.engine.data.reddit import raw_identity, read_raw
from clusterctl.engine.workloads.graph_classification import recipe as tu_recipe

ROOT, IMDB = {str(CORA)!r}, {str(IMDB)!r}
place = Place.from_environment()

class Metrics(MetricsWriter):
    # Keeps the losses by step, and requests a stop after step `at`, on one rank only, as a signal would.
    def __init__(self, attempt, stop, at, losses):
        super().__init__(attempt, place.rank)
        self.stop, self.at, self.losses = stop, at, losses
    def write(self, **values):
        super().write(**values)
        if "loss" in values:
            self.losses[values["step"]] = values["loss"]
            if values["step"] == self.at and place.rank == place.world_size - 1:
                self.stop.warned = True

def digest(model):
    buffers = [b for name, b in model.named_buffers() if not name.endswith("rows")]  # without the sharded tables
    whole = b"".join(p.detach().numpy().tobytes() for p in [*model.parameters(), *buffers])
    return hashlib.sha256(whole).hexdigest()

def trained(task, name, train, objective_of, steps=(), folds=0, every=0, first=0, give_up=False):
    run, losses = RunDir(task.attempt.path.parents[2] / name), {{}}
    outcome, scores = {{"left": []}}, []
    for number, at in enumerate([*steps, *[None] * (not give_up)], first):
        attempt = run.attempt(number)
        attempt.path.mkdir(parents=True, exist_ok=True)
        stop = StopRequest()
        own = replace(task, attempt=attempt, stop=stop, checkpoint=Checkpoint(every=every), restarts=True,
                      metrics=Metrics(attempt, stop, at, losses), events=Events(attempt, place.rank))
        try:
            saved = Checkpoints(own, train)
            if folds:
                scores = saved.results
                for fold in range(len(scores), folds):
                    objective = objective_of(own, fold)
                    scores.append(fit(objective, train, own, Fold(fold + 1, folds), saved))
            else:
                objective = objective_of(own, 0)
                scores = [fit(objective, train, own, None, saved)]
            break
        except SystemExit as leaving:
            outcome["left"].append([leaving.code, max(losses)])
    whole = torch.cat([p.detach().double().flatten() for p in objective.model.parameters()]).tolist()
    return outcome | {{"losses": losses, "digest": digest(objective.model), "scores": scores, "weights": whole[::97]}}
"""

CORA_TASK = """
with joined(Context({"name": "t", "workload": "reddit"}, attempt=current_attempt())) as task:
    graph = shared(task, Graph, "cora", raw_identity(ROOT), lambda scratch: read_raw(Path(ROOT), scratch))
    objective_of = lambda task, fold: NodeClassification(graph, train, task)
"""


@pytest.mark.parametrize(
    ("shape", "plans"), [([1, 1], [[5, 12]]), pytest.param([2, 2], [[3], [7], [5, 12]], marks=pytest.mark.long)]
)
def test_interrupted_training_is_bit_identical_to_uninterrupted(
    tmp_path: Path, shape: list[int], plans: list[list[int]]
) -> None:
    """Warned mid-epoch, at its last step, and twice; with dropout, a schedule, and early stopping."""
    results = interrupted(tmp_path, plans, FOLDS + SHOP + OWN, shape)
    own, own_left_alone = results.pop("own"), results.pop("own-left-alone")
    gat, gat_left_alone = results.pop("gat"), results.pop("gat-left-alone")
    learning, sgd = ([results.pop(name), results.pop(f"{name}-left-alone")] for name in ("learning", "sgd"))
    plain, plain_left_alone = results.pop("plain"), results.pop("plain-left-alone")
    rgat, rgat_left_alone = results.pop("rgat"), results.pop("rgat-left-alone")
    typed, dated = ([results.pop(name), results.pop(f"{name}-left-alone")] for name in ("typed", "dated"))
    folds = {name: results.pop(name) for name in ("folds", "folds-left-alone")}
    shop, shop_left_alone = results.pop("shop"), results.pop("shop-left-alone")
    assert_same(results)
    assert [leave for leave, _ in results[len(plans) - 1]["left"]] == [75, 75]
    left_alone, interrupted_twice = folds["folds-left-alone"], folds["folds"]
    assert [step for _, step in interrupted_twice["left"]] == [6, 10]  # a step later: in the second fold, in the third
    for name in ("losses", "digest", "scores"):
        assert interrupted_twice[name] == left_alone[name]
    assert len(left_alone["scores"]) == 3
    assert [leave for leave, _ in shop["left"]] == [75, 75]  # whose embeddings are split over the ranks
    for name in ("losses", "digest", "scores"):
        assert shop[name] == shop_left_alone[name]
        assert own[name] == own_left_alone[name]
        assert plain[name] == plain_left_alone[name]
        assert gat[name] == gat_left_alone[name]
        assert rgat[name] == rgat_left_alone[name]
        assert learning[0][name] == learning[1][name]
        assert sgd[0][name] == sgd[1][name]
        assert typed[0][name] == typed[1][name]  # on several types of nodes, with embeddings
        assert dated[0][name] == dated[1][name]  # at times
    assert [leave for leave, _ in typed[0]["left"] + dated[0]["left"]] == [75] * 4
    assert [leave for leave, _ in learning[0]["left"] + sgd[0]["left"]] == [75] * 5
    assert [leave for leave, _ in plain["left"]] == [75, 75]  # of PyG's form, with batch norm and torch's dropout
    assert [leave for leave, _ in gat["left"]] == [leave for leave, _ in rgat["left"]] == [75, 75]
    assert [leave for leave, _ in own["left"]] == [75, 75]  # a user's model with running statistics and dropout


@pytest.mark.long
def test_compiled_steps_resume_bit_for_bit(tmp_path: Path) -> None:
    results = interrupted(tmp_path, [], COMPILED, [1, 1])
    assert results["folds"]["left"]
    for name in ("losses", "digest", "scores"):
        assert results["folds"][name] == results["folds-left-alone"][name]


FOLDS = """
    graphs = shared(task, Collection, *tu_recipe(Data(root=str(IMDB))))
    train = GraphClassificationTrain(batch_size=None, global_batch_size=400, epochs=2, patience=2, folds=3,
                                     hidden_channels=8)
    objective_of = lambda task, fold: GraphClassification(graphs, train, task, fold)
    result["folds-left-alone"] = trained(task, "folds-left-alone", train, objective_of, folds=3)
    result["folds"] = trained(task, "folds", train, objective_of, [5, 9], folds=3)
"""
COMPILED = f"""
    from clusterctl.shared.spec import train as spec
    spec._MANY_STEPS = 1
{FOLDS}
    assert "clusterctl.engine.graph.compiled_gin" in sys.modules
"""
SHOP = f"""
    sys.path.insert(0, {str(Path(__file__).parents[1])!r})
    from support.made_graphs import random_shop
    from clusterctl.shared.spec import TaobaoTrain
    from clusterctl.engine.training.objectives.link import LinkPrediction
    train = TaobaoTrain(batch_size=None, global_batch_size=24, epochs=3, hidden_channels=6, fan_out=(4, 3), patience=3,
                        lr=0.01)
    objective_of = lambda task, fold: LinkPrediction(random_shop(), train, task)
    result["shop-left-alone"] = trained(task, "shop-left-alone", train, objective_of)
    result["shop"] = trained(task, "shop", train, objective_of, [2, 5])
"""
OWN = """
    from clusterctl.shared.spec import NodeClassificationTrain
    from clusterctl.engine.training.objectives.own_node import OwnNodeClassification
    train = NodeClassificationTrain(model="support.own_nets:Noisy", batch_size=None, global_batch_size=400, epochs=3,
                                    fan_out=(4, 3), patience=3)
    objective_of = lambda task, fold: OwnNodeClassification(graph, train, task)
    result["own-left-alone"] = trained(task, "own-left-alone", train, objective_of)
    result["own"] = trained(task, "own", train, objective_of, [3, 8])
    train = NodeClassificationTrain(model="gat", options=dict(hidden=4, heads=2, attention_dropout=0.3),
                                    batch_size=None, global_batch_size=400, epochs=3, fan_out=(4, 3), patience=3)
    plain = replace(train, model="support.own_nets:Plain", options=dict(hidden_channels=8))
    plain_of = lambda task, fold: OwnNodeClassification(graph, plain, task)
    result["plain-left-alone"] = trained(task, "plain-left-alone", plain, plain_of)
    result["plain"] = trained(task, "plain", plain, plain_of, [3, 8])
    result["gat-left-alone"] = trained(task, "gat-left-alone", train, objective_of)
    result["gat"] = trained(task, "gat", train, objective_of, [3, 8])
    from support.own_nets import targets_of
    train = NodeClassificationTrain(model="support.own_nets:Noisy", batch_size=None, global_batch_size=200, epochs=4,
                                    fan_out=(4, 3), loss="mse", metric="support.own_nets:largest_error",
                                    metric_better="lower", optimizer="support.own_nets:in_groups", accumulate=2,
                                    ema=0.9, schedule="plateau", schedule_every=1, schedule_factor=0.5, patience=3,
                                    report_train=True)
    numbers = replace(graph, y=targets_of(graph.x), num_classes=2)
    learning_of = lambda task, fold: OwnNodeClassification(numbers, train, task)
    result["learning-left-alone"] = trained(task, "learning-left-alone", train, learning_of)
    result["learning"] = trained(task, "learning", train, learning_of, [3, 5, 13])
    train = replace(train, optimizer="sgd", optimizer_options=dict(momentum=0.9, nesterov=True), schedule="step",
                    schedule_every=2, loss="huber", metric="rmse", metric_better="higher", patience=0)
    result["sgd-left-alone"] = trained(task, "sgd-left-alone", train, learning_of)
    result["sgd"] = trained(task, "sgd", train, learning_of, [4, 10])
    train = NodeClassificationTrain(model="gat", options=dict(hidden=4, heads=2, attention_dropout=0.3),
                                    batch_size=None, global_batch_size=400, epochs=3, fan_out=(4, 3), patience=3)
    from support.made_graphs import random_academy
    from clusterctl.engine.training.objectives.relation import RelationNodeClassification
    train = replace(train, model="rgat", global_batch_size=12)
    objective_of = lambda task, fold: RelationNodeClassification(random_academy(torch.float32), train, task)
    result["rgat-left-alone"] = trained(task, "rgat-left-alone", train, objective_of)
    result["rgat"] = trained(task, "rgat", train, objective_of, [2, 6])
    from support.made_graphs import bare_academy, dated_academy
    from clusterctl.engine.training.objectives.typed_node import TypedNodeClassification
    train = replace(train, model="support.own_nets:Typed", options={}, global_batch_size=8, embedding_width=5)
    for name, made in dict(typed=lambda: bare_academy("author", dtype=torch.float32),
                           dated=lambda: dated_academy(dtype=torch.float32)).items():
        objective_of = lambda task, fold: TypedNodeClassification(made(), train, task)
        result[f"{name}-left-alone"] = trained(task, f"{name}-left-alone", train, objective_of)
        result[name] = trained(task, name, train, objective_of, [1, 4])
"""
WHOLE_GRAPH = """
    from clusterctl.shared.spec import NodeClassificationTrain
    from clusterctl.engine.training.objectives.own_node import OwnNodeClassification
    train = NodeClassificationTrain(model="support.own_nets:Plain", options=dict(hidden_channels=8), batch="graph",
                                    epochs=6)
    objective_of = lambda task, fold: OwnNodeClassification(graph, train, task)
    result = {"none": trained(task, "none", train, objective_of)}
    result[0] = trained(task, "run-0", train, objective_of, [2, 5])
print(json.dumps(result))
"""


def test_interrupted_training_on_the_whole_graph_is_bit_identical(tmp_path: Path) -> None:
    support = f"sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
    (output,) = run_program(PROLOGUE + support + CORA_TASK + WHOLE_GRAPH, RunDir(tmp_path / "ranks").attempt(0), [1])
    results = json.loads(output.splitlines()[-1])
    undisturbed, interrupted_twice = results["none"], results["0"]
    assert list(undisturbed["losses"]) == [str(step) for step in range(1, 7)]
    assert [step for _, step in interrupted_twice["left"]] == [2, 5]
    for name in ("losses", "digest", "scores"):
        assert interrupted_twice[name] == undisturbed[name]


LINKS_AND_GRAPHS = """
    from support.own_nets import molecules, split_links, split_shop
    from clusterctl.shared.spec import LinkPredictionTrain, NodeClassificationTrain
    from clusterctl.engine.training.objectives.own_node import OwnNodeClassification
    from clusterctl.engine.data.graph_sets import collection_of
    from clusterctl.engine.data.own_links import link_graph, typed_link_graph
    from clusterctl.engine.training.objectives.graph import OwnGraphClassification
    from clusterctl.engine.training.objectives.own_link import OwnLinkPrediction
    from clusterctl.engine.training.objectives.typed_link import TypedLinkPrediction
    shop = typed_link_graph(split_shop(), "load")
    links, graphs = link_graph(split_links(), "load"), collection_of(molecules(), "load", answers="numbers")
    both = dict(batch_size=None, epochs=3, patience=3)
    cora, own = graph, NodeClassificationTrain(model="support.own_nets:Keyed", options=dict(hidden_channels=8),
                                               sampler="support.own_nets:LayeredSampler", fan_out=(4, 3),
                                               global_batch_size=300, **both)
    link = LinkPredictionTrain(model="support.own_nets:LinkNet", negatives=2, metric="mrr", global_batch_size=64,
                               **both)
    typed = replace(link, model="support.own_nets:ShopNet", options=dict(p=0.3), fan_out=(4, 3), embedding_width=5)
    graph = GraphClassificationTrain(model="support.own_nets:MoleculeNet", loss="l1", global_batch_size=16, **both)
    result = {}
    for name, train, objective_of in (
        ("link", link, lambda task, fold: OwnLinkPrediction(links, link, task)),
        ("typed", typed, lambda task, fold: TypedLinkPrediction(shop, typed, task)),
        ("sampler", own, lambda task, fold: OwnNodeClassification(cora, own, task)),
        ("graph", graph, lambda task, fold: OwnGraphClassification(graphs, graph, task)),
    ):
        result[name] = [trained(task, name + "-left-alone", train, objective_of)]
        result[name] += [trained(task, name, train, objective_of, [2, 6])]
print(json.dumps(result))
"""


@pytest.mark.long
def test_interrupted_training_of_links_of_graphs_and_by_a_users_sampler_is_bit_identical(tmp_path: Path) -> None:
    support = f"import torch_geometric\nsys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
    program = PROLOGUE + support + CORA_TASK + LINKS_AND_GRAPHS
    output, *_ = run_program(program, RunDir(tmp_path / "ranks").attempt(0), [1, 1])
    for undisturbed, interrupted_twice in json.loads(output.splitlines()[-1]).values():
        assert [leave for leave, _ in interrupted_twice["left"]] == [75, 75]
        for name in ("losses", "digest", "scores"):
            assert interrupted_twice[name] == undisturbed[name]


STEPS = [[step] for step in sorted(random.Random(6).sample(range(1, 26), 19))]


@pytest.mark.long
def test_training_preempted_at_twenty_random_steps_is_bit_identical(tmp_path: Path) -> None:
    results = interrupted(tmp_path, [*STEPS, [3, 9, 10, 17]])
    assert_same(results)


def interrupted(folder: Path, plans: list[list[int]], more: str = "", shape: Sequence[int] = (2, 2)) -> dict[Any, Any]:
    body = f"""
    train = RedditTrain(batch_size=None, global_batch_size=256, epochs=4, hidden_channels=32, dropout=0.5,
                        schedule="cosine", warmup=0.2, patience=4, clip_norm=1.0, precision="float32")
    result = {{"none": trained(task, "none", train, objective_of)}}
    for number, steps in enumerate({plans!r}):
        result[number] = trained(task, f"run-{{number}}", train, objective_of, steps)
{more}
print(json.dumps(result))
"""
    outputs = run_program(PROLOGUE + CORA_TASK + body, RunDir(folder / "ranks").attempt(0), shape, timeout=600)
    results = [json.loads(output.splitlines()[-1]) for output in outputs]
    for other in results[1:]:
        assert {key: value["digest"] for key, value in other.items()} == {k: v["digest"] for k, v in results[0].items()}
    return {int(key) if key.isdigit() else key: value for key, value in results[0].items()}


def assert_same(results: dict[Any, Any]) -> None:
    undisturbed = results.pop("none")
    assert len(undisturbed["losses"]) >= 20
    for number, one in results.items():
        assert one["left"], f"{number} was not interrupted"
        assert one["losses"] == undisturbed["losses"], f"run {number}, interrupted at {one['left']}"
        assert one["digest"] == undisturbed["digest"]
        assert one["scores"] == undisturbed["scores"]


ANOTHER_NUMBER = """
class WithTable(NodeClassification):
    # Also has an embedding table, whose rows are split unevenly over the ranks.
    def __init__(self, *arguments):
        super().__init__(*arguments, split=True)
        rank, size = place.rank, place.world_size
        self.start, self.stop = 1000 * rank**2 // size**2, 1000 * (rank + 1) ** 2 // size**2
        self.rows = torch.arange(self.start, self.stop, dtype=torch.float64)[:, None].repeat(1, 3)
    @property
    def own_training(self):
        return self
    def begin_step(self, *_):
        pass
    check_finite = begin_step
    def state(self):
        return PartState({}, {"table": Sharded(self.rows, self.start, 1000)})
    def load(self, state):
        assert state.sharded["table"].rows is self.rows
        self.loaded = self.rows.clone()

record = {"name": "t", "workload": "reddit", "data": {"placement": "split"}}
with joined(Context(record, attempt=current_attempt())) as task:
    graph = shared(task, Graph, "cora", raw_identity(ROOT), lambda scratch: read_raw(Path(ROOT), scratch))
    train = RedditTrain(batch_size=240 // place.world_size, epochs=3, hidden_channels=32, dropout=0.5, patience=3,
                        schedule="cosine", precision="float64")
    made = []
    def objective_of(task, fold):
        made.append(WithTable(graph, train, task))
        if not STEPS:
            made[-1].rows.zero_()  # so that the loaded rows can only come from the checkpoint
        return made[-1]
    STEPS, FIRST = json.loads(os.environ["PLAN"])
    result = trained(task, "shared", train, objective_of, STEPS, first=FIRST, give_up=bool(STEPS))
    whole = lambda task, fold: NodeClassification(graph, train, task)
    result["none"] = None if STEPS else trained(task, "none", train, whole)["weights"]
    result["rows"] = [] if STEPS else [made[0].start, made[0].loaded.tolist()]
print(json.dumps(result))
"""


@pytest.mark.long
@pytest.mark.parametrize("others", [[1, 1], [2, 2], [4], [1, 1, 1, 1]])
def test_resuming_on_another_number_of_ranks_gives_the_same_weights_up_to_rounding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: list[int]
) -> None:
    """Three ranks on two nodes are interrupted in the second epoch; two or four finish. Rows move to their new owners.

    So do the features, which are split over the nodes; the uninterrupted training has them whole.
    """
    run = RunDir(tmp_path / "ranks")
    losses: dict[str, float] = {}
    for number, (steps, shape) in enumerate([([10], [1, 2]), ([], others)]):
        monkeypatch.setenv("PLAN", json.dumps([steps, number]))
        outputs = run_program(PROLOGUE + ANOTHER_NUMBER, run.attempt(number), shape)
        results = [json.loads(output.splitlines()[-1]) for output in outputs]
        losses |= results[0]["losses"]
    assert [int(step) for step in losses] == list(range(1, len(losses) + 1))
    assert results[0]["weights"] == pytest.approx(results[0]["none"], rel=0, abs=1e-9)
    for rank in results:
        start, rows = rank["rows"]
        assert rows == [[float(start + row)] * 3 for row in range(len(rows))]
