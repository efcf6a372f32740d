"""Bugs of published examples, each as a wrong version of one function of ours.

`@at(module, seam)` names the function or method that a bug replaces; the decorated function gets the right version and
returns the wrong one. `put_back` exchanges them. `tests/training/test_published_bugs.py` has the table of the bugs.
Wrong versions import modules of the package when they are called: the seam's module may be half of an import.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

Function = Callable[..., Any]


@dataclass(frozen=True)
class PublishedBug:
    """`seam`, a function or `Class.method` of `module`, is replaced by `wrong(right version)`."""

    name: str
    module: str
    seam: str
    wrong: Callable[[Function], Function]


BY_NAME: dict[str, PublishedBug] = {}


def at(module: str, seam: str) -> Callable[[Callable[[Function], Function]], PublishedBug]:
    """The bug that the decorated function puts back."""

    def add(wrong: Callable[[Function], Function]) -> PublishedBug:
        bug = PublishedBug(wrong.__name__, module, seam, wrong)
        BY_NAME[bug.name] = bug
        return bug

    return add


_TRAINING, _GRAPH = "clusterctl.engine.training", "clusterctl.engine.graph"
_PLAN, _LOOP = f"{_TRAINING}.epoch_plan", f"{_TRAINING}.loop"
_NODES, _GRAPHS, _LINKS = (f"{_TRAINING}.objectives.{each}" for each in ("node", "graph", "link"))
_LOSSES, _PROGRESS, _BLOCKS = f"{_TRAINING}.objective", f"{_TRAINING}.progress", f"{_GRAPH}.blocks"
_ONCE, _CLOCK = "clusterctl.shared.record.once", "clusterctl.engine.task.step_clock"
_SYNTHETIC, _TAOBAO = "clusterctl.engine.workloads.synthetic", "clusterctl.engine.data.taobao"


# Which examples are evaluated.


@at(_NODES, "nodes_of")
def wrong_split(right: Function) -> Function:
    return lambda graph, _, own: right(graph, "val", own)


@at(_NODES, "nodes_of")
def last_node_left_out(right: Function) -> Function:
    return lambda graph, split, own: right(graph, split, range(own.start, own.stop - 1))


@at(_NODES, "accuracies")
def a_node_twice(right: Function) -> Function:
    def accuracies(*given: Any) -> dict[str, Any]:
        """Every rank counts one node more."""
        ranks = dist.get_world_size()
        return {split: score._replace(total=score.total + ranks) for split, score in right(*given).items()}

    return accuracies


@at(_GRAPHS, "own_slice")
def a_graph_twice(right: Function) -> Function:
    def own_slice(count: int) -> range:
        own = right(count)
        return range(max(own.start - 1, 0), own.stop)

    return own_slice


@at(_GRAPHS, "own_slice")
def last_graphs_left_out(right: Function) -> Function:
    return lambda count: right(count // 3 * 3)


@at(_LINKS, "LinkPrediction.scores_of")
def last_pair_left_out(right: Function) -> Function:
    return lambda *given: right(*given)[:-1]


@at(_BLOCKS, "own_slice")
def rank_0_alone(right: Function) -> Function:
    return lambda count: range(count)[dist.get_rank() * count :]


@at(_SYNTHETIC, "generate")
def tested_on_training(right: Function) -> Function:
    def generate(*given: Any, **named: Any) -> Any:
        graph = right(*given, **named)
        return replace(graph, test=graph.train)

    return generate


@at("torch.nn.modules.module", "Module.train")
def never_train_again(right: Function) -> Function:
    return lambda model, mode=True: model if mode else right(model, mode)


@at("torch.nn.modules.module", "Module.eval")
def never_eval(right: Function) -> Function:
    return lambda model: model.train()


@at(_LOOP, "_evaluated")
def no_last_evaluation(right: Function) -> Function:
    """The evaluation after the last epoch, the only one that tests, does not happen."""

    def evaluated(learner: Any, splits: Sequence[str], log: Any) -> Any:
        from clusterctl.engine.training.objective import Accuracy

        return {"test": Accuracy(0, 0)} if "test" in splits else right(learner, splits, log)

    return evaluated


# The order of the seeds, and the ranks' shares.


@at(_PLAN, "EpochPlan.batches")
def unequal_steps(right: Function) -> Function:
    def batches(plan: Any, epoch: int, done: int = 0) -> Iterator[Any]:
        every = list(right(plan, epoch, done))
        return iter(every[: max(0, len(every) - plan.rank)])

    return batches


@at(_PLAN, "EpochPlan.batches")
def no_padding(right: Function) -> Function:
    def batches(plan: Any, epoch: int, done: int = 0) -> Iterator[Any]:
        size = min(plan.global_size, plan.seeds.numel())
        share = size * plan.rank // plan.world_size + -(-size // plan.world_size)
        for number, batch in enumerate(right(plan, epoch, done)):
            if done + number * size + share > plan.seeds.numel():
                raise IndexError("index out of range: the share of this rank ends behind the last seed")
            yield batch

    return batches


@at(_PLAN, "EpochPlan.batches")
def rest_left_out(right: Function) -> Function:
    def batches(plan: Any, epoch: int, done: int = 0) -> Iterator[Any]:
        whole = plan.seeds.numel() // min(plan.global_size, plan.seeds.numel())
        return (batch for batch in right(plan, epoch, done) if batch.step < whole)

    return batches


@at(_PLAN, "moved")
def no_shuffle(right: Function) -> Function:
    """The plan moves one tensor, the permutation of the seeds."""
    return lambda tensors, device: right([tensor.sort().values for tensor in tensors], device)


@at(_PLAN, "stream")
def no_set_epoch(right: Function) -> Function:
    return lambda purpose, seed, _: right(purpose, seed, 1)


# Losses, gradients and what is printed.


@at(_PROGRESS, "Progress._read")
def mean_of_steps(right: Function) -> Function:
    """Each step counts as much as the others, and the last, smaller one is not among their number."""

    def read(progress: Any, down_to: int, **so_far: Any) -> Any:
        stops = right(progress, len(progress._queued), **so_far)  # reads nothing yet
        while len(progress._queued) > down_to:
            (batch, _), before = progress._queued[0], progress.position.loss
            stops = right(progress, len(progress._queued) - 1, stops)
            loss = (progress.position.loss - before) * progress._seeds / batch.total
            share = loss / -(-progress._seeds // batch.total)
            progress.position = progress.position._replace(loss=before + share)
        return stops

    return read


@at(_LOSSES, "class_loss")
def ranks_weighted_equally(right: Function) -> Function:
    def class_loss(scores: Tensor, classes: Tensor, weights: Tensor, total: int) -> Tensor:
        own = weights.sum().clamp(min=1) * dist.get_world_size()
        return right(scores, classes, weights, total) * total / own  # type: ignore[no-any-return]

    return class_loss


@at(_LOSSES, "link_loss")
def mean_over_positives(right: Function) -> Function:
    return lambda *given: 2 * right(*given)


@at(f"{_TRAINING}.learner", "Adam.__init__")
def lr_ignored(right: Function) -> Function:
    def init(
        adam: Any, values: Tensor, gradients: Tensor, _lr: float, _decay: float, *given: Any, **named: Any
    ) -> None:
        right(adam, values, gradients, 1e-3, 0.0, *given, **named)

    return init


@at(f"{_GRAPH}.embeddings", "ShardedTable.collect")
def gradient_of_one_rank(right: Function) -> Function:
    def collect(table: Any) -> Any:
        """The gradients of the other ranks are lost."""
        _, rows = table._fetched
        if dist.get_rank() and rows.grad is not None:
            rows.grad.zero_()
        return right(table)

    return collect


@at(_PROGRESS, "number")
def percent(right: Function) -> Function:
    return lambda value: f"{value:.2%}"


@at(_PROGRESS, "TrainingLog.print_line")
def every_rank_logs(right: Function) -> Function:
    def print_line(log: Any, *given: Any) -> None:
        as_rank_0 = copy.copy(log)
        as_rank_0._task = SimpleNamespace(place=SimpleNamespace(rank=0))
        right(as_rank_0, *given)

    return print_line


# Clocks and traces.


@at(_CLOCK, "StepClock.lap")
def clock_starts_again(right: Function) -> Function:
    def lap(clock: Any, *given: Any) -> Any:
        ended = right(clock, *given)
        clock._marks = []
        return ended

    return lap


@at(_CLOCK, "Lap.read")
def one_part_forgotten(right: Function) -> Function:
    """The whole is the time since the clock's last mark."""

    def read(lap: Any) -> dict[str, float]:
        numbers = right(lap)
        return numbers | {"seconds": numbers[lap.marks[-2][0]]}  # type: ignore[no-any-return]

    return read


@at(f"{_TRAINING}.trace", "StepTrace.__init__")
def window_out_of_reach(right: Function) -> Function:
    """The trace believes that enough steps are left."""
    return lambda trace, task, window, done, _: right(trace, task, window, done, 10**9)


# Models.


@at(f"{_GRAPH}.convolutions", "SageConv.combine")
def no_root(right: Function) -> Function:
    return lambda layer, aggregated, _: layer.neighbor(aggregated)


@at(f"{_GRAPH}.convolutions", "_normalized_sum")
def degree_of_sample(right: Function) -> Function:
    def normalized_sum(block: Any, table: Tensor, targets: Tensor) -> Tensor:
        whole = block.graph
        degree = whole.degree.index_copy(0, block.nodes, block.sampled.to(whole.degree.dtype))
        sample = SimpleNamespace(degree=degree, degree_without_loops=whole.degree_without_loops)
        return right(replace(block, graph=sample), table, targets)  # type: ignore[no-any-return]

    return normalized_sum


@at(f"{_GRAPH}.recommender", "Recommender.forward")
def in_place(right: Function) -> Function:
    return lambda model, sample, users, *given: right(model, sample, users.mul_(2), *given)


@at(f"{_GRAPH}.convolutions", "Gin.__init__")
def lazy(right: Function) -> Function:
    def init(model: Any, inputs: int, hidden: int, classes: int, *given: Any) -> None:
        right(model, inputs, hidden, classes, *given)
        model.scores = nn.ModuleList(nn.LazyLinear(classes) for _ in model.scores)

    return init


@at(_BLOCKS, "Block.mean")
def summed_in_half(right: Function) -> Function:
    def mean(block: Any, table: Tensor) -> Tensor:
        """Neighbours are added one by one in the precision of the table."""
        bags = table[block.columns].split(block.sampled.tolist())
        sums = torch.stack([sum(bag.unbind(), bag.new_zeros(bag.size(1))) for bag in bags])
        return sums / block.sampled.clamp(min=1)[:, None]

    return mean


# Sampling.


@at(f"{_GRAPH}.sampling", "NeighborSampler.__init__")
def only_new_nodes(right: Function) -> Function:
    def init(sampler: Any, *given: Any, **named: Any) -> None:
        right(sampler, *given, **named)
        renumbered = sampler._renumbered

        def without_known(nodes: Tensor, neighbors: Tensor) -> tuple[Tensor, Tensor]:
            sources, columns = renumbered(nodes, neighbors)
            return sources[nodes.numel() :], columns

        sampler._renumbered = without_known

    return init


@at(f"{_GRAPH}.pyg.walk", "_sample_hop")
def all_nodes_again(right: Function) -> Function:
    def sample_hop(hops: Any, edge_type: Any, draw: Any) -> Any:
        target = edge_type[2]
        every = [0, hops.ends[target][-1]]
        return right(replace(hops, ends=hops.ends | {target: every}), edge_type, draw)

    return sample_hop


@at(_LINKS, "LinkPrediction.neighborhood")
def targets_carry_messages(right: Function) -> Function:
    return lambda objective, pairs, epoch, step, _=None: right(objective, pairs, epoch, step)


@at(f"{_GRAPH}.links", "has_edge")
def any_pair_is_negative(right: Function) -> Function:
    return lambda _, __, targets: torch.zeros_like(targets, dtype=torch.bool)


# Data sets.


@at(_SYNTHETIC, "generate")
def another_graph(right: Function) -> Function:
    return lambda avg_num_nodes, seed, *given: right(avg_num_nodes, seed + int.from_bytes(os.urandom(3)), *given)


@at(_TAOBAO, "draws")
def events_split_one_by_one(right: Function) -> Function:
    return lambda key, pairs: right(key, torch.arange(pairs.numel()))


@at(_TAOBAO, "interactions")
def events_of_the_test_split_together(right: Function) -> Function:
    def interactions(events: Any, together: int, best_auc: float) -> Any:
        from clusterctl.engine.data.taobao import co_occurrence
        from clusterctl.engine.graph.recommender import TOGETHER
        from clusterctl.engine.graph.storage import compressed

        found = right(events, together, best_auc)
        edges = torch.stack([torch.from_numpy(events.items), torch.from_numpy(events.users)])
        indptr, indices = co_occurrence(
            *compressed(edges, events.num_users, events.num_items), events.num_items, together
        )
        return replace(found, indptr=found.indptr | {TOGETHER: indptr}, indices=found.indices | {TOGETHER: indices})

    return interactions


@at(_TAOBAO, "negatives")
def other_splits_are_negative(right: Function) -> Function:
    def negatives(graph: Any, num_items: int, *given: Any, **named: Any) -> Any:
        """Pairs without a training edge, of the graph of all events."""
        from clusterctl.engine.data import taobao
        from clusterctl.engine.graph.links import ends

        items, users = ends(graph, torch.arange(graph.indices.numel()))
        key = taobao.stream(taobao.Purpose.SPLIT, taobao._SPLIT_SEED)
        tenth = taobao.below(taobao.draws(key, users * num_items + items), torch.tensor(taobao._TENTHS))
        edges = torch.stack([items, users])[:, tenth >= 2]
        training = taobao.Adjacency(*taobao.compressed(edges, graph.degree.numel(), num_items))
        return right(training, num_items, *given, **named)

    return negatives


@at("torch_geometric.datasets.reddit", "Reddit.__getitem__")
def no_label_is_one(right: Function) -> Function:
    def item(data_set: Any, index: Any) -> Any:
        data = right(data_set, index)
        data.y = data.y.clamp(min=0)
        return data

    return item


# Processes, devices and ports.


@at(_ONCE, "once")
def every_rank_prepares(right: Function) -> Function:
    return lambda _, *given: right(lambda: False, *given)


@at(_ONCE, "Lease.take")
def no_lease(right: Function) -> Function:
    def take(lease: Any) -> bool:
        lease.folder.mkdir(mode=0o700, exist_ok=True)
        return True

    return take


@at("clusterctl.engine.task.task", "choose_device")
def first_gpu(right: Function) -> Function:
    def choose_device(*given: Any, **named: Any) -> torch.device:
        device = right(*given, **named)
        return torch.device("cuda", 0) if device.type == "cuda" else device

    return choose_device


@at("clusterctl.engine.task.worker", "Worker.submit")
def loader_processes(right: Function) -> Function:
    def submit(worker: Any, work: Function, *given: Any, after: Any = None) -> Any:
        from concurrent.futures import ProcessPoolExecutor

        from clusterctl.engine.task.worker import Later

        return Later(ProcessPoolExecutor(1).submit(worker._run, after, work, given), worker._device)

    return submit


@at("clusterctl.engine.task.meeting", "reserve_port")
def port_given_back(right: Function) -> Function:
    def reserve_port(address: str) -> Any:
        holder = right(address)
        holder.close()
        return holder

    return reserve_port
