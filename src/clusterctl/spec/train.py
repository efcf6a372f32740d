"""What each workload can be told: one frozen class per workload, every knob with its unit and reason.

A new workload adds its class here and its line in `spec.registry`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from clusterctl.spec.values import AtLeast, Count, Each, Natural, NonNegative, NotEmpty, OneOf, Positive, Share

FanOut = Annotated[tuple[int, ...], NotEmpty(), Each(AtLeast(-1))]


@dataclass(frozen=True, kw_only=True)
class Train:
    """`[train]` of a workload that has nothing to set."""


@dataclass(frozen=True, kw_only=True)
class LoopTrain(Train):
    """What the training loop itself needs, whatever the model."""

    epochs: Count = 1
    batch_size: Count = 128  # seeds a rank and step; the global batch is this times the ranks
    lr: Positive = 0.01
    weight_decay: NonNegative = 0.0
    seed: Natural = 0  # of weights, epoch plan, sampling and dropout
    device: Annotated[str, OneOf(("auto", "cpu", "cuda"))] = "auto"  # auto: cuda when the job asks for GPUs
    precision: Annotated[str, OneOf(("float32", "float64"))] = "float32"
    evaluate_every: Natural = 1  # epochs between evaluations on the validation split; 0: only at the end


@dataclass(frozen=True, kw_only=True)
class NodeTrain(LoopTrain):
    """Node classification with sampled neighbourhoods."""

    model: Annotated[str, OneOf(("sage", "gcn"))] = "sage"
    fan_out: FanOut = (25, 10)  # neighbours a node and hop, the seeds' hop first; -1 takes all; as many as layers
    hidden_channels: Count = 256
    dropout: Share = 0.0


@dataclass(frozen=True, kw_only=True)
class SyntheticTrain(NodeTrain):
    """PyG's FakeDataset. Its GCN cannot learn (the labels of a neighbourhood are random); `model = "sage"` can."""

    epochs: Count = 3
    batch_size: Count = 128
    lr: Positive = 0.01
    weight_decay: NonNegative = 5e-4
    model: Annotated[str, OneOf(("sage", "gcn"))] = "gcn"
    fan_out: FanOut = (50, 50)
    hidden_channels: Count = 64
    avg_num_nodes: Count = 100_000


@dataclass(frozen=True, kw_only=True)
class RedditTrain(NodeTrain):
    """Two-layer GraphSAGE on one graph in the raw format of the Reddit data set."""

    epochs: Count = 20
    batch_size: Count = 1024
    lr: Positive = 1e-3
    fan_out: FanOut = (25, 10)
    hidden_channels: Count = 256
    dropout: Share = 0.5


@dataclass(frozen=True, kw_only=True)
class DeepSageTrain(NodeTrain):
    """Three-layer GraphSAGE with small fan-outs on one graph in the raw format of the Reddit data set."""

    epochs: Count = 10
    batch_size: Count = 1024
    lr: Positive = 1e-3
    fan_out: FanOut = (4, 4, 4)
    hidden_channels: Count = 128


@dataclass(frozen=True, kw_only=True)
class CommandTrain(Train):
    """The user's own program has its own flags: put them into `argv`."""
