"""Settings that conflict, or that the user may not set, are reported before anything is submitted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusterctl.launcher.config.resolution import contradictions
from clusterctl.shared.spec import (
    Cluster,
    CommandTrain,
    Container,
    Data,
    GraphClassificationTrain,
    Job,
    LinkPredictionTrain,
    NodeClassificationTrain,
    RedditTrain,
    Resources,
    SyntheticTrain,
)
from clusterctl.shared.spec.job import Restart

GOOD = {"name": "x", "workload": "command", "argv": ("true",), "train": CommandTrain()}


def keys(job: Job, kind: str = "slurm") -> list[str]:
    return [".".join(problem.path) for problem in contradictions(job, Cluster(name="c", kind=kind))]


def test_a_valid_job_has_no_contradictions() -> None:
    assert keys(Job(**GOOD)) == []


def test_local_code_is_refused_with_an_image() -> None:
    job = Job(**GOOD, resources=Resources(local_code=True))
    assert keys(job) == []
    assert keys(replace(job, container=Container(image="python"))) == ["resources.local_code"]


def test_the_habits_of_a_program_are_for_a_program() -> None:
    habits = Restart(signal="USR1", at_limit=True, progress="*.pt")
    assert keys(replace(Job(**GOOD), restart=habits)) == []
    training = Job(name="x", workload="reddit", train=RedditTrain(), restart=habits)
    assert keys(training) == ["restart.signal", "restart.at_limit", "restart.progress"]
    for wrong in (
        Job(**GOOD, restart=habits, resources=Resources(warning=0)),
        Job(**GOOD, restart=habits, resources=Resources(requeue=False)),
        Job(**GOOD, restart=replace(habits, limit=0)),
    ):
        assert keys(wrong) == ["restart.at_limit"]


def test_standbys_are_refused_where_they_would_change_the_ranks() -> None:
    boxed = Container(image="/image.sqsh")
    training = Job(
        name="x", workload="reddit", train=RedditTrain(), restart=Restart(standby=True), data=Data(root="/data")
    )
    for right in (training, replace(training, container=boxed)):
        assert keys(right) == []
    for wrong in (
        Job(**GOOD, restart=training.restart),
        replace(training, resources=Resources(local_code=True)),
        replace(training, container=replace(boxed, writable=True)),
        replace(training, container=replace(boxed, code="image")),
        replace(training, restart=Restart(standby=True, where="queue")),
        replace(training, restart=Restart(standby=True, limit=0)),
    ):
        assert keys(wrong) == ["restart.standby"], wrong


def test_nodes_can_only_be_replaced_where_ranks_start_again_in_their_job() -> None:
    holding = Resources(nodes=4, spare_nodes=1)
    assert keys(Job(**GOOD, resources=holding)) == []
    for restart in (Restart(limit=0), Restart(where="queue")):
        assert keys(Job(**GOOD, resources=holding, restart=restart)) == ["resources.spare_nodes"]
        fewer = replace(restart, min_nodes=3)
        assert keys(Job(**GOOD, resources=Resources(nodes=4), restart=fewer)) == ["restart.min_nodes"]


def test_fewer_nodes_must_not_change_the_training() -> None:
    program = Job(**GOOD, resources=Resources(nodes=4), restart=Restart(min_nodes=3))
    assert keys(program) == [], "the key says that the program can"
    training = replace(program, workload="reddit", argv=(), train=RedditTrain(batch_size=128))
    assert keys(training) == ["restart.min_nodes"]
    assert keys(replace(training, train=RedditTrain(global_batch_size=512))) == []
    assert keys(replace(program, resources=Resources(nodes=3))) == ["restart.min_nodes"]


def test_all_contradictions_are_reported_together() -> None:
    job = Job(
        name="x",
        workload="command",
        env={"SLURM_PROCID": "0", "cctl_run": "/", "run": "/", "OK": "1"},
        resources=Resources(time=60, warning=60, sbatch={"output": "x", "nodes": "3", "hint": "nomultithread"}),
        container=Container(code="image", workdir="src"),
    )
    assert keys(job, "emulator") == [
        "argv",
        "resources.sbatch.nodes",
        "resources.sbatch.output",
        "env.SLURM_PROCID",
        "env.cctl_run",
        "resources.warning",
        "container.code",
        "container.workdir",
    ]
    assert keys(replace(job, container=Container(image="python"))) == keys(job)[:-2]


def test_settings_of_another_workload_or_sampling_are_refused() -> None:
    own = NodeClassificationTrain(model="mine:Net", sampling="labor", replace=True)
    assert keys(Job(name="x", workload="node-classification", train=own)) == ["train.replace"]
    assert keys(replace(Job(**GOOD), data=Data(load="mine:load"))) == ["data.load"]
    assert keys(replace(Job(**GOOD), data=Data(cache="8G"))) == ["data.cache"]
    aggregated = RedditTrain(cache_first_aggregation=True)
    assert keys(Job(name="x", workload="reddit", train=aggregated, data=Data(cache="8G"))) == ["data.cache"]
    relational = NodeClassificationTrain(model="rgat")
    relational_job = Job(name="x", workload="node-classification", train=relational, data=Data(root="/d", cache="8G"))
    assert keys(relational_job) == []


def test_only_a_prepared_graph_of_one_node_type_is_arranged() -> None:
    arranged = Data(root="/d", order="neighbours", disk_precision="bfloat16")
    both = ["data.order", "data.disk_precision"]
    assert keys(replace(Job(**GOOD), data=arranged)) == both
    assert keys(Job(name="x", workload="synthetic", train=SyntheticTrain(), data=arranged)) == both
    assert keys(Job(name="x", workload="reddit", train=RedditTrain(), data=arranged)) == []
    relational = NodeClassificationTrain(model="rgat")
    assert keys(Job(name="x", workload="node-classification", train=relational, data=arranged)) == both


def test_features_are_split_or_on_disk_only_where_rows_are_fetched() -> None:
    elsewhere = Data(root="/d", cache="8G", placement="split")
    both = ["data.cache", "data.placement"]
    assert keys(replace(Job(**GOOD), data=elsewhere)) == both
    for changes in ({"cache_first_aggregation": True}, {"cuda_graph": True}):
        train = RedditTrain(device="auto", **changes)
        assert keys(Job(name="x", workload="reddit", train=train, data=elsewhere)) == both
    assert keys(Job(name="x", workload="reddit", train=RedditTrain(), data=elsewhere)) == []
    relational = NodeClassificationTrain(model="rgat")
    assert keys(Job(name="x", workload="node-classification", train=relational, data=elsewhere)) == []


def test_tf32_is_for_float32_on_gpus() -> None:
    for changes, expected in (
        ({}, []),
        ({"precision": "bfloat16"}, ["train.tf32"]),
        ({"device": "cpu"}, ["train.tf32"]),
    ):
        train = RedditTrain(tf32=True, **{"device": "auto", **changes})
        assert keys(Job(name="x", workload="reddit", train=train, data=Data(root="/d"))) == expected


def test_edges_stay_on_the_host_only_for_models_of_one_type() -> None:
    host = Data(root="/d", placement="host")
    assert keys(Job(name="x", workload="reddit", train=RedditTrain(), data=host)) == []
    assert keys(Job(name="x", workload="reddit", train=RedditTrain(), data=replace(host, cache="8G"))) == []
    for train in (RedditTrain(cuda_graph=True), NodeClassificationTrain(model="rgat")):
        workload = "reddit" if isinstance(train, RedditTrain) else "node-classification"
        assert keys(Job(name="x", workload=workload, train=train, data=host)) == ["data.placement"]


OWN_LOSS, OWN_OPTIMIZER = {"loss": "mine:loss", "metric": "mae"}, {"optimizer": "mine:make"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, []),
        ({"loss": "mse"}, []),
        ({"loss": "bce_with_logits", "metric": "average_precision", "ema": 0.9, "accumulate": 2}, []),
        ({**OWN_LOSS, **OWN_OPTIMIZER, "optimizer_options": {"lr": 0.1}}, []),
        ({"metric": "mine:score", "metric_better": "lower"}, []),
        ({"loss": "mse", "class_weights": "balanced"}, ["train.class_weights"]),
        ({"class_weights": (0.0, 0.0)}, ["train.class_weights"]),
        ({**OWN_LOSS, "label_smoothing": 0.1}, ["train.label_smoothing"]),
        ({"loss": "mse", "metric": "accuracy"}, ["train.metric"]),
        ({"loss": "l1", "metric": "roc_auc"}, ["train.metric"]),
        ({"metric": "rmse"}, ["train.metric"]),
        ({"loss": "bce_with_logits", "metric": "mae"}, ["train.metric"]),
        ({"loss": "mine:loss"}, ["train.metric"]),
        ({"metric": "f1_macro", "metric_better": "lower"}, ["train.metric_better"]),
        ({"optimizer_options": {"momentum": 0.9}}, ["train.optimizer_options.momentum"]),
        ({"optimizer": "sgd", "optimizer_options": {"momentum": 1.5}}, ["train.optimizer_options.momentum"]),
        ({"optimizer": "sgd", "optimizer_options": {"nesterov": True}}, ["train.optimizer_options.nesterov"]),
        ({**OWN_OPTIMIZER, "lr": 0.5, "weight_decay": 0.1}, ["train.lr", "train.weight_decay"]),
        ({"schedule": "plateau", "evaluate_every": 0}, ["train.schedule"]),
        ({"schedule": "cosine", "schedule_factor": 0.5}, ["train.schedule_factor"]),
        ({"schedule_every": 5}, ["train.schedule_every"]),
    ],
)
def test_losses_metrics_and_optimizers_that_do_not_fit_each_other_are_refused(
    settings: dict[str, Any], expected: list[str]
) -> None:
    train = NodeClassificationTrain(model="mine:Net", **settings)
    assert keys(Job(name="x", workload="node-classification", train=train, data=Data(load="mine:load"))) == expected


@pytest.mark.parametrize(
    ("workload", "train", "data", "expected"),
    [
        ("node-classification", NodeClassificationTrain(model="m:Net", loss="mse"), Data(root="/d"), ["train.loss"]),
        ("node-classification", NodeClassificationTrain(model="gat", loss="mse"), Data(load="m:load"), []),
        (
            "node-classification",
            NodeClassificationTrain(model="rgat", loss="mse", report_train=True),
            Data(load="m:load"),
            [],
        ),
        ("node-classification", NodeClassificationTrain(model="rgat", loss="mse"), Data(root="/d"), ["train.loss"]),
        ("graph-classification", GraphClassificationTrain(metric="f1_macro"), Data(root="/d"), ["train.metric"]),
        ("graph-classification", GraphClassificationTrain(optimizer="adamw", ema=0.9), Data(root="/d"), []),
        ("graph-classification", GraphClassificationTrain(model="m:Net", loss="l1"), Data(load="m:load"), []),
        ("link-prediction", LinkPredictionTrain(model="m:Net", metric="hits@20"), Data(load="m:load"), []),
        ("link-prediction", LinkPredictionTrain(model="m:Net", label_smoothing=0.1), Data(load="m:load"),
         ["train.label_smoothing"]),
    ],
)  # fmt: skip
def test_each_workload_refuses_what_it_cannot_learn_or_measure(
    workload: str, train: Any, data: Data, expected: list[str]
) -> None:
    assert keys(Job(name="x", workload=workload, train=train, data=data)) == expected


@pytest.mark.parametrize(
    ("settings", "data", "expected"),
    [
        ({"model": "m:Net", "generated": 0.1, "embedding_width": 8}, Data(), []),
        ({"model": "m:Net", "temporal_strategy": "last"}, Data(load="m:load"), []),
        ({"model": "m:Net", "temporal_strategy": "last"}, Data(root="/d"), ["train.temporal_strategy"]),
        ({"model": "m:Net", "temporal_strategy": "last", "replace": True}, Data(load="m:load"), ["train.replace"]),
        ({"model": "rgat", "embedding_width": 8}, Data(load="m:load"), []),
        ({"model": "gat", "embedding_width": 8}, Data(load="m:load"), ["train.embedding_width"]),
        ({"model": "GAT", "generated": 0.1}, Data(root="/d"), ["train.generated"]),
        ({"model": "rgat", "temporal_strategy": "last"}, Data(load="m:load"), ["train.temporal_strategy"]),
    ],
)
def test_keys_of_several_types_and_times_need_a_model_that_uses_them(
    settings: Any, data: Data, expected: list[str]
) -> None:
    train = NodeClassificationTrain(**settings)
    assert keys(Job(name="x", workload="node-classification", train=train, data=data)) == expected
