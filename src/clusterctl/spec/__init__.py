"""What can be asked for: jobs, clusters, workloads. Frozen dataclasses, standard library only.

`job` and `cluster` mirror the two kinds of file; `train` has one class per workload and their table; `values` holds
durations, bounds and choices; `records` turns all of it into JSON and back; `keys` lists every key with its
description, `schema` writes the same as JSON schemas for editors.
"""

from clusterctl.spec.cluster import Cluster, Emulator
from clusterctl.spec.job import Checkpoint, Container, Data, Job, Resources, Restart, Watchdog
from clusterctl.spec.records import from_record, to_record
from clusterctl.spec.train import (
    PROFILED_STEPS,
    WORKLOADS,
    CommandTrain,
    DeepSageTrain,
    GraphClassificationTrain,
    LoopTrain,
    NodeTrain,
    RedditTrain,
    SyntheticTrain,
    TaobaoTrain,
    Train,
    Workload,
)

__all__ = [
    "PROFILED_STEPS",
    "WORKLOADS",
    "Checkpoint",
    "Cluster",
    "CommandTrain",
    "Container",
    "Data",
    "DeepSageTrain",
    "Emulator",
    "GraphClassificationTrain",
    "Job",
    "LoopTrain",
    "NodeTrain",
    "RedditTrain",
    "Resources",
    "Restart",
    "SyntheticTrain",
    "TaobaoTrain",
    "Train",
    "Watchdog",
    "Workload",
    "from_record",
    "to_record",
]
