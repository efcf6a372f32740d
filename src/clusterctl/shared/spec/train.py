"""The workloads, their data and their settings: one frozen class per workload, every setting with its description.

A new workload adds its class and its line in `WORKLOADS`. The string below a field is its description; `spec.keys`
reads it, and a class that only changes a default inherits it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, NamedTuple

from clusterctl.shared.spec.learning import HITS, LINK_METRICS, YOURS, Learning, changed
from clusterctl.shared.spec.values import (
    OBJECT,
    AtLeast,
    Count,
    EnvName,
    InsteadOf,
    Length,
    Line,
    Matches,
    Memory,
    Natural,
    NonNegative,
    NotEmpty,
    OneOf,
    Positive,
    Share,
    Window,
    Word,
    size_in_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


PROFILED_STEPS = (10, 20)  # for `submit --profile`: after the warm-up, and few enough for a browser
_UNSUPPORTED = "not supported by this workload and model; remove this key"
_MANY_STEPS, _SMALL_STEP = 1 << 11, 1 << 18  # of a training; numbers of a layer, of nodes x channels
FanOut = Annotated[tuple[Annotated[int, AtLeast(-1)], ...], NotEmpty()]


@dataclass(frozen=True, kw_only=True)
class Data:
    """`[data]`: where the data set is."""

    root: Line | None = None
    """Folder that holds the data set in its raw layout; relative to the job file."""
    load: Annotated[str, Matches(OBJECT, "a module and a function of your code, such as my_data:load")] | None = None
    """Function of your code, as MODULE:NAME, called with data.root, that returns PyG's Data, HeteroData, or a list of
    graphs, or three as splits."""
    undirected: bool = True
    """In the raw layouts of the Open Graph Benchmark, and for citations of IGB: whether each edge counts in both
    directions."""
    cache: Memory | None = None
    """Memory of each node for the most used features, such as "8G"; others stay on disk, or on other nodes (split)."""
    placement: Annotated[str, OneOf(("replicated", "split", "host"))] = "replicated"
    """Where features are: all on each GPU or node; "split" over the nodes; or, with the edges, on each GPU's "host"."""
    order: Annotated[str, OneOf(("given", "neighbours"))] = "given"
    """Order of the nodes in the prepared file; "neighbours" puts neighbours together, for fewer reads with `cache`."""
    disk_precision: Annotated[str, OneOf(("given", "bfloat16"))] = "given"
    """Precision of the features in the prepared file; "bfloat16" halves it, and rounds them."""

    @property
    def cache_bytes(self) -> int | None:
        """The bytes of `cache`."""
        return None if self.cache is None else size_in_bytes(self.cache)

    @property
    def is_split(self) -> bool:
        """Whether `placement` splits the features over the nodes."""
        return self.placement == "split"

    @property
    def is_on_host(self) -> bool:
        """Whether `placement` leaves edges and features in the memory of a GPU's node."""
        return self.placement == "host"


@dataclass(frozen=True, kw_only=True)
class Train:
    """`[train]` of a workload without settings."""

    def contradictions(self, workload: str, data: Data) -> Iterator[tuple[str, str]]:
        """Keys that contradict others, such as "train.replace", each with its problem."""
        if data.load and not WORKLOADS[workload].loads:
            yield "data.load", f'not supported by workload "{workload}"'
        for name, is_set in (("cache", data.cache is not None), ("placement", data.placement != "replicated")):
            if is_set and (why := self.why_features_stay(workload)):
                yield f"data.{name}", why
            elif name == "placement" and data.is_on_host and (why := self.why_edges_move(workload)):
                yield "data.placement", why
        for name in ("order", "disk_precision"):
            if getattr(data, name) != "given" and not self.reads_arranged_graphs:
                yield f"data.{name}", f'not supported by workload "{workload}" and this model; remove this key'

    def misfits(self, *, ranks: int, has_gpus: bool) -> Iterator[tuple[str, str]]:  # noqa: ARG002 - of other workloads
        """Keys that contradict the requested resources, like `contradictions`; under torchrun, there is no request."""
        yield from ()

    @property
    def option_tables(self) -> dict[str, type]:
        """The keys that hold options of a built-in part, such as "options", each with the options of that part."""
        return {}

    def why_features_stay(self, workload: str) -> str:
        """Why every node must hold all features in memory; empty if it need not."""
        return f'workload "{workload}" reads no features of sampled nodes'

    def why_edges_move(self, workload: str) -> str:
        """Why a GPU must hold all edges; empty if samples can be drawn in its host's memory."""
        return f'"host" is not supported by workload "{workload}"; use "split" or data.cache'

    @property
    def reads_arranged_graphs(self) -> bool:
        """Whether it reads a prepared graph of one node type."""
        return False


@dataclass(frozen=True, kw_only=True)
class LoopTrain(Train):
    """Settings of the training loop, for any model."""

    epochs: Count = 1
    """Passes over the training data."""
    batch_size: Count | None = 128
    """Examples per rank and step; the global batch is this times the number of ranks."""
    global_batch_size: Annotated[Count, InsteadOf("batch_size")] | None = None
    """Total batch size of all ranks, independent of their number; use it instead of batch_size."""
    lr: Positive = 0.01
    """Learning rate."""
    schedule: Annotated[str, OneOf(("constant", "cosine", "step", "plateau"))] = "constant"
    """How the learning rate changes after the warm-up: by "step" every few epochs, on a "plateau" of the validation
    score."""
    schedule_every: Count = 10
    """With schedule "step": epochs from one change to the next; with "plateau": evaluations without improvement before
    one."""
    schedule_factor: Share = 0.1
    """With schedule "step" and "plateau": what each change multiplies the learning rate by."""
    warmup: Share = 0.0
    """Fraction of all steps over which the learning rate ramps up."""
    clip_norm: NonNegative = 0.0
    """Maximum norm of all gradients together; 0 disables clipping."""
    weight_decay: NonNegative = 0.0
    """L2 penalty on the weights."""
    seed: Natural = 0
    """Seed of the weights, the order of the examples, sampling and dropout."""
    device: Annotated[str, OneOf(("auto", "cpu", "cuda"))] = "auto"
    """Device of each rank; "auto" is cuda if the job requests GPUs."""
    precision: Annotated[str, OneOf(("float32", "float64", "bfloat16"))] = "float32"
    """Type of features and activations; with bfloat16, weights and optimizer stay float32."""
    tf32: bool = False
    """On GPUs: whether products of float32 matrices round their inputs to TF32, which is faster and less exact."""
    evaluate_every: Natural = 1
    """Epochs between evaluations on the validation split; 0 evaluates only at the end."""
    patience: Natural = 0
    """Early stopping: evaluations without improvement after which training stops, with the best weights; 0: never."""
    stop_early: Natural = 0
    """Successive halving (ASHA) in a sweep: the epoch at which the worse half stops, again after twice as many, and so
    on; 0: never."""
    profile: Annotated[tuple[int, ...], Window()] = ()
    """First and last step to trace in each attempt, such as [10, 20]."""

    def contradictions(self, workload: str, data: Data) -> Iterator[tuple[str, str]]:
        if 0 in getattr(self, "fan_out", ()):
            yield "train.fan_out", "needs one number per layer, each above 0, or -1 for all neighbours"
        if getattr(self, "sampling", "uniform") == "labor" and getattr(self, "replace", False):
            yield "train.replace", 'sampling "labor" draws without replacement; remove this key'
        if self.tf32 and (self.precision != "float32" or self.device == "cpu"):
            key = "precision" if self.precision != "float32" else "device"
            yield "train.tf32", f'has no effect with train.{key} = "{getattr(self, key)}"; remove this key'
        if self.schedule == "plateau" and not self.evaluate_every:
            yield "train.schedule", '"plateau" needs evaluations; set train.evaluate_every'
        if self.schedule not in ("step", "plateau"):
            why = f'has no effect with schedule "{self.schedule}"'
            yield from changed(self, ("schedule_every", "schedule_factor"), why)
        yield from super().contradictions(workload, data)

    def misfits(self, *, ranks: int, has_gpus: bool) -> Iterator[tuple[str, str]]:  # noqa: ARG002 - of the base class
        if self.device == "cuda" and not has_gpus:
            yield "train.device", '"cuda" needs resources.gpus_per_node'


def _no_gpu(train: LoopTrain) -> str:
    """Why nothing needs to stay on the host of a GPU; empty if there may be one."""
    return '"host" is for GPUs, and train.device = "cpu"; remove one of the two' if train.device == "cpu" else ""


@dataclass(frozen=True, kw_only=True)
class NodeTrain(LoopTrain):
    """Node classification with sampled neighbourhoods."""

    model: Annotated[str, OneOf(("sage", "gcn"))] = "sage"
    """Graph convolution to use."""
    fan_out: FanOut = (25, 10)
    """Neighbours to sample per node in each hop, one number per layer, the seed nodes' hop first; -1 takes all."""
    sampling: Annotated[str, OneOf(("uniform", "labor"))] = "uniform"
    """How to draw neighbours: each node on its own, or nodes with common neighbours the same ones (LABOR), which reads
    fewer features."""
    replace: bool = False
    """Whether to sample neighbours with replacement; not with LABOR."""
    hidden_channels: Count = 256
    """Width of the hidden layers."""
    dropout: Share = 0.0
    """Fraction of activations to drop in training."""
    cache_first_aggregation: bool = False
    """Whether to compute the first layer's aggregation once, over all neighbours, instead of sampling it."""
    cuda_graph: bool = False
    """On GPUs: whether to capture a step as CUDA graphs, which the host starts at once."""

    def why_features_stay(self, workload: str) -> str:  # noqa: ARG002 - of the base class
        if self.cache_first_aggregation:
            return "train.cache_first_aggregation keeps a table as large as the features in memory"
        return "train.cuda_graph captures no rows that are fetched; remove one of the two" if self.cuda_graph else ""

    def why_edges_move(self, workload: str) -> str:  # noqa: ARG002 - of the base class
        return _no_gpu(self)


@dataclass(frozen=True, kw_only=True)
class GatOptions:
    """`train.options` of the models "gat" and "rgat"."""

    hidden: Count = 32
    """Width of each attention head of the hidden layers, whose outputs are concatenated."""
    heads: Count = 8
    """Attention heads of the hidden layers."""
    output_heads: Count = 1
    """Attention heads of the last layer, whose outputs are averaged."""
    dropout: Share = 0.5
    """Fraction of activations between layers to drop in training."""
    attention_dropout: Share = 0.0
    """Fraction of attention weights to drop in training."""
    self_loops: bool = True
    """Whether each node also attends to itself; in "rgat", in relations between nodes of one type."""
    residual: bool = False
    """Whether each layer adds a linear map of the node's own features; in "rgat", one for each relation."""


BUILT_IN = {"gat": GatOptions, "rgat": GatOptions}
"""The built-in models of node classification, and the options of each."""


@dataclass(frozen=True, kw_only=True)
class PygOptions:
    """`train.options` of the models of torch_geometric.nn.models: the arguments of the class."""

    hidden_channels: Count = 64
    """Width of the hidden layers."""
    num_layers: Count | None = None
    """Number of layers; by default the length of fan_out."""
    dropout: Share = 0.0
    """Fraction of activations between layers to drop in training."""
    act: Word | None = "relu"
    """Activation between layers, by PyG's name."""
    act_first: bool = False
    """Whether the activation comes before the normalization."""
    norm: Word | None = None
    """Normalization between layers, by PyG's name, such as "LayerNorm"."""
    jk: Annotated[str, OneOf(("last", "cat", "max", "lstm"))] | None = None
    """Jumping knowledge: how the outputs of all layers are combined."""


@dataclass(frozen=True, kw_only=True)
class PygSageOptions(PygOptions):
    """`train.options` of the model "GraphSAGE"."""

    aggr: Word = "mean"
    """How neighbours are combined, by PyG's name."""
    normalize: bool = False
    """Whether outputs of layers are scaled to length 1."""
    root_weight: bool = True
    """Whether a node's own row counts."""
    project: bool = False
    """Whether neighbours pass a linear map before they are combined."""
    bias: bool = True
    """Whether layers add a bias."""


@dataclass(frozen=True, kw_only=True)
class PygGcnOptions(PygOptions):
    """`train.options` of the model "GCN"."""

    improved: bool = False
    """Whether self loops count twice."""
    add_self_loops: bool = True
    """Whether each node is its own neighbour."""
    normalize: bool = True
    """Whether edges are weighted by the degrees of their nodes."""
    bias: bool = True
    """Whether layers add a bias."""


@dataclass(frozen=True, kw_only=True)
class PygGatOptions(PygOptions):
    """`train.options` of the model "GAT"."""

    v2: bool = False
    """Whether layers are GATv2Conv instead of GATConv."""
    heads: Count = 1
    """Attention heads of each layer."""
    concat: bool = True
    """Whether the heads of hidden layers are concatenated, and not averaged."""
    negative_slope: NonNegative = 0.2
    """Slope of the leaky ReLU of the attention."""
    add_self_loops: bool = True
    """Whether each node is its own neighbour."""
    residual: bool = False
    """Whether layers add a linear map of their input."""
    bias: bool = True
    """Whether layers add a bias."""


@dataclass(frozen=True, kw_only=True)
class PygGinOptions(PygOptions):
    """`train.options` of the model "GIN"."""

    eps: float = 0.0
    """Initial weight of a node's own row, beside 1."""
    train_eps: bool = False
    """Whether that weight is trained."""


@dataclass(frozen=True, kw_only=True)
class PygPnaOptions(PygOptions):
    """`train.options` of the model "PNA"; the degrees are those of your graph."""

    aggregators: Word = "mean,min,max,std"
    """How neighbours are combined, by PyG's names, with commas."""
    scalers: Word = "identity,amplification,attenuation"
    """How the results are scaled by degree, by PyG's names, with commas."""
    towers: Count = 1
    """Number of parts into which channels are divided."""
    pre_layers: Count = 1
    """Linear maps before neighbours are combined."""
    post_layers: Count = 1
    """Linear maps after neighbours are combined."""
    divide_input: bool = False
    """Whether each tower gets a part of the input."""


@dataclass(frozen=True, kw_only=True)
class PygEdgeCnnOptions(PygOptions):
    """`train.options` of the model "EdgeCNN"."""

    aggr: Word = "max"
    """How neighbours are combined, by PyG's name."""


PYG_MODELS = {
    "GraphSAGE": PygSageOptions,
    "GCN": PygGcnOptions,
    "GAT": PygGatOptions,
    "GIN": PygGinOptions,
    "PNA": PygPnaOptions,
    "EdgeCNN": PygEdgeCnnOptions,
}
"""The classes of torch_geometric.nn.models that node classification knows by name, and the options of each."""


@dataclass(frozen=True, kw_only=True)
class NodeClassificationTrain(Learning, LoopTrain):
    """A graph attention network, a model of PyG or your own, on a graph that your own code loads, or in the raw layout
    of PyG's Reddit, of the Open Graph Benchmark or of IGB-heterogeneous."""

    epochs: Count = 20
    model: Annotated[
        str,
        OneOf(
            ("gat", "rgat", *PYG_MODELS), OBJECT, "a module and a class or function of your code, such as my_model:Net"
        ),
    ]
    """"gat" (GATv2), "rgat" (GATv2 for each relation), a class of torch_geometric.nn.models, or your class or function,
    as MODULE:NAME."""
    options: dict[EnvName, object] = field(default_factory=dict)
    """Options of the model, by name: those of the named models, or of your class, as its dataclass `Options` or as
    keyword arguments."""
    batch: Annotated[str, OneOf(("sampled", "clusters", "graph"))] = "sampled"
    """What a step trains on: sampled neighbourhoods, a subgraph of clusters for each rank (Cluster-GCN), or the whole
    graph on one rank."""
    clusters: Count = 100
    """With batch "clusters": parts into which the graph is divided, with few edges between them."""
    clusters_per_subgraph: Count = 10
    """With batch "clusters": parts that make a subgraph, others in each epoch; it has all edges between its nodes."""
    sampler: Annotated[str, Matches(OBJECT, "a module and a class of your code, such as my_code:Sampler")] | None = None
    """Your class, as MODULE:NAME, whose `sample` chooses the nodes and edges around the nodes of a batch."""
    hops: Natural = 0
    """Evaluates forward(x, edge_index) in pieces with this many hops; 0: at once if memory suffices, else with as many
    hops as outputs depend on."""
    fan_out: FanOut = (25, 10)
    """Neighbours to sample per node in each hop, one number per layer, the seed nodes' hop first; -1 takes all."""
    sampling: Annotated[str, OneOf(("uniform", "labor"))] = "uniform"
    """How to draw neighbours: each node on its own, or nodes with common neighbours the same ones (LABOR), which reads
    fewer features."""
    replace: bool = False
    """Whether to sample neighbours with replacement; not with LABOR."""
    generated: NonNegative = 0.0
    """With "rgat" or your own model, and without data: size of the generated graph, as a multiple of
    IGB-heterogeneous."""
    temporal_strategy: Annotated[str, OneOf(("uniform", "last"))] = "uniform"
    """On data with times: which neighbours of those that an example may see are sampled, random ones or the latest."""
    embedding_width: Count = 64
    """On several types of nodes: width of the embeddings that are learned for types without features."""

    def contradictions(self, workload: str, data: Data) -> Iterator[tuple[str, str]]:
        if self.model == "rgat" and self.sampling == "labor":
            yield "train.sampling", 'model "rgat" samples uniformly; remove this key'
        if self.generated and self.model != "rgat" and ":" not in self.model:
            yield "train.generated", f'model "{self.model}" has no graph to generate; set data.root or data.load'
        if (
            self.embedding_width != NodeClassificationTrain.embedding_width
            and self.model != "rgat"
            and ":" not in self.model
        ):
            yield "train.embedding_width", f'model "{self.model}" takes one type of nodes; remove this key'
        if self.temporal_strategy == "last" and self.replace:
            yield "train.replace", "the latest neighbours are taken once; remove this key"
        if self.temporal_strategy != "uniform" and (":" not in self.model or not data.load):
            yield "train.temporal_strategy", "needs your own model, and data of your own with times; remove this key"
        why = f'has no effect with train.batch = "{self.batch}"; remove this key'
        if self.batch != "clusters":
            yield from changed(self, ("clusters", "clusters_per_subgraph"), why)
        elif self.batch_size not in (None, NodeClassificationTrain.batch_size):
            what = "each rank trains on one subgraph per step; set train.clusters_per_subgraph or global_batch_size"
            yield "train.batch_size", what
        if self.batch != "sampled":
            yield from changed(self, ("fan_out", "sampling", "replace", "sampler"), why)
        elif self.sampler:
            yield from changed(self, ("sampling", "replace"), "has no effect with train.sampler; remove this key")
        if self.batch == "graph":
            yield from changed(self, ("batch_size", "global_batch_size", "accumulate"), why)
            if data.cache is not None or data.is_split:
                key = "cache" if data.cache is not None else "placement"
                yield f"data.{key}", 'train.batch = "graph" reads all features in each step; remove this key'
        if self.model in BUILT_IN:
            yield from changed(self, ("batch", "hops", "sampler"), f'model "{self.model}" has layers; remove this key')
        classes = "" if data.load else "needs data of your own: set data.load; the labels of these are classes"
        yield from self.problems_of_learning(links=False, classes_only=classes)
        yield from super().contradictions(workload, data)

    def misfits(self, *, ranks: int, has_gpus: bool) -> Iterator[tuple[str, str]]:
        yield from super().misfits(ranks=ranks, has_gpus=has_gpus)
        if self.batch == "graph" and ranks > 1:
            message = '"graph" trains on the whole graph in one step, which one rank computes; remove this key to use'
            yield "train.batch", f"{message} {ranks} ranks"

    @property
    def option_tables(self) -> dict[str, type]:
        kind = (BUILT_IN | PYG_MODELS).get(self.model)
        return ({"options": kind} if kind else {}) | super().option_tables

    def why_features_stay(self, workload: str) -> str:  # noqa: ARG002 - of the base class
        return ""

    def why_edges_move(self, workload: str) -> str:  # noqa: ARG002 - of the base class
        if self.model == "rgat":
            return '"host" is not supported by model "rgat"; use "split" or data.cache'
        if self.batch != "sampled" or self.sampler:
            key = "sampler" if self.sampler else f'batch = "{self.batch}"'
            return f"train.{key} reads edges where the model is; remove one of the two"
        return _no_gpu(self)

    @property
    def reads_arranged_graphs(self) -> bool:
        return self.model != "rgat"

    @property
    def functions(self) -> tuple[str, ...]:
        return (*super().functions, *([self.sampler] if self.sampler else []))


@dataclass(frozen=True, kw_only=True)
class SyntheticTrain(NodeTrain):
    """A random graph: PyG's FakeDataset, by default with edges that prefer nodes of the same class."""

    epochs: Count = 3
    weight_decay: NonNegative = 5e-4
    model: Annotated[str, OneOf(("sage", "gcn"))] = "gcn"
    fan_out: FanOut = (50, 50)
    hidden_channels: Count = 64
    avg_num_nodes: Count = 100_000
    """Approximate number of nodes of the generated graph."""
    graph: Annotated[str, OneOf(("homophilous", "fake-dataset"))] = "homophilous"
    """Graph to generate: edges that prefer nodes of the same class, or PyG's FakeDataset, which a GCN cannot learn."""
    homophily: Share = 0.8
    """With graph "homophilous": share of edges placed within a class (the others ignore classes); Cora's is 0.81."""


@dataclass(frozen=True, kw_only=True)
class RedditTrain(NodeTrain):
    """Two-layer GraphSAGE on one graph in the raw layout of PyG's Reddit or of the Open Graph Benchmark."""

    epochs: Count = 20
    batch_size: Count | None = 1024
    lr: Positive = 1e-3
    dropout: Share = 0.5
    reads_arranged_graphs = True


@dataclass(frozen=True, kw_only=True)
class DeepSageTrain(NodeTrain):
    """Three-layer GraphSAGE with small fan-outs, on one graph in the raw layout of PyG's Reddit or of the Open Graph
    Benchmark."""

    epochs: Count = 10
    batch_size: Count | None = 1024
    lr: Positive = 1e-3
    fan_out: FanOut = (4, 4, 4)
    hidden_channels: Count = 128
    reads_arranged_graphs = True


@dataclass(frozen=True, kw_only=True)
class GraphClassificationTrain(Learning, LoopTrain):
    """Graph isomorphism networks on a TU data set, cross-validated over ten stratified parts."""

    epochs: Count = 40
    batch_size: Count | None = 32
    lr: Positive = 1e-3
    patience: Natural = 40
    model: Annotated[
        str, OneOf(("gin", "plain"), OBJECT, "a module and a class of your code, such as my_model:Net")
    ] = "gin"
    """Graph convolution ("plain": one linear map per layer), or your class, as MODULE:NAME, called with the numbers of
    features and classes."""
    options: dict[EnvName, object] = field(default_factory=dict)
    """Options of your own model, by name: fields of its dataclass `Options`, or keyword arguments."""
    features: Annotated[str, OneOf(("auto", "degree", "ones", "given"))] = "auto"
    """Node features: one-hot degree, a constant, or those of the data set; "auto": those of the data for your own
    model, if any, else the degree."""
    layers: Count = 2
    """Number of graph convolutions."""
    hidden_channels: Count = 64
    """Width of the hidden layers."""
    readout: Annotated[str, OneOf(("mean", "sum"))] = "mean"
    """How the nodes of a graph are pooled."""
    dropout: Share = 0.5
    """Fraction of activations to drop in training."""
    folds: Annotated[int, AtLeast(1, 10)] = 10
    """How many of the ten folds to run; 1 is a single 80/10/10 split."""

    def contradictions(self, workload: str, data: Data) -> Iterator[tuple[str, str]]:
        yield from super().contradictions(workload, data)
        if ":" in self.model:
            why = "has no effect on your own model; set it in train.options"
            yield from changed(self, ("layers", "hidden_channels", "readout", "dropout"), why)
        elif self.options:
            yield "train.options", f'model "{self.model}" has no options; set layers, hidden_channels and the like'
        if ":" not in self.model:
            yield from changed(self, ("loss", "class_weights", "label_smoothing", "metric"), _UNSUPPORTED)
        classes = "" if data.load else "needs data of your own: set data.load; the labels of these are classes"
        yield from self.problems_of_learning(links=False, classes_only=classes)
        if self.stop_early and self.folds > 1:
            yield "train.stop_early", "not supported with several folds"

    def has_many_small_steps(self, steps: int, nodes: float) -> bool:
        """Whether its loops are worth compiling on a CPU: with so many steps an epoch, on so many nodes of all ranks.

        Importing numba takes a second, and compiling three where nothing is cached. Larger steps gain from torch's
        threads and products.
        """
        many = steps * self.epochs * self.folds >= _MANY_STEPS
        return many and nodes * self.hidden_channels <= _SMALL_STEP


@dataclass(frozen=True, kw_only=True)
class LinkPredictionTrain(Learning, LoopTrain):
    """Link prediction with your own model, on a graph that your code loads."""

    epochs: Count = 20
    loss: Annotated[str, OneOf(("bce_with_logits",), OBJECT, YOURS)] = "bce_with_logits"
    """What to minimise: "bce_with_logits", or your function of scores and y (1 for an edge, 0 for none), as
    MODULE:NAME."""
    metric: Annotated[str, OneOf(LINK_METRICS, f"{HITS}|{OBJECT}", f"hits@K, {YOURS}")] = "roc_auc"
    """How the scores of pairs are measured, such as by "hits@20", or by your function of predictions and y, as
    MODULE:NAME."""
    model: Annotated[str, Matches(OBJECT, "a module and a class or function of your code, such as my_model:Net")]
    """Class or function of your code, as MODULE:NAME, that creates the model from the number of features, or by type
    from metadata."""
    options: dict[EnvName, object] = field(default_factory=dict)
    """Options of the model, by name: fields of its dataclass `Options`, or keyword arguments."""
    fan_out: FanOut = (10, 10)
    """Neighbours to sample per node in each hop, one number per layer, the pairs' hop first; -1 takes all."""
    negatives: Natural = 1
    """Pairs without an edge to draw in training for each edge; 0 if the data has all of them, with edge_label 0."""
    replace: bool = False
    """Whether to sample neighbours with replacement."""
    embedding_width: Count = 64
    """On several types of nodes: width of the embeddings that are learned for types without features."""

    def contradictions(self, workload: str, data: Data) -> Iterator[tuple[str, str]]:
        yield from super().contradictions(workload, data)
        yield from changed(self, ("report_train",), _UNSUPPORTED)
        yield from self.problems_of_learning(links=True, classes_only="")
        if not data.load:
            yield "data.load", "is missing: a function of your code that returns the graph, such as my_data:load"

    def why_features_stay(self, workload: str) -> str:  # noqa: ARG002 - of the base class
        return ""


@dataclass(frozen=True, kw_only=True)
class TaobaoTrain(LoopTrain):
    """Link prediction between the users and items of the Taobao data set."""

    epochs: Count = 20
    batch_size: Count | None = 2048
    """Edges per rank and step, plus as many negative pairs; the global batch is this times the number of ranks."""
    lr: Positive = 1e-3
    fan_out: Annotated[FanOut, Length(2)] = (8, 4)
    """Items to sample for each user or item, and then for each of those; -1 takes all."""
    replace: bool = False
    """Whether to sample neighbours with replacement."""
    hidden_channels: Count = 64
    """Width of the hidden layers."""
    row_optimizer: Annotated[str, OneOf(("adam", "touched-rows"))] = "adam"
    """Optimizer of the embeddings; "touched-rows" updates only the rows that a step used, which is faster but not
    equivalent."""
    together: Count = 3
    """Two items are neighbours if at least this many users of the training split took both."""
    generated: NonNegative = 0.0
    """Without data.root: size of the generated data set, as a multiple of the real one."""


@dataclass(frozen=True, kw_only=True)
class CommandTrain(Train):
    """The user's own program has its own flags: put them into `argv`."""


_REDDIT_FORMAT = ("raw/reddit_data.npz", "raw/reddit_graph.npz")
_OGB_SPLITS = ("train", "valid", "test")
OGB_TABLES = (  # ogbn-arxiv, ogbn-products
    *(f"raw/{name}.csv.gz" for name in ("edge", "num-edge-list", "num-node-list", "node-feat", "node-label")),
    *(f"split/*/{part}.csv.gz" for part in _OGB_SPLITS),
)
OGB_ARCHIVES = (  # ogbn-papers100M
    "raw/data.npz",
    "raw/node-label.npz",
    *(f"split/*/{part}.csv.gz" for part in _OGB_SPLITS),
)
OGB_RELATIONS = (  # ogbn-mag
    "raw/triplet-type-list.csv.gz",
    "raw/num-node-dict.csv.gz",
    *(f"raw/relations/*/{name}.csv.gz" for name in ("edge", "num-edge-list")),
    *(f"raw/{name}/*/{name}.csv.gz" for name in ("node-feat", "node-label")),
    *(f"split/*/*/{part}.csv.gz" for part in _OGB_SPLITS),
)
IGB_ARRAYS = (  # IGB-heterogeneous
    *(f"processed/{kind}/node_feat.npy" for kind in ("paper", "author", "institute", "fos")),
    "processed/paper/node_label_19.npy",
    *(
        f"processed/{relation}/edge_index.npy"
        for relation in (
            "paper__cites__paper", "paper__written_by__author", "author__affiliated_to__institute", "paper__topic__fos"
        )
    ),
)  # fmt: skip
NODE_LAYOUTS = (_REDDIT_FORMAT, OGB_TABLES, OGB_ARCHIVES, OGB_RELATIONS)
_TAOBAO_FORMAT = ("raw/UserBehavior.csv",)
_TU_FORMAT = ("raw/*_A.txt", "raw/*_graph_indicator.txt", "raw/*_graph_labels.txt")


def likeliest(layouts: Sequence[tuple[str, ...]], root: Path) -> tuple[str, ...]:
    """The layout with the largest share of its files in the folder; the first one in a tie."""
    return max(layouts, key=lambda layout: sum(any(root.glob(part)) for part in layout) / len(layout))


class Workload(NamedTuple):
    """A workload's settings and data layouts; `engine.workloads` knows its module."""

    train: type[Train]
    data: tuple[tuple[str, ...], ...] = ()
    """The layouts that it reads, the usual one first: each a tuple of path patterns."""
    data_set: str = ""
    """Its name for `clusterctl data`."""
    example: str = ""
    """A small data set in that format that comes with clusterctl."""
    loads: bool = False
    """Whether a user function may load its data."""


WORKLOADS: dict[str, Workload] = {
    "synthetic": Workload(SyntheticTrain),
    "reddit": Workload(RedditTrain, NODE_LAYOUTS, "reddit"),
    "deep-sage": Workload(DeepSageTrain, NODE_LAYOUTS, "reddit"),
    "node-classification": Workload(NodeClassificationTrain, (*NODE_LAYOUTS, IGB_ARRAYS), example="cora", loads=True),
    "link-prediction": Workload(LinkPredictionTrain, loads=True),
    "taobao": Workload(TaobaoTrain, (_TAOBAO_FORMAT,), "taobao"),
    "graph-classification": Workload(GraphClassificationTrain, (_TU_FORMAT,), example="IMDB-BINARY", loads=True),
    "command": Workload(CommandTrain),
}
SCRIPT = "script"
"""The workload of a user's own batch script. No job file has it: `clusterctl submit SCRIPT` makes such a job."""
