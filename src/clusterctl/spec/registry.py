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

_REDDIT_FORMAT = ("raw/reddit_data.npz", "raw/reddit_graph.npz")
_TAOBAO_FORMAT = ("raw/UserBehavior.csv",)
_TU_FORMAT = ("raw/*_A.txt", "raw/*_graph_indicator.txt", "raw/*_graph_labels.txt")


class Workload(NamedTuple):
    """`data`: what the folder of its data set holds, as patterns; `data_set`: its name for `clusterctl data`."""

    train: type[Train]
    module: str
    data: tuple[str, ...] = ()
    data_set: str = ""


WORKLOADS: dict[str, Workload] = {
    "synthetic": Workload(SyntheticTrain, "clusterctl.workloads.synthetic"),
    "reddit": Workload(RedditTrain, "clusterctl.workloads.reddit", _REDDIT_FORMAT, "reddit"),
    "deep-sage": Workload(DeepSageTrain, "clusterctl.workloads.deep_sage", _REDDIT_FORMAT, "reddit"),
    "taobao": Workload(TaobaoTrain, "clusterctl.workloads.taobao", _TAOBAO_FORMAT, "taobao"),
    "graph-classification": Workload(GraphClassificationTrain, "clusterctl.workloads.graph_classification", _TU_FORMAT),
    "command": Workload(CommandTrain, "clusterctl.workloads.command"),
}
