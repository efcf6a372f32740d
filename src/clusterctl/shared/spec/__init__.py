"""What users can specify: jobs, clusters, workloads. Frozen dataclasses, standard library only."""

from clusterctl.shared.spec.batches import Batches, TrainingSet, batch_key
from clusterctl.shared.spec.cluster import Cluster, Emulator
from clusterctl.shared.spec.job import Checkpoint, Container, Job, Resources, Watchdog
from clusterctl.shared.spec.learning import OPTIMIZERS, AdamOptions, Learning, SgdOptions
from clusterctl.shared.spec.records import from_record, to_record
from clusterctl.shared.spec.train import (
    BUILT_IN,
    PROFILED_STEPS,
    PYG_MODELS,
    SCRIPT,
    WORKLOADS,
    CommandTrain,
    Data,
    DeepSageTrain,
    GatOptions,
    GraphClassificationTrain,
    LinkPredictionTrain,
    LoopTrain,
    NodeClassificationTrain,
    NodeTrain,
    RedditTrain,
    SyntheticTrain,
    TaobaoTrain,
    Train,
)

__all__ = [
    "BUILT_IN",
    "OPTIMIZERS",
    "PROFILED_STEPS",
    "PYG_MODELS",
    "SCRIPT",
    "WORKLOADS",
    "AdamOptions",
    "Batches",
    "Checkpoint",
    "Cluster",
    "CommandTrain",
    "Container",
    "Data",
    "DeepSageTrain",
    "Emulator",
    "GatOptions",
    "GraphClassificationTrain",
    "Job",
    "Learning",
    "LinkPredictionTrain",
    "LoopTrain",
    "NodeClassificationTrain",
    "NodeTrain",
    "RedditTrain",
    "Resources",
    "SgdOptions",
    "SyntheticTrain",
    "TaobaoTrain",
    "Train",
    "TrainingSet",
    "Watchdog",
    "batch_key",
    "from_record",
    "to_record",
]
