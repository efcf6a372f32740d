"""GPU speed: copies, Reddit's epoch compared with the memory bandwidth, and PyG on the same card."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from gpu_rows import Row
from node_steps import expert_samples, given_samples, lone_task, pyg_forward, pyg_model
from torch.nn import functional as F

from clusterctl.engine.graph.blocks import moved
from clusterctl.engine.task.task import round_to_tf32
from clusterctl.engine.training.epoch_plan import EpochPlan
from clusterctl.engine.training.learner import Learner
from clusterctl.engine.training.loop import CapturedStep, prefetched
from clusterctl.engine.training.objectives.node import NodeClassification
from clusterctl.shared.spec import RedditTrain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from clusterctl.engine.graph.storage import Graph
    from clusterctl.shared.spec import NodeTrain

_COPIED = 1 << 28  # bytes
_EPOCHS = 5  # measured, after one to warm up
_RIVAL_STEPS = 30
_AIM = 0.1  # seconds for an epoch, on an H200
_KERNELS = 5  # the most expensive ones to show
SETTINGS = RedditTrain()


def copies(device: torch.device) -> Iterator[Row]:
    """Copies to the device from pageable and pinned memory, and the bandwidth of the device's memory."""
    source = torch.arange(_COPIED // 4, dtype=torch.int32)
    (arrived,) = moved([source], device)
    yield Row("data copied from pinned memory", "identical", torch.equal(arrived.cpu(), source))
    if device.type == "cuda":
        for name, memory in (("pageable", source), ("pinned", source.pin_memory())):
            rate = _COPIED / _seconds(device, lambda memory=memory: arrived.copy_(memory, non_blocking=True))
            yield Row(f"copies from {name} memory", f"{rate / 1e9:.1f} GB/s")
    yield Row("memory of the device, read and written", f"{bandwidth(device) / 1e9:.0f} GB/s")


def bandwidth(device: torch.device) -> float:
    """Bytes per second read and written by a copy within the device."""
    source = torch.zeros(_COPIED, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * _COPIED / _seconds(device, lambda: target.copy_(source))


def epochs(graph: Graph, device: torch.device) -> Iterator[Row]:
    """Reddit's epoch as `fit` runs its steps: float32 and bfloat16, eager and captured."""
    memory = bandwidth(device)
    yield from _beside_the_steps(graph, device)
    variants: dict[str, NodeTrain] = {
        "float32": SETTINGS,
        "float32, products in TF32": replace(SETTINGS, tf32=True),
        "bfloat16": replace(SETTINGS, precision="bfloat16"),
        "bfloat16, first aggregation cached": replace(SETTINGS, precision="bfloat16", cache_first_aggregation=True),
    }
    for name, train in variants.items():
        for as_graph in (False, True) if device.type == "cuda" else (False,):
            settings = replace(train, cuda_graph=as_graph)
            round_to_tf32(settings.tf32)
            epoch, steps = our_epoch(graph, settings, device)
            epoch()
            times = [_clocked(device, epoch) for _ in range(_EPOCHS)]
            middle, bound = statistics.median(times), steps * step_bytes(graph, train) / memory
            title = f"Reddit's epoch, {name}{', CUDA graphs' * as_graph}"
            spread = f"{min(times):.4f} .. {max(times):.4f}"
            aim = f", aim {_AIM} s on an H200" * as_graph
            yield Row(title, f"{middle:.4f} s ({spread}), {middle / steps * 1e3:.2f} ms per step{aim}")
            yield Row(f"{title}: share of the memory's bandwidth", f"{bound / middle:.0%}")
            if not as_graph:
                yield from _most_expensive(device, epoch, title)


def _beside_the_steps(graph: Graph, device: torch.device) -> Iterator[Row]:
    """An epoch without batches prepared ahead, and one from edges and features on the host, with the GPU's memory."""
    ways: dict[str, dict[str, bool]] = {
        "as a run": {},
        "each batch prepared in its step": {"ahead": False},
        "edges and features on the host": {"host": True},
    }
    for name, options in ways.items():
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        epoch, steps = our_epoch(graph, SETTINGS, device, **options)
        epoch()
        middle = statistics.median(_clocked(device, epoch) for _ in range(_EPOCHS))
        memory = f", {torch.cuda.max_memory_allocated(device) / 1e9:.1f} GB at most" if device.type == "cuda" else ""
        yield Row(f"Reddit's epoch, {name}", f"{middle:.4f} s, {middle / steps * 1e3:.2f} ms per step{memory}")


def our_epoch(
    graph: Graph, settings: NodeTrain, device: torch.device, *, ahead: bool = True, host: bool = False
) -> tuple[Callable[[], object], int]:
    """A function that trains for one epoch, as `fit` does, and its number of steps.

    Batches are prepared `ahead`, and each loss is read once the next step is queued.
    """
    task = replace(lone_task(), device=device)
    objective = NodeClassification(graph, settings, task, host=host)
    learner = Learner(objective, settings, task)
    plan = EpochPlan(objective.seeds, settings.batch_size or 1, settings.seed, 0, 1)
    step: Any = CapturedStep(learner, device) if settings.cuda_graph else learner
    prepare: Callable[[Any], Any] = (lambda _: None) if settings.cuda_graph else objective.prepare
    number = 0

    def epoch() -> None:
        nonlocal number
        number += 1
        objective.model.train()
        task.clock.restart("sampling")
        last = None
        batches = plan.batches(number)
        pairs = prefetched(batches, prepare, device) if ahead else ((batch, prepare(batch)) for batch in batches)
        for batch, prepared in pairs:
            queued = step.train_step(batch, prepared, 1.0, checkpoint_due=False)
            if last is not None:
                last.reading.read()
            last = queued
        if last is not None:
            last.reading.read()

    return epoch, plan.steps


def step_bytes(graph: Graph, train: NodeTrain) -> int:
    """The bytes of features, neighbours and hidden rows that a step of known sizes must read and write at least once.

    Features of the outer targets and their neighbours, when gathered; the inputs of the matmuls, written before them
    and read again for the gradients; hidden rows and their gradients.
    """
    inner, outer = train.fan_out
    seeds = train.batch_size or 1
    targets = seeds * (1 + inner)
    width = {"float32": 4, "bfloat16": 2}[train.precision]
    gathered = targets * 2 if train.cache_first_aggregation else targets * (1 + outer)
    features = gathered * graph.num_features * width
    indices = (seeds * inner + (0 if train.cache_first_aggregation else targets * outer)) * 4
    hidden = 4 * targets * train.hidden_channels * width
    inputs = 2 * 3 * targets * graph.num_features * width
    return features + indices + hidden + inputs


def rivals(graph: Graph, device: torch.device) -> Iterator[Row]:
    """Our step and PyG's with features, labels and model on the card; PyG's sampling is not timed."""
    round_to_tf32(False)
    for precision in ("float32", "bfloat16"):
        settings = replace(SETTINGS, precision=precision, cuda_graph=device.type == "cuda")
        epoch, steps = our_epoch(graph, settings, device)
        epoch()
        ours = _clocked(device, epoch) / steps
        yield Row(f"our step, {precision}", f"{ours * 1e3:.2f} ms")
        found = {"expert's PyG": _expert(graph, settings, device)}
        if precision == "float32":
            found["PyG's example"] = _example(graph, settings, device)
        for name, step in found.items():
            times = [step() for _ in range(_RIVAL_STEPS)][_RIVAL_STEPS // 3 :]
            theirs = statistics.median(times)
            yield Row(f"step of {name}, {precision}, sampling not timed", f"{theirs * 1e3:.2f} ms")
            yield Row(f"ratio of ours to {name}, {precision}", f"{ours / theirs:.3f}")


def _example(graph: Graph, settings: NodeTrain, device: torch.device) -> Callable[[], float]:
    """The steps of `node_steps.pyg_step` on the device: all rows of the subgraph in every layer."""
    layers = pyg_model(graph, settings).to(device)
    optimizer = torch.optim.Adam(layers.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
    features = graph.x.to(device)
    samples = given_samples(replace(graph, x=torch.arange(graph.num_nodes)[:, None]), settings)

    def once() -> float:
        nodes, edges, y = (part.to(device) for part in next(samples)[0]())

        def step() -> None:
            out = pyg_forward(layers, features[nodes.squeeze(1)], edges, settings.dropout)
            _descend(F.cross_entropy(out[: y.numel()], y), optimizer)

        return _clocked(device, step)

    return once


def _expert(graph: Graph, settings: NodeTrain, device: torch.device) -> Callable[[], float]:
    """The steps of `node_steps.expert_step` on the device: only required rows, fused Adam, autocast."""
    layers = pyg_model(graph, settings).to(device)
    options = {"lr": settings.lr, "weight_decay": settings.weight_decay}
    optimizer = torch.optim.Adam(layers.parameters(), fused=True, **options)
    features, samples = graph.x.to(device), expert_samples(graph, settings)
    is_narrow = settings.precision == "bfloat16"

    def once() -> float:
        nodes, hops, y = next(samples)
        nodes, y = nodes.to(device), y.to(device)
        hops = [(edges.to(device), rows) for edges, rows in hops]

        def step() -> None:
            x = features[nodes]
            with torch.autocast(device.type, torch.bfloat16, enabled=is_narrow):
                for number, (layer, (edges, rows)) in enumerate(zip(layers, hops, strict=True)):
                    x = layer((x, x[:rows]), edges)
                    if number < len(layers) - 1:
                        x = F.dropout(x.relu(), settings.dropout)
            _descend(F.cross_entropy(x.float(), y), optimizer)

        return _clocked(device, step)

    return once


def _descend(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def _most_expensive(device: torch.device, epoch: Callable[[], object], title: str) -> Iterator[Row]:
    """The kernels that take the most time in an epoch."""
    if device.type != "cuda":
        return
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        epoch()
        torch.cuda.synchronize(device)
    events = [event for event in profile.key_averages() if event.self_device_time_total]
    whole = sum(event.self_device_time_total for event in events)
    for event in sorted(events, key=lambda event: -event.self_device_time_total)[:_KERNELS]:
        share = event.self_device_time_total / whole
        yield Row(
            f"{title}: {event.key[:60]}".replace("|", "/"), f"{share:.0%} of the kernels' time, {event.count} calls"
        )


def _seconds(device: torch.device, work: Callable[[], object]) -> float:
    """The median of seven runs after two warm-up runs."""
    return statistics.median([_clocked(device, work) for _ in range(9)][2:])


def _clocked(device: torch.device, work: Callable[[], object]) -> float:
    """The wall time until the device has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began
