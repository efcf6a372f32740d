"""Workload name -> (its Train class, the module that runs it). The module is imported inside the task alone."""

from __future__ import annotations

from typing import NamedTuple

from clusterctl.spec.train import (
    CommandTrain,
    DeepSageTrain,
    GraphClassificationTrain,
    RedditTrain,
    SyntheticTrain,
    TaobaoTrain,
    Train,
)


class Workload(NamedTuple):
    train: type[Train]
    module: str


WORKLOADS: dict[str, Workload] = {
    "synthetic": Workload(SyntheticTrain, "clusterctl.workloads.synthetic"),
    "reddit": Workload(RedditTrain, "clusterctl.workloads.reddit"),
    "deep-sage": Workload(DeepSageTrain, "clusterctl.workloads.deep_sage"),
    "taobao": Workload(TaobaoTrain, "clusterctl.workloads.taobao"),
    "graph-classification": Workload(GraphClassificationTrain, "clusterctl.workloads.graph_classification"),
    "command": Workload(CommandTrain, "clusterctl.workloads.command"),
}
