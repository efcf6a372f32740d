"""The built-in graph attention network, in training and evaluation."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from support.lone_task import lone_task as lone_task
from support.lone_task import random_graph as random_graph
from support.ranks import CORA, metrics_of, run_job, run_program
from torch.nn import functional as F
from torch_geometric.nn import GATv2Conv

from clusterctl.engine.graph.attention import Gat, GatConv
from clusterctl.engine.graph.storage import Graph
from clusterctl.engine.task.task import Task
from clusterctl.engine.training.epoch_plan import Batch
from clusterctl.engine.training.objectives.own_node import OwnNodeClassification
from clusterctl.engine.training.own import inference as own_inference
from clusterctl.shared.errors import TaskError
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.spec import Cluster, Job, NodeClassificationTrain, from_record

MakeGraph = Callable[..., Graph]
JOBS = Path(__file__).resolve().parents[2] / "jobs"
TRAIN = NodeClassificationTrain(model="gat", fan_out=(-1, -1, -1), precision="float64")


def pyg_layer(ours: GatConv, heads: int, *, last: bool) -> GATv2Conv:
    """PyG's layer with our parameters, and with self loops, its default."""
    channels = ours.attention.size(1)
    theirs = GATv2Conv(ours.left.in_features, channels, heads, concat=not last).double()
    named = {"lin_l": ours.left, "lin_r": ours.right}
    state = {f"{name}.{part}": getattr(linear, part) for name, linear in named.items() for part in ("weight", "bias")}
    theirs.load_state_dict(state | {"att": ours.attention[None], "bias": ours.bias})
    return theirs


def test_training_and_exact_evaluation_match_pyg_on_the_whole_graph(
    random_graph: MakeGraph, lone_task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_inference, "_MOST_EDGES", 40)  # many chunks
    graph = random_graph()
    options: dict[str, object] = {"hidden": 4, "heads": 2, "output_heads": 3, "dropout": 0.0}
    objective = OwnNodeClassification(graph, replace(TRAIN, options=options), lone_task)
    assert isinstance(objective.model, Gat)
    first, second, last = (cast("GatConv", layer) for layer in objective.model.layers)
    layers = [pyg_layer(first, 2, last=False), pyg_layer(second, 2, last=False), pyg_layer(last, 3, last=True)]
    targets = torch.arange(graph.num_nodes).repeat_interleave(graph.degree)
    edges, x = torch.stack([graph.indices.long(), targets]), graph.x
    for number, layer in enumerate(layers):
        x = layer(x, edges) if number == 2 else F.elu(layer(x, edges))
    wanted = F.cross_entropy(x[graph.train], graph.y[graph.train])
    count = graph.train.numel()
    batch = Batch(1, 0, graph.train, torch.ones(count), count, graph.train)
    torch.testing.assert_close(objective.loss(batch, objective.prepare(batch)), wanted, rtol=0, atol=1e-12)
    correct = {split: int((x.argmax(1) == graph.y)[getattr(graph, split)].sum()) for split in ("val", "test")}
    assert {split: score.correct for split, score in objective.evaluate(("val", "test")).items()} == correct


PROGRAM = f"""
import json
from dataclasses import replace
from pathlib import Path
from clusterctl.engine.graph.storage import Graph, shared
from clusterctl.shared.node.events import Context
from clusterctl.shared.record.layout import current_attempt
from clusterctl.shared.spec import NodeClassificationTrain
from clusterctl.engine.task.task import joined
from clusterctl.engine.training.loop import fit
from clusterctl.engine.training.objectives.own_node import OwnNodeClassification
from clusterctl.engine.data.reddit import recipe
from support.ranks import Losses

with joined(Context({{"name": "t", "workload": "reddit"}}, attempt=current_attempt())) as task:
    graph = shared(task, Graph, *recipe({str(CORA)!r}))
    options = dict(hidden=4, heads=2, dropout=0.5, attention_dropout=0.3, residual=True)
    train = NodeClassificationTrain(model="gat", options=options, global_batch_size=250, epochs=2, fan_out=(4, 3),
                                    precision="float64", evaluate_every=0)
    losses = Losses()
    score = fit(OwnNodeClassification(graph, train, task), train, replace(task, metrics=losses))
print(json.dumps([losses, score]))
"""


@pytest.mark.long
def test_losses_do_not_depend_on_the_number_of_ranks_with_both_dropouts(tmp_path: Path) -> None:
    results = []
    for ranks in ([1], [2], [1, 3]):
        outputs = run_program(PROGRAM, RunDir(tmp_path / f"on-{sum(ranks)}").attempt(0), ranks)
        results.append(json.loads(outputs[0].splitlines()[-1]))
    (alone, score), *others = results
    assert len(alone) >= 10
    for losses, same_score in others:
        assert losses == pytest.approx(alone, rel=0, abs=1e-9)
        assert same_score == score


def test_an_unknown_option_fails_with_a_suggestion(random_graph: MakeGraph, lone_task: Task) -> None:
    from clusterctl.launcher.config.resolution import contradictions

    train = replace(TRAIN, options={"head": 3, "dropout": 2, "hidden": 0})
    with pytest.raises(TaskError) as caught:
        OwnNodeClassification(random_graph(), train, lone_task)
    assert "train.options.head: unknown key (did you mean heads?)" in caught.value.message
    assert "heads, output_heads" in caught.value.hint
    job = Job(name="x", workload="node-classification", train=train)
    found = list(map(str, contradictions(job, Cluster(name="c"))))  # before anything is submitted
    assert "train.options.head: unknown key (did you mean heads?)" in found
    assert [problem.partition(":")[0] for problem in found if "options" in problem] == [
        "train.options.head",
        "train.options.dropout",
        "train.options.hidden",
    ]


def cora_job(**train: object) -> Job:
    """jobs/gat-cora.toml with some settings changed."""
    record = tomllib.loads((JOBS / "gat-cora.toml").read_text())
    record |= {"name": "gat", "data": {"root": str(CORA)}, "train": {**record["train"], **train}}
    return from_record(Job, record, parse=True)


@pytest.mark.long
def test_cora_reaches_080_with_three_seeds_and_in_bfloat16(tmp_path: Path) -> None:
    accuracies = []
    settings: list[dict[str, object]] = [{"seed": 0}, {"seed": 1}, {"seed": 2}, {"precision": "bfloat16"}]
    for number, chosen in enumerate(settings):
        run = RunDir(tmp_path / "runs" / f"gat-{number}")
        done = run_job(cora_job(**chosen), run, [2, 2])
        assert [code for code, _, _ in done] == [0, 0, 0, 0], done
        accuracies.append(metrics_of(run)[-1]["test_accuracy"])
    print("gat on cora, seeds 0, 1, 2, and bfloat16:", accuracies)
    assert min(accuracies) >= 0.80, accuracies
