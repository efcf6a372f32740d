"""The memory that a built-in training needs, by formula from the sizes of its data and its model, before it ever runs.

A node holds one copy of each table that its ranks share; the data set itself is a mapped file, which does not count.
Each rank holds its part of Python, its weights and their optimizer, prepared batches, what a step computes, and the
pieces of an evaluation; models of PyG are evaluated by the first rank, on the whole graph at once if memory suffices.
Without GPUs freed memory is kept (docs/decisions, "Programs and their environment"), and a
part of it is of no use for tensors of other sizes. `benchmarks/memory_formula.py` compares the formula with runs, and
docs/benchmarks/data-and-memory.md has the result. What it gives for GPUs was never compared with one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from math import expm1
from typing import TYPE_CHECKING, Any

from clusterctl.launcher.checks.data_size import DataSize, data_size, distinct, training_set
from clusterctl.launcher.checks.surroundings import Check, Estimate, size_in_words, warn
from clusterctl.launcher.slurm.nodes import asked_of
from clusterctl.shared.spec import (
    PYG_MODELS,
    Batches,
    GatOptions,
    GraphClassificationTrain,
    LoopTrain,
    NodeClassificationTrain,
    NodeTrain,
    TaobaoTrain,
    batch_key,
    from_record,
)
from clusterctl.shared.spec.values import mebibytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from clusterctl.launcher.checks.data_size import EdgeType
    from clusterctl.launcher.checks.surroundings import Surroundings
    from clusterctl.shared.spec import Job

MIB = 1 << 20
# Measured with torch 2.13 and Python 3.11 on a tiny graph: what the standby of a node and the node's own processes
# hold, and each rank beyond what it shares with the standby; with numba, which large graphs use, and with PyG, which
# prepares some data sets.
_NODE, _RANK, _NUMBA, _PYG, _SCIPY = 170 * MIB, 25 * MIB, 60 * MIB, 130 * MIB, 45 * MIB
_PYG_MODELS = 135 * MIB  # and its layers
_LEFT = 0.5  # of the smaller of a step and an evaluation, which the allocator holds beside the larger one
_DRIFT = 1.25  # times as much: samples vary in size, and the heap may grow a little (engine/task/heap.py)
_MORE, _MUCH = 16 * MIB, 0.06  # by which the heap of a rank may grow: bytes, and of its size (engine/task/heap.py)
_CUDA, _CUDA_HOST = 600 * MIB, 1500 * MIB  # of a process on a GPU, and in the memory of the host; not verified
_COMPILED_EDGES = 2_000_000  # from which a sampler is compiled
_COMPILED_PRODUCTS = 1 << 20  # edges x channels from which attention is compiled
_AHEAD = 4  # samples that exist at once
_MOST_READ = 32 * MIB  # of a file, by as many threads, each with a piece
_READ_AHEAD = 1.5  # batches of rows from disk that exist at once, beside what is computed of them; fitted
_AT_ONCE, _AT_ONCE_FROM_DISK = 16384, 4096  # nodes of a piece of an evaluation
_RENUMBERED = 36  # bytes of an edge whose ends are counted anew, in an evaluation from disk
_EDGES_AT_ONCE = 1 << 19  # edges of a piece of an evaluation with attention
_ADAM = 4  # values, gradients and two moments
_SPARE = 1.25  # of the memory that an evaluation of the whole graph must find (engine/training/own/forward_memory.py)
_PAIRS_AT_ONCE = 65536  # scored in an evaluation of links
_SEEDS_AT_ONCE = 128  # of a piece of a model of PyG
_PRODUCTS_AT_ONCE = 20_000_000  # when Taobao's data is prepared
_TASTES = 4  # of users, each with its own items, in generated data
_MOST_NEIGHBOURS = 250  # taken for an item if its fan-out is -1
_PARAMETERS = {"GraphSAGE": 2, "GCN": 1, "GAT": 1, "GIN": 2, "PNA": 16, "EdgeCNN": 3}  # of a layer, beside its widths
# The memory in GiB of the smallest GPU of that name, unless its name has a size.
_GPUS = {"v100": 16, "t4": 16, "a100": 40, "a40": 48, "l40": 48, "h100": 80, "h200": 141, "b200": 180, "mi250": 64}
_MARGIN = 1.15  # of a request that is proposed: the formula is not exact


@dataclass(frozen=True)
class _Live:
    """Bytes of a training: tables that the ranks of a node share, and of each rank its weights, samples and so on.

    `evaluation` is what a rank needs only there, `shared_evaluation` what a node does. `graph` is what a GPU holds of
    the data, and `libraries` what a rank imports beyond torch. `whole` is what the first rank needs instead of its
    `evaluation` if there is room for it, with a quarter more. `left` is the part of what a step has freed that an
    evaluation cannot use, or the other way round.
    """

    graph: float
    shared: float
    weights: float
    samples: float
    step: float
    evaluation: float
    shared_evaluation: float
    libraries: int = 0
    whole: float = 0.0
    left: float = _LEFT


def estimate(job: Job) -> Estimate | None:
    """What `job` needs; None for a program or a model of the user's own, and if its data is not known here.

    None, too, for models of PyG with other parts than the formula knows (`_pyg`).
    """
    train, resources = job.train, job.resources
    size = data_size(job) if isinstance(train, LoopTrain) and not job.has_own_model else None
    if size is None or not isinstance(train, LoopTrain):
        return None
    tasks = resources.tasks_per_node or 1
    live = _live(job, size, Batches(train, resources.nodes * tasks))
    if live is None:
        return None
    imports, prepared = _preparing(size)
    if resources.gpus_per_node and train.device != "cpu":
        on_host = live.shared if job.data.cache or job.data.is_split else 0
        host = _NODE + on_host + tasks * (_CUDA_HOST + live.libraries + live.samples)
        rest = _CUDA + live.graph + live.weights + live.step + live.samples + live.shared_evaluation
        most = gpu_bytes(asked_of(resources).gpu_type)
        return Estimate(
            round(host),
            round(host + imports + prepared),
            round(rest + (live.evaluation if most and rest + _SPARE * live.whole > most else live.whole)),
        )

    def rank(evaluation: float) -> float:
        less, more = sorted((live.step, evaluation))
        return _RANK + live.libraries + live.weights + live.samples + more + live.left * less

    shared = _NODE + live.shared + live.shared_evaluation
    training = shared + tasks * rank(live.evaluation)
    asked = (asked_of(resources).memory or 0) * MIB
    if live.whole and (not asked or training + _SPARE * live.whole <= asked):
        training = max(training, shared + (tasks - 1) * rank(0) + rank(live.whole))
    known = 0 if live.libraries >= _PYG else imports
    data = rank(live.evaluation) - _RANK - live.libraries
    return Estimate(round(training), round(max(training, training + known + prepared - data)))


def shown(job: Job) -> str:
    """What `job` needs, in a line for a person, or how to measure it; empty for the user's own program."""
    if found := estimate(job):
        return str(found)
    if not isinstance(job.train, LoopTrain):
        return ""
    what = "your own model" if job.has_own_model else "this model with this data"
    return f"memory: there is no formula for {what}; `clusterctl submit JOB --probe` measures a step on one node"


def smaller_batch(job: Job, fits: int, *, on_gpu: bool = False) -> dict[str, str]:
    """The setting of a batch, a power of two, with which `job` needs at most `fits` bytes; empty if none does."""
    train = job.train
    if not isinstance(train, LoopTrain):
        return {}
    key = batch_key(train)
    size = getattr(train, key) or 0
    least = job.resources.nodes * (job.resources.tasks_per_node or 1) if key == "global_batch_size" else 1
    tried = 1 << max(0, size.bit_length() - 1)
    while tried >= max(1, least):
        changes: Any = {key: tried}
        found = estimate(replace(job, train=replace(train, **changes))) if tried < size else None
        if found and (found.gpu if on_gpu else found.training) <= fits:
            return {f"train.{key}": str(tried)}
        tried //= 2
    return {}


def memory_rules(found: Surroundings) -> Iterator[Check]:
    """Warnings if training does not fit into the requested memory, into the largest node, or into a GPU."""
    wanted = found.wanted
    if wanted is None or (needed := wanted.memory) is None:
        return
    job = wanted.resolved.job
    asked, resources = asked_of(job.resources), job.resources
    largest = max((node.memory for node in wanted.nodes), default=0) * MIB
    shared_by = 1 if found.cluster.is_slurm else resources.nodes  # the emulator's nodes share this machine
    fits, whose = (asked.memory or 0) * MIB, "are requested"
    if not fits:
        fits, whose = largest // shared_by, f"the largest of {wanted.where} has"
    if 0 < fits < needed.training:
        wanted_bytes = round(needed.training * _MARGIN)
        step = 1 << 30 if wanted_bytes > 2 << 30 else 1 << 27
        request = -(-wanted_bytes // step) * step
        written = f"{request >> 30}G" if request % (1 << 30) == 0 else f"{request >> 20}M"
        can_grow = bool(resources.memory) and request <= largest // shared_by
        ways = [f'`resources.memory = "{written}"`'] if can_grow else []
        ways += [f"`{key} = {value}`" for key, value in smaller_batch(job, fits).items()]
        text = f"does not fit: by formula, training needs about {size_in_words(needed.training)} on each node"
        there = f"{size_in_words(fits)} {whose}" if whose == "are requested" else f"{whose} {size_in_words(fits)}"
        hint = " or ".join(ways) or _HINT
        yield warn("memory", f"{text}; {there}", hint)
    if needed.gpu and (most := gpu_bytes(asked.gpu_type)) and most < needed.gpu:
        takes = f"it takes about {size_in_words(needed.gpu)} of each"
        text = f"may not fit: by a formula that was never compared with a GPU, {takes}"
        ways = [f"`{key} = {value}`" for key, value in smaller_batch(job, most, on_gpu=True).items()]
        hint = " or ".join(ways) or _HINT
        yield warn("memory", f"{text}; {asked.gpu_type} has {size_in_words(most)}", hint)


_HINT = (
    "features may stay on disk (data.cache) or be split over the nodes (data.placement); "
    "try it: clusterctl submit JOB --probe"
)


def gpu_bytes(kind: str) -> int:
    """The memory of GPUs of this type, as Slurm names it; 0 if the name does not tell."""
    if found := re.search(r"(?<![a-z0-9])(\d+)gb(?![a-z0-9])", kind.lower()):
        return int(found[1]) << 30
    return next((size << 30 for name, size in _GPUS.items() if name in kind.lower()), 0)


def _live(job: Job, size: DataSize, batches: Batches) -> _Live | None:
    train, examples = batches.train, training_set(job)
    batch = min(batches.per_rank, examples.size if examples else batches.per_rank)
    match train:
        case NodeTrain():
            return _network(job, size, train, batch, batches.ranks)
        case NodeClassificationTrain(model="gat" | "rgat"):
            return _attention(job, size, train, batch, batches.ranks)
        case NodeClassificationTrain(model=name) if name in _LAYERS:
            return _pyg(job, size, train, batch, batches.ranks)
        case TaobaoTrain():
            return _links(size, train, batch, batches.ranks)
        case GraphClassificationTrain(model="gin" | "plain"):
            return _isomorphism(size, train, replace(batches, examples=examples), batch)
    return None


def _bytes(train: LoopTrain) -> tuple[int, int]:
    """Of a feature or an activation, and of a weight."""
    return {"float32": (4, 4), "float64": (8, 8), "bfloat16": (2, 4)}[train.precision]


def hops(
    seeds: float, fan_out: Sequence[int], nodes: int, edges: int, *, alike: bool = False
) -> tuple[list[float], list[float]]:
    """The expected nodes of a sample after each hop, beginning with the seeds, and the edges of each hop."""
    found, drawn, degree = [float(min(seeds, nodes))], [], edges / max(1, nodes)
    for count in fan_out:
        taken = found[-1] * (degree if count < 0 else min(count, degree))
        drawn.append(taken)
        found.append(
            min(float(nodes), found[-1] + distinct(taken, nodes, alike=alike) * (1 - found[-1] / max(1, nodes)))
        )
    return found, drawn


def _network(job: Job, size: DataSize, train: NodeTrain, batch: int, ranks: int) -> _Live:
    """Two or three layers of GraphSAGE or a GCN (engine/graph/convolutions.py, engine/graph/inference.py)."""
    value, weight = _bytes(train)
    nodes, own = size.num_nodes, -(-size.num_nodes // ranks)
    widths = [size.features, *[train.hidden_channels] * (len(train.fan_out) - 1), size.classes]
    table = nodes * size.features * value
    cached = train.cache_first_aggregation
    copied = train.precision != ("bfloat16" if job.data.disk_precision == "bfloat16" else "float32")
    kept = _features(job, size, value, ranks)
    shared = table * cached + (table * copied if kept.in_memory else kept.shared)
    fan_out = (*train.fan_out[:-1], 0) if cached else train.fan_out
    reached, drawn = hops(batch, fan_out, nodes, size.num_edges, alike=size.raw == "fake")
    targets = reached[-2::-1]  # of each layer, the outermost first
    step = 2 * targets[0] * size.features * value + kept.fetched(reached[-1])
    for layer, (before, after) in enumerate(pairwise(widths)):
        step += targets[layer] * (5 * after + (2 * before if layer else 0)) * weight
    parameters = sum(before * after for before, after in pairwise(widths)) * (2 if train.model == "sage" else 1)
    evaluation, shared_evaluation = 0.0, 0.0
    for layer, (before, after) in enumerate(pairwise(widths)):
        last, sends = layer == len(widths) - 2, min(before, after)
        fetches = kept.on_disk or (not kept.in_memory and layer == 0 and before <= after)
        piece = min(own, _AT_ONCE_FROM_DISK if fetches else _AT_ONCE)
        if fetches:  # the next piece is prepared meanwhile
            around, pieces = piece * size.num_edges / max(1, nodes), 1 + (own > piece)
            read = min(nodes, piece + distinct(around, nodes, alike=size.raw == "fake"))
            rows = (pieces * read * sends + piece * (before + 2 * after) + 16 * own) * weight
            rows += (not kept.on_disk) * own * after * weight
            evaluation = max(evaluation, rows + pieces * around * _RENUMBERED)
            continue
        is_table = not (layer == 0 and (cached or after >= before))
        kept_rows = (own * before if layer else 0) + (16 * own if last else own * after)  # of the last layer, classes
        evaluation = max(evaluation, (kept_rows + piece * (sends + 3 * after)) * weight)
        shared_evaluation = max(shared_evaluation, nodes * sends * value if is_table else 0)
    degrees = 32 * nodes + 10 * min(size.num_edges, 1 << 22) if train.model == "gcn" else 0
    return _Live(
        graph=table * (kept.in_memory + cached) + 4 * size.num_edges + 8 * nodes,
        shared=shared,
        weights=parameters * weight * (_ADAM + bool(train.patience))
        + degrees
        + kept.readers(reached[-1] / max(1, nodes)),
        samples=_AHEAD * (8 * sum(drawn) + 24 * sum(reached)),
        step=_DRIFT * step,
        evaluation=evaluation,
        shared_evaluation=shared_evaluation,
        libraries=_NUMBA if size.num_edges >= _COMPILED_EDGES else 0,
        # Rows of all nodes do not fit between the small tensors of a step; from disk, they are never there as a whole.
        left=0.0 if kept.on_disk else 1.0,
    )


def _attention(job: Job, size: DataSize, train: NodeClassificationTrain, batch: int, ranks: int) -> _Live:
    """Layers of GATv2, one for each relation (engine/graph/attention.py)."""
    options = from_record(GatOptions, train.options)
    value, weight = _bytes(train)
    width, layers = options.heads * options.hidden, len(train.fan_out)
    nodes, own = size.num_nodes, -(-size.num_nodes // ranks)
    loops = {kind: options.self_loops and kind[0] == kind[2] for kind in size.edges}
    kept, relational = _features(job, size, value, ranks), train.model == "rgat"
    before_hop, drawn = _typed_hops(size, train.fan_out, batch, loops, alike=not relational)
    sampled = sum(before_hop[-1].values())
    step = kept.fetched(sampled)
    if not relational or not kept.in_memory:
        step += sampled * size.features * value
    beside = 0.0
    for layer in range(layers):
        into = width if layer > 0 else size.features
        out = width if layer < layers - 1 else size.classes * options.output_heads
        of_edges, targets = drawn[layers - 1 - layer], before_hop[layers - 1 - layer]
        if relational and layer == 0 and kept.in_memory:  # a type's targets are copied once
            step += sum(targets[kind] for kind in sorted({target for _, _, target in of_edges})) * into * value
        for kind, taken in of_edges.items():
            read = distinct(taken, size.nodes[kind[0]]) if relational else before_hop[layers - layer][kind[0]]
            rows = read + targets[kind[2]]
            held, more = _products(taken, out, options.heads)
            # Each relation copies the sources that it reads; otherwise, dropout copies the rows between layers.
            copied = read if relational else 2 * read * (layer > 0)
            of_rows = (3 * targets[kind[2]] if more else 4 * rows) * out
            step += copied * into * (value if layer == 0 else weight) + (of_rows + held) * weight
            beside = max(beside, more * weight)
    step += beside
    parameters = 0
    for layer in range(layers):
        into = size.features if layer == 0 else width
        out = width if layer < layers - 1 else size.classes * options.output_heads
        parameters += len(size.edges) * into * out * (3 if options.residual else 2)
    largest = max(size.nodes.values())
    of_rank = {
        kind: min(float(_EDGES_AT_ONCE), (count + size.nodes[kind[2]] * loops[kind]) / ranks)
        for kind, count in size.edges.items()
    }
    at_once = max(_products(edges, width, options.heads, trains=False)[0] for edges in of_rank.values())
    piece = min(own, max(_EDGES_AT_ONCE * size.nodes[kind[2]] / max(1, count) for kind, count in size.edges.items()))
    evaluation = (at_once + (own * (2 if layers > 2 else 1) + 3 * piece) * width + own * size.classes) * weight
    if kept.on_disk:  # as are the tables between the layers
        read = width if train.model == "rgat" else max(size.features, width)
        evaluation = max(_piece_from_disk(size, kind, read, options, ranks) for kind in size.edges) * weight
        evaluation += 16 * own * weight
    in_piece = max(of_rank.values())
    if kept.on_disk:
        most = max(size.edges[kind] / size.nodes[kind[2]] for kind in size.edges)
        in_piece = min(in_piece, _AT_ONCE_FROM_DISK * most)
    most_edges = max(in_piece, *(max(hop.values()) for hop in drawn))
    table = nodes * size.features * value
    shared = table if train.precision != "float32" else 0
    return _Live(
        graph=table * kept.in_memory + 4 * size.num_edges + 8 * nodes,
        shared=shared if kept.in_memory else kept.shared,
        weights=parameters * weight * (_ADAM + bool(train.patience)) + kept.readers(sampled / max(1, nodes)),
        samples=_AHEAD
        * (16 * sum(sum(hop.values()) for hop in drawn) + 24 * sum(sum(hop.values()) for hop in before_hop)),
        # Samples vary in size, and the heap may grow until it gives pages back.
        step=_DRIFT * step + min(_MORE + _MUCH * (_NODE + step), (_DRIFT - 1) * step),
        evaluation=evaluation,
        shared_evaluation=0 if kept.on_disk else largest * width * value,
        left=0.0,  # its pieces fit into what a step has freed
        libraries=_NUMBA if size.num_edges >= _COMPILED_EDGES or most_edges * width >= _COMPILED_PRODUCTS else 0,
    )


def _typed_hops(
    size: DataSize, fan_out: Sequence[int], batch: int, loops: Mapping[EdgeType, bool], *, alike: bool
) -> tuple[list[dict[str, float]], list[dict[EdgeType, float]]]:
    """The expected nodes of each type before each hop and after the last one, and each hop's edges, with self loops.

    Unless degrees are `alike`, seeds with fewer neighbours than the fan-out count, as if degrees were exponentially
    distributed. Nodes that are found have more neighbours than others, which makes up for that.
    """
    reached = dict.fromkeys(size.nodes, 0.0) | {next(iter(size.nodes)): float(batch)}  # papers, of several types
    before_hop = [reached]
    drawn: list[dict[EdgeType, float]] = []
    for hop, count in enumerate(fan_out):
        taken: dict[EdgeType, float] = {}
        found: dict[str, float] = {}
        for kind, total in size.edges.items():
            degree = total / max(1, size.nodes[kind[2]])
            most = float(total if count < 0 else count)
            mean = min(most, degree) if hop or alike else -degree * expm1(-most / max(degree, 1e-9))
            taken[kind] = reached[kind[2]] * mean
        for ends, number in reached.items():
            new = distinct(sum(some for edge, some in taken.items() if edge[0] == ends), size.nodes[ends])
            found[ends] = min(float(size.nodes[ends]), number + new * (1 - number / max(1, size.nodes[ends])))
        drawn.append({kind: some + reached[kind[2]] * loops[kind] for kind, some in taken.items()})
        before_hop.append(reached := found)
    return before_hop, drawn


def _piece_from_disk(size: DataSize, kind: EdgeType, read: int, options: GatOptions, ranks: int) -> float:
    """The numbers that an evaluation holds for a piece of these edges, and the next one, which is read meanwhile."""
    (source, _, target), width = kind, options.heads * options.hidden
    targets = min(_AT_ONCE_FROM_DISK, -(-size.nodes[target] // ranks))
    edges = min(float(_EDGES_AT_ONCE), size.edges[kind] * targets / max(1, size.nodes[target]))
    rows = min(size.nodes[source], targets + distinct(edges, size.nodes[source]))
    return 2 * rows * read + rows * width + max(_products(edges, width, options.heads)[0], 13 * edges) + 12 * edges


def _products(edges: float, width: int, heads: int, *, trains: bool = True) -> tuple[float, float]:
    """The numbers that attention over so many edges keeps for its gradient, and that it holds beside them for a while.

    Of each head if it is compiled, and else of each channel: `attend_plain` keeps the sources, their sums with the
    targets, those after the leaky ReLU, and the messages, and four numbers for each head. A product and a gradient come
    on top. Without a gradient, compiled attention only has its weights, and before that the numbers with which self
    loops are added.
    """
    if edges * width >= _COMPILED_PRODUCTS:
        return (2 * heads + 4 if trains else max(heads + 2, 12)) * edges, 0.0
    return 4 * edges * (width + heads), 2 * edges * width


@dataclass(frozen=True)
class _Features:
    """Where the features are: `in_memory` of each device, `on_disk`, or split; and the bytes `shared` on each node."""

    in_memory: bool
    on_disk: bool
    shared: float
    row: float  # bytes of a fetched one
    sent: float  # bytes of a row received from another rank, and of one sent to another
    files: tuple[float, ...] = ()  # bytes of each type's features

    def readers(self, share: float) -> float:
        """The bytes of the threads that read a `share` of the rows: a buffer each, and the rows copied from it."""
        return sum((1 + share) * min(table, _MOST_READ) for table in self.files) if self.on_disk else 0

    def fetched(self, rows: float) -> float:
        """The bytes of a batch of so many rows and the next one, beside what is computed of them."""
        return 0 if self.in_memory else rows * (self.row * (_READ_AHEAD if self.on_disk else 2) + self.sent)


def _features(job: Job, size: DataSize, value: int, ranks: int) -> _Features:
    data, nodes, width = job.data, job.resources.nodes, size.features
    cache = mebibytes(data.cache) << 20 if data.cache else 0
    if data.is_split and nodes > 1:
        stored = min(value, 2 if data.disk_precision == "bfloat16" else 4)
        own = -(-size.num_nodes // ranks) * (ranks // nodes) * width * stored
        copies = min(size.num_nodes, cache // (width * stored + 8)) * (width * stored + 8)
        return _Features(False, False, own + copies, width * value, 2 * (1 - 1 / nodes) * width * stored)
    if data.cache is not None and not data.is_split:
        table = size.num_nodes * (width * value + 4)
        files = tuple(count * width * value for count in size.nodes.values())
        return _Features(False, True, min(table, cache), width * value, 0, files)
    return _Features(True, False, 0, width * value, 0)


@dataclass(frozen=True)
class _Cost:
    """The numbers that a layer of PyG holds for a row or an edge: the most of `ways`, times its widths.

    `earlier` are those of each layer before it, which the backward pass needs; without one, only the features remain.
    """

    ways: tuple[tuple[float, float], ...]
    fixed: float
    earlier: tuple[float, float] = (0.0, 0.0)

    def of(self, before: int, after: int) -> float:
        return max(one * before + other * after for one, other in self.ways) + self.fixed


# Of the layers with their default options, for rows and edges: in a forward pass, and with the backward pass. Fitted to
# `own.pyg_inference.need_of`, which measures them, and compared with it by a test.
_ONCE = _Cost(((1, 0),), 12)
_LAYERS = {
    "GraphSAGE": ((_Cost(((3, 0), (1, 3)), 5), _ONCE), (_Cost(((3, 0), (1, 3)), 5, (2, 1.3)), _ONCE)),
    "GCN": ((_Cost(((1, 4),), 9), _Cost(((0, 2),), 17)), (_Cost(((1, 4),), 12), _Cost(((0, 2),), 20))),
    "GAT": (
        (_Cost(((1, 4),), 11), _Cost(((0, 2),), 17)),
        (_Cost(((1, 4),), 11, (1, 3.5)), _Cost(((0, 4),), 19, (0, 1))),
    ),
    "GIN": ((_Cost(((4, 0), (1, 2.2)), 4), _ONCE), (_Cost(((4, 0), (1, 4.2)), 4, (2, 1)), _ONCE)),
    "PNA": (
        (_Cost(((27, 0), (1, 3)), 4), _Cost(((6, 0),), 12)),
        (_Cost(((36.5, 0), (1, 5.5)), 4, (20.2, 0)), _Cost(((8.4, 0),), 12, (3, 0))),
    ),
    "EdgeCNN": (
        (_Cost(((1, 2),), 4), _Cost(((5, 0), (4, 2)), 12)),
        (_Cost(((1, 2), (0, 7.3)), 4, (0, 3)), _Cost(((5, 1), (2, 6)), 14, (2, 2))),
    ),
}
_APART = {"PNA"}  # whose rows and edges take most at different moments
_ANY_VALUE = {"hidden_channels", "dropout", "act", "act_first", "improved", "aggr", "bias", "eps", "train_eps"}


def pyg_numbers(
    model: str, widths: Sequence[int], rows: Sequence[float], edges: Sequence[float], *, trains: bool = False
) -> float:
    """The numbers that a forward pass of this model of PyG holds at its peak, or with the backward pass if it `trains`.

    `widths` are those before and after the layers, `rows` and `edges` the ones that each layer gets.
    """
    found = []
    for cost, counts in zip(_LAYERS[model][trains], (rows, edges), strict=True):
        most = earlier = 0.0
        for layer, (before, after) in enumerate(pairwise(widths)):
            kept = max(earlier, rows[0] * widths[0] if layer and counts is rows else 0)
            most = max(most, cost.of(before, after) * counts[layer] + kept)
            earlier += (cost.earlier[0] * before + cost.earlier[1] * after) * counts[layer]
        found.append(most)
    of_rows, of_edges = found
    return max(of_rows, of_edges + rows[0] * widths[0]) if model in _APART else of_rows + of_edges


def _pyg(job: Job, size: DataSize, train: NodeClassificationTrain, batch: int, ranks: int) -> _Live | None:
    """Models of torch_geometric.nn.models, with the options that change nothing but their width."""
    kind = PYG_MODELS[train.model]
    options: Any = from_record(kind, train.options)
    others = {one.name for one in fields(kind)} - _ANY_VALUE
    unusual = any(getattr(options, name) != getattr(kind, name) for name in others)
    if unusual or train.batch != "sampled" or train.sampler or job.has_own_code:
        return None
    value, weight = _bytes(train)
    layers, nodes, edges = len(train.fan_out), size.num_nodes, size.num_edges
    widths = [size.features, *[options.hidden_channels] * (layers - 1), size.classes]
    kept = _features(job, size, value, ranks)
    reached, drawn = hops(batch, train.fan_out, nodes, edges)
    around, into = hops(min(_SEEDS_AT_ONCE, nodes), [-1] * layers, nodes, edges)
    of_layers = (
        [reached[layer] for layer in range(layers, 0, -1)],
        [sum(drawn[:layer]) for layer in range(layers, 0, -1)],
    )
    parameters = _PARAMETERS[train.model] * sum(before * after for before, after in pairwise(widths))
    table = nodes * size.features * value
    return _Live(
        graph=table * kept.in_memory + 4 * edges + 8 * nodes,
        shared=kept.shared + table * (kept.in_memory and train.precision != "float32"),
        weights=parameters * weight * (_ADAM + bool(train.patience)) + kept.readers(reached[-1] / max(1, nodes)),
        samples=_AHEAD * (24 * sum(drawn) + 32 * sum(reached)),
        step=pyg_numbers(train.model, widths, *of_layers, trains=True) * weight + kept.fetched(reached[-1]) / 2,
        evaluation=pyg_numbers(train.model, widths, [around[-1]] * layers, [sum(into)] * layers) * weight,
        shared_evaluation=0,
        libraries=_PYG_MODELS + (_NUMBA if edges >= _COMPILED_EDGES else 0),
        whole=pyg_numbers(train.model, widths, [nodes] * layers, [edges] * layers) * weight,
    )


def _links(size: DataSize, train: TaobaoTrain, batch: int, ranks: int) -> _Live:
    """The recommender, its embeddings, and the pairs that are scored (engine/training/objectives/link.py)."""
    _, weight = _bytes(train)
    users, items, width = size.nodes["user"], size.nodes["item"], train.hidden_channels
    examples, own = size.edges["item", "rev_to", "user"], -(-size.num_nodes // ranks)
    first, second = (count if count >= 0 else _MOST_NEIGHBOURS for count in train.fan_out)
    of_users, of_items = distinct(2 * batch, users), distinct(2 * batch, items)
    inner = of_items + distinct(first * (of_users + of_items), items) * (1 - of_items / items)
    outer = inner + distinct(second * inner, items) * (1 - inner / items)
    drawn = first * (of_users + of_items) + second * inner
    scored = examples / 8  # pairs of a split, and as many without an edge
    pairs, each = -(-scored // ranks), -(-items // ranks)
    encoded = (own + 4 * each + 6 * min(_AT_ONCE, each)) * width
    return _Live(
        graph=8 * examples + 8 * size.num_edges,
        shared=0,
        weights=3 * own * width * weight + 14 * width * width * weight * _ADAM + 16 * (examples + 4 * scored),
        samples=_AHEAD * (8 * drawn + 24 * (of_users + outer)),
        step=_DRIFT * ((3 if ranks == 1 else 7) * (of_users + outer) + 14 * inner + 20 * batch) * width * weight,
        evaluation=max(encoded, own * width + 6 * width * min(pairs, _PAIRS_AT_ONCE)) * weight + 24 * scored,
        shared_evaluation=(3 * items + users) * width * weight,
        libraries=_NUMBA if size.num_edges >= _COMPILED_EDGES else 0,
        left=1.0,  # as of a sampled network
    )


def _isomorphism(size: DataSize, train: GraphClassificationTrain, batches: Batches, batch: int) -> _Live:
    """Networks of graphs, whose first neighbourhood sum every rank has (engine/graph/convolutions.py)."""
    _, weight = _bytes(train)
    nodes, edges = size.num_nodes / max(1, size.graphs), size.num_edges / max(1, size.graphs)
    width = train.hidden_channels
    table = size.num_nodes * size.features
    tested = min(size.graphs / 5 / batches.ranks * nodes, float(1 << 18))
    is_compiled = train.has_many_small_steps(batches.steps or 0, batches.size * nodes)
    return _Live(
        graph=table * weight,
        shared=0,
        weights=(size.features + 2 * width * train.layers) * width * weight * _ADAM,
        samples=_AHEAD * batch * (24 * nodes + 16 * edges),
        step=batch * nodes * (size.features + 8 * width * train.layers) * weight,
        evaluation=tested * (size.features + 4 * width) * weight + 8 * table * weight + 40 * size.num_edges,
        shared_evaluation=0,
        libraries=_NUMBA if is_compiled and train.precision != "bfloat16" else 0,
    )


def _preparing(size: DataSize) -> tuple[float, float]:
    """Of the rank that reads the data set's own format and writes the prepared file: libraries, and data."""
    edges, nodes, features = size.num_edges, size.num_nodes, size.num_nodes * size.features * 4
    match size.raw:
        case "fake" | "reddit":  # PyG's classes, and then the edges in order
            return _PYG, 100 * edges + 3 * features
        case "tu":
            return _PYG, 100 * edges + 8 * features + 20_000 * size.graphs
        case "taobao":  # engine/data/taobao.py: the events, and products of users with items in common
            examples = size.edges["item", "rev_to", "user"]
            products = 1.9 * examples * examples / max(1, size.nodes["user"])
            several = min(products, _PRODUCTS_AT_ONCE)
            together = distinct(several, round(size.nodes["item"] ** 2 * several / max(1, products) / _TASTES))
            return _SCIPY, 100 * examples * 5 / 4 + 36 * together
        case "ogb":  # engine/data/ogb.py
            return 0, 4 * edges + 60 * nodes + 400 * MIB
        case _:  # engine/data/igb.py
            return 0, 4 * max(size.edges.values()) + 60 * nodes + 100 * MIB
