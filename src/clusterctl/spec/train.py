"""What each workload can be told: one frozen class per workload, every knob with its unit and reason.

A new workload adds its class here and its line in `spec.registry`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from clusterctl.spec.values import (
    AtLeast,
    AtMost,
    Count,
    Each,
    Length,
    Natural,
    NonNegative,
    NotEmpty,
    OneOf,
    Positive,
    Share,
    Window,
)

PROFILED_STEPS = (10, 20)  # of `submit --profile`: behind the warm-up, and few enough for a browser
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
    schedule: Annotated[str, OneOf(("constant", "cosine"))] = "constant"  # of lr, over all steps
    warmup: Share = 0.0  # of all steps, in which lr climbs to its value
    clip_norm: NonNegative = 0.0  # of all gradients together; 0: off
    weight_decay: NonNegative = 0.0
    seed: Natural = 0  # of weights, epoch plan, sampling and dropout
    device: Annotated[str, OneOf(("auto", "cpu", "cuda"))] = "auto"  # auto: cuda when the job asks for GPUs
    precision: Annotated[str, OneOf(("float32", "float64", "bfloat16"))] = "float32"  # bfloat16: float32 weights
    evaluate_every: Natural = 1  # epochs between evaluations on the validation split; 0: only at the end
    patience: Natural = 0  # evaluations without a better one before training ends, with the best weights; 0: off
    profile: Annotated[tuple[int, ...], Window()] = ()  # first and last step of an attempt to trace, as [10, 20]


@dataclass(frozen=True, kw_only=True)
class NodeTrain(LoopTrain):
    """Node classification with sampled neighbourhoods."""

    model: Annotated[str, OneOf(("sage", "gcn"))] = "sage"
    fan_out: FanOut = (25, 10)  # neighbours a node and hop, the seeds' hop first; -1 takes all; as many as layers
    replace: bool = False  # each of them is drawn from all neighbours: so many even where there are fewer, some twice
    hidden_channels: Count = 256
    dropout: Share = 0.0
    cache_first_aggregation: bool = False  # the first layer's inputs from all neighbours, computed once


@dataclass(frozen=True, kw_only=True)
class SyntheticTrain(NodeTrain):
    """A random graph: PyG's FakeDataset, by default with edges that prefer nodes of the same class."""

    epochs: Count = 3
    batch_size: Count = 128
    lr: Positive = 0.01
    weight_decay: NonNegative = 5e-4
    model: Annotated[str, OneOf(("sage", "gcn"))] = "gcn"
    fan_out: FanOut = (50, 50)
    hidden_channels: Count = 64
    avg_num_nodes: Count = 100_000
    graph: Annotated[str, OneOf(("homophilous", "fake-dataset"))] = "homophilous"
    """Graph to generate: edges that prefer nodes of the same class, or PyG's FakeDataset, which a GCN cannot learn."""
    homophily: Share = 0.8
    """With graph "homophilous": share of the edges placed within a class; the others ignore classes. Cora's is 0.81."""


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
class GraphClassificationTrain(LoopTrain):
    """Graph isomorphism networks on a TU data set, cross-validated over ten stratified parts."""

    epochs: Count = 40
    batch_size: Count = 32
    lr: Positive = 1e-3
    patience: Natural = 40
    model: Annotated[str, OneOf(("gin", "plain"))] = "gin"  # plain: one linear map a layer, as in DGL's tutorial
    features: Annotated[str, OneOf(("degree", "ones", "given"))] = "degree"
    layers: Count = 2
    hidden_channels: Count = 64
    readout: Annotated[str, OneOf(("mean", "sum"))] = "mean"
    dropout: Share = 0.5
    folds: Annotated[int, AtLeast(1), AtMost(10)] = 10  # of ten; with 1, a single 80/10/10 split


@dataclass(frozen=True, kw_only=True)
class TaobaoTrain(LoopTrain):
    """Link prediction between the users and items of the Taobao data set."""

    epochs: Count = 20
    batch_size: Count = 2048  # edges a rank and step; as many pairs without an edge come with them
    lr: Positive = 1e-3
    fan_out: Annotated[FanOut, Length(2)] = (8, 4)  # items of a user or item, and items of each of those; -1 takes all
    replace: bool = False  # each of them is drawn from all neighbours: so many even where there are fewer, some twice
    hidden_channels: Count = 64
    row_optimizer: Annotated[str, OneOf(("adam", "touched-rows"))] = "adam"  # of the embeddings; the second is lazier
    together: Count = 3  # items are neighbours that users took together at least so often, in the training split
    generated: NonNegative = 0.0  # without data.root: scale of a generated data set, 1 being the real one's size


@dataclass(frozen=True, kw_only=True)
class CommandTrain(Train):
    """The user's own program has its own flags: put them into `argv`."""
