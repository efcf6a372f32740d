"""Bugs in published examples of distributed graph training, and for each the tests that catch it.

The examples are PyG's and DGL's for several GPUs and nodes, as of 2025 and 2026. Read an entry of the table as: they do
this, we do not, and if the bug is put into our code, these tests fail (`make test-long` checks that they do). Tests
that cover a single bug are in this file.
"""

from __future__ import annotations

import multiprocessing.process
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.made_graphs import random_shop
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from clusterctl.engine.graph.blocks import Block
from clusterctl.engine.graph.convolutions import Gin, PlainGin
from clusterctl.engine.graph.recommender import ITEM, USER, Recommender, fan_outs
from clusterctl.engine.graph.sampling import HeteroSampler
from clusterctl.engine.graph.storage import Graph
from clusterctl.engine.task.task import Task
from clusterctl.engine.training.epoch_plan import Batch, EpochPlan
from clusterctl.engine.training.loop import fit
from clusterctl.engine.training.objective import Accuracy
from clusterctl.engine.training.objectives.link import LinkPrediction
from clusterctl.engine.training.objectives.node import NodeClassification
from clusterctl.shared.spec import LoopTrain, NodeTrain, TaobaoTrain

HERE = "training/test_published_bugs.py"
PLAN, RANKS, LOOP = "training/test_epoch_plan.py", "training/test_rank_counts.py", "training/test_loop.py"
SHOP, LINKS, LINK_RANKS = (
    "workloads/test_taobao_graph.py",
    "training/test_link_objective.py",
    "training/test_link_rank_counts.py",
)

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "clusterctl"
_FAILED = re.compile(r"^(?:FAILED|ERROR) tests/(\S+?::\w+)", re.MULTILINE)


@dataclass(frozen=True)
class Mutation:
    """Replaces `old`, which occurs once in `file` of the package, by `new`."""

    file: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.file}: {self.old} -> {self.new}"

    def source(self) -> str:
        """The changed file. Raises an exception if `old` does not occur exactly once or the result is not Python."""
        text = (PACKAGE / self.file).read_text()
        assert text.count(self.old) == 1, f"{self.file} contains this {text.count(self.old)} times: {self.old}"
        changed = text.replace(self.old, self.new)
        compile(changed, self.file, "exec")
        return changed

    def failing(self, folder: Path, tests: Iterable[str]) -> tuple[set[str], str]:
        """Those of `tests` (file::function, below tests/) that fail with the bug, and pytest's output."""
        package = folder / "src" / "clusterctl"
        shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
        (package / self.file).write_text(self.source())
        for shipped in ("jobs", "cluster", "data", "containers"):  # where the package looks for them
            (folder / shipped).symlink_to(ROOT / shipped)
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(f"tests/{test}" for test in tests)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        done = subprocess.run(
            words,
            cwd=ROOT,
            env=environment | {"PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=1200,
            check=False,
        )
        return set(_FAILED.findall(done.stdout)), done.stdout + done.stderr


# The bugs, as mutations of our code.
_PLAN, _LOOP, _NODES = "engine/training/epoch_plan.py", "engine/training/loop.py", "engine/training/objectives/node.py"
_LOSSES = "engine/training/objective.py"
_PAIRS, _BLOCKS, _SLICES = "engine/training/objectives/link.py", "engine/graph/blocks.py", "engine/graph/blocks.py"
WRONG_SPLIT = Mutation(_NODES, "getattr(graph, split)", 'getattr(graph, "val")')
LAST_NODE_LEFT_OUT = Mutation(_NODES, "(nodes < own.stop)", "(nodes < own.stop - 1)")
A_NODE_TWICE = Mutation(_NODES, "count[1] = nodes.numel()", "count[1] = nodes.numel() + 1")
_OWN_GRAPHS = "own = own_slice(self._splits[split].numel())"
A_GRAPH_TWICE = Mutation(
    "engine/training/objectives/graph.py",
    _OWN_GRAPHS,
    f"{_OWN_GRAPHS}; own = range(max(own.start - 1, 0), own.stop)",
)
LAST_GRAPHS_LEFT_OUT = Mutation(
    "engine/training/objectives/graph.py", _OWN_GRAPHS, "own = own_slice(self._splits[split].numel() // 3 * 3)"
)
LAST_PAIR_LEFT_OUT = Mutation(_PAIRS, "own.start : own.stop]", "own.start : own.stop - 1]")
UNEQUAL_STEPS = Mutation(_PLAN, "range(first_step, self.steps)", "range(first_step, self.steps - self.rank)")
NO_PADDING = Mutation(_PLAN, "order[(start + places) % order.numel()]", "order[start + places]")
REST_LEFT_OUT = Mutation(_PLAN, "range(first_step, self.steps)", "range(first_step, self.seeds.numel() // self._size)")
NO_SHUFFLE = Mutation(
    _PLAN, "torch.randperm(self.seeds.numel(), generator=generator)", "torch.arange(self.seeds.numel())"
)
NO_SET_EPOCH = Mutation(_PLAN, "self.seed, epoch)", "self.seed, 1)")
TESTED_ON_TRAINING = Mutation(
    "engine/workloads/synthetic.py", "data.x, data.y, train, val, test,", "data.x, data.y, train, val, train,"
)
ANOTHER_GRAPH = Mutation("engine/workloads/synthetic.py", "torch.manual_seed(seed)", "torch.seed()")
MEAN_OF_STEPS = Mutation(
    "engine/training/progress.py", "loss * batch.total / self._seeds", "loss / -(-self._seeds // batch.total)"
)
RANKS_WEIGHTED_EQUALLY = Mutation(
    _LOSSES,
    "(losses * weights).sum() / total",
    "(losses * weights).sum() / (weights.sum().clamp(min=1) * torch.distributed.get_world_size())",
)
NEVER_TRAIN_AGAIN = Mutation(_LOOP, "objective.model.train()", "objective.model.training")
NEVER_EVAL = Mutation(_LOOP, "objective.model.eval()", "objective.model.train()")
CLOCK_STARTS_AGAIN = Mutation("engine/task/step_clock.py", "self._marks = [marks[-1]]", "self._marks = []")
ONE_PART_FORGOTTEN = Mutation("engine/task/step_clock.py", "whole = sum(seconds.values())", "whole = seconds[part]")
NO_ROOT = Mutation(
    "engine/graph/convolutions.py", "self.neighbor(aggregated) + self.root(targets)", "self.neighbor(aggregated)"
)
DEGREE_OF_SAMPLE = Mutation(
    "engine/graph/convolutions.py",
    "of_target = degree.index_select(0, block.nodes).to(exact)",
    "of_target = block.sampled.to(exact)",
)
NO_LAST_EVALUATION = Mutation(_LOOP, "if last or decides or (", "if decides or (")
WINDOW_OUT_OF_REACH = Mutation("engine/training/trace.py", "first if first <= left else left // 2 + 1", "first")
PERCENT = Mutation("engine/training/progress.py", "{number(score.value)}", "{score.value:.2%}")
LR_IGNORED = Mutation(
    "engine/training/learner.py", "flat.gradients, train.lr, train.weight_decay)", "flat.gradients, 1e-3, 0.0)"
)
RANK_0_ALONE = Mutation(_SLICES, "size = -(-nodes // dist.get_world_size())", "size = nodes")
EVERY_RANK_PREPARES = Mutation("shared/record/once.py", "return is_listed(folder) and whole(folder)", "return False")
_MKDIR = "self.folder.mkdir({})\n        except FileExistsError:"
NO_LEASE = Mutation("shared/record/once.py", _MKDIR.format("mode=0o700"), _MKDIR.format("mode=0o700, exist_ok=True"))
TEST_EVENTS_TOGETHER = Mutation(
    "engine/data/taobao.py", "co_occurrence(*of_user,", "co_occurrence(everything.indptr, everything.indices,"
)
TARGETS_CARRY_MESSAGES = Mutation(_PAIRS, "{} if hidden is None else {OF_USER: hidden}", "{}")
EVENTS_SPLIT_ONE_BY_ONE = Mutation(
    "engine/data/taobao.py", "users * events.num_items + items)", "torch.arange(users.numel()))"
)
ANY_PAIR_IS_NEGATIVE = Mutation(
    "engine/graph/links.py", "waiting[has_edge(graph, sources[waiting], targets[waiting])]", "waiting[:0]"
)
OTHER_SPLITS_ARE_NEGATIVE = Mutation(
    "engine/data/taobao.py", "everything, events.num_items, torch", "Adjacency(*of_user), events.num_items, torch"
)
MEAN_OVER_POSITIVES = Mutation(_LOSSES, "/ (2 * total)", "/ total")
IN_PLACE = Mutation(
    "engine/graph/recommender.py", "users[: of_users.nodes.numel()]\n", "users[: of_users.nodes.numel()].mul_(2)\n"
)
FIRST_GPU = Mutation("engine/task/task.py", 'torch.device("cuda", local_rank)', 'torch.device("cuda", 0)')
LOADER_PROCESSES = Mutation(
    "engine/task/worker.py",
    "self._pool.submit(self._run, after or queued(self._device), work, given)",
    '__import__("concurrent.futures").futures.ProcessPoolExecutor(1).submit(self._run, None, work, given)',
)
PORT_GIVEN_BACK = Mutation("engine/task/meeting.py", "    return holder\n", "    holder.close()\n    return holder\n")
LAZY = Mutation(
    "engine/graph/convolutions.py", "Linear(hidden, classes) for _ in widths", "nn.LazyLinear(classes) for _ in widths"
)
EVERY_RANK_LOGS = Mutation("engine/training/progress.py", "if self._task.place.rank == 0:", "if True:")
NO_LABEL_IS_ONE = Mutation("engine/data/reddit.py", ".min()) < 0", ".min()) < -(2**63)")
SUMMED_IN_HALF = Mutation(
    _BLOCKS,
    'sums = F.embedding_bag(columns, table, offsets, mode="sum", include_last_offset=True)',
    "bags = table[columns].split(offsets.diff().tolist())\n"
    "        sums = torch.stack([sum(bag.unbind(), bag.new_zeros(bag.size(1))) for bag in bags])",
)
GRADIENT_OF_ONE_RANK = Mutation("engine/graph/embeddings.py", "sums[part] += rows_of_rank", "sums[part] = rows_of_rank")
ONLY_NEW_NODES = Mutation("engine/graph/sampling.py", "nodes = sources\n", "nodes = sources[nodes.numel() :]\n")
ALL_NODES_AGAIN = Mutation("engine/graph/pyg/walk.py", "= hops.ends[target][-2:]", "= 0, hops.ends[target][-1]")

# What the examples do -> the mutations that bring it back, each with the tests (file::test) that then fail.
BUGS: dict[str, dict[Mutation, list[str]]] = {
    "the test accuracy is that of the validation split": {
        WRONG_SPLIT: [f"{HERE}::test_the_test_accuracy_is_that_of_the_test_split"]
    },
    "an evaluation drops its last batches, and averages the shares of ranks": {
        LAST_NODE_LEFT_OUT: [f"{RANKS}::test_every_test_node_is_counted_once_and_every_node_inferred_once"],
        LAST_GRAPHS_LEFT_OUT: [
            "workloads/test_graph_classification.py::test_folds_are_labelled_and_test_every_graph_once"
        ],
        LAST_PAIR_LEFT_OUT: [f"{LINKS}::test_every_pair_is_scored_once_from_full_neighbourhoods_whatever_the_fan_out"],
    },
    "ranks take different numbers of steps, and some wait forever": {
        UNEQUAL_STEPS: [f"{PLAN}::test_every_seed_is_trained_on_once_in_equal_steps_and_shares"]
    },
    "fewer seeds than ranks: an IndexError": {
        NO_PADDING: [f"{PLAN}::test_every_seed_is_trained_on_once_in_equal_steps_and_shares"]
    },
    "the remainder of a division by the ranks, and the last batches, are never trained on": {
        REST_LEFT_OUT: [f"{PLAN}::test_every_seed_is_trained_on_once_in_equal_steps_and_shares"]
    },
    "every rank owns the same seeds in all epochs; seeds are not shuffled": {
        NO_SHUFFLE: [
            f"{HERE}::test_a_rank_trains_on_different_seeds_in_every_epoch",
            f"{PLAN}::test_each_epoch_and_seed_has_its_own_reproducible_order",
        ]
    },
    "synthetic tests on its training nodes": {
        TESTED_ON_TRAINING: ["workloads/test_synthetic.py::test_the_splits_are_60_20_20_disjoint_and_cover_all_nodes"]
    },
    "synthetic generates a different graph and split on every rank": {
        ANOTHER_GRAPH: ["workloads/test_synthetic.py::test_the_graph_and_its_splits_depend_only_on_the_seed"],
        EVERY_RANK_PREPARES: ["task/test_task.py::test_ranks_on_uneven_nodes_form_groups_and_prepare_once"],
    },
    "in a partial batch, sampled neighbours count as seeds, and the mean is over one step too few": {
        MEAN_OF_STEPS: [f"{HERE}::test_the_epoch_loss_is_the_mean_over_seeds_even_with_a_partial_batch"],
        RANKS_WEIGHTED_EQUALLY: [f"{RANKS}::test_in_float64_without_dropout_losses_and_accuracy_are_the_same"],
    },
    "the model is not put back into training mode": {
        NEVER_TRAIN_AGAIN: [f"{LOOP}::test_the_model_is_in_train_and_eval_mode_and_tested_once"]
    },
    "the model is never put into evaluation mode": {
        NEVER_EVAL: [f"{LOOP}::test_the_model_is_in_train_and_eval_mode_and_tested_once"]
    },
    "the timer restarts in every step, so the time of one step is divided by the number of steps": {
        ONE_PART_FORGOTTEN: [
            f"{LOOP}::test_every_step_and_every_score_is_in_the_metrics",
            "task/test_step_clock.py::test_the_parts_of_a_lap_add_up",
        ],
        CLOCK_STARTS_AGAIN: ["task/test_step_clock.py::test_time_after_a_lap_counts_for_the_next_unless_restarted"],
    },
    "synthetic's GCN cannot learn, and nobody notices": {
        LAST_NODE_LEFT_OUT: [
            "workloads/test_synthetic.py::test_on_fake_dataset_the_gcn_stays_at_chance_and_counts_every_test_node"
        ],
        NO_ROOT: [
            "workloads/test_synthetic.py::test_graphsage_learns_the_synthetic_labels_with_and_without_accelerations"
        ],
    },
    "a GCN normalises with the degrees of the sample": {
        DEGREE_OF_SAMPLE: ["graph/test_convolutions.py::test_a_sampled_gcn_estimates_the_whole_neighbourhood"]
    },
    "an epoch shorter than the warm-up fails": {
        NO_LAST_EVALUATION: [f"{LOOP}::test_evaluate_every_never_skips_the_last_evaluation"],
        WINDOW_OUT_OF_REACH: ["training/test_trace.py::test_a_training_shorter_than_the_window_is_still_traced"],
    },
    "a share is printed as if it were percent": {
        PERCENT: [f"{LOOP}::test_the_model_learns_and_rank_0_logs_every_epoch"]
    },
    "--lr is ignored": {LR_IGNORED: [f"{HERE}::test_the_configured_learning_rate_is_used"]},
    "rank 0 evaluates alone, while the others wait until NCCL gives up": {
        RANK_0_ALONE: [
            f"{RANKS}::test_every_test_node_is_counted_once_and_every_node_inferred_once",
            "graph/test_inference.py::test_inference_over_uneven_slices_equals_pyg_on_the_whole_graph",
            f"{LINK_RANKS}::test_in_float64_losses_scores_and_embeddings_are_the_same",
        ]
    },
    "every rank loads, converts and sorts the data set, or gets it pickled": {
        EVERY_RANK_PREPARES: [
            "graph/test_storage.py::test_shared_data_is_built_once_and_rebuilt_when_damaged",
            "task/test_task.py::test_ranks_on_uneven_nodes_form_groups_and_prepare_once",
        ]
    },
    "taobao counts co-occurring items over test events too": {
        TEST_EVENTS_TOGETHER: [
            f"{SHOP}::test_only_training_events_decide_which_items_go_together",
            f"{SHOP}::test_test_events_change_no_edge_that_carries_messages",
        ]
    },
    "the edges to be predicted carry messages": {
        TARGETS_CARRY_MESSAGES: [f"{LINKS}::test_edges_of_the_global_batch_carry_no_messages_on_any_rank"]
    },
    "a repeated event is in training and test": {
        EVENTS_SPLIT_ONE_BY_ONE: [f"{SHOP}::test_all_events_of_a_pair_are_in_the_same_split"]
    },
    "negatives may be positives": {
        ANY_PAIR_IS_NEGATIVE: ["graph/test_links.py::test_negatives_are_never_edges_even_if_most_pairs_are"],
        OTHER_SPLITS_ARE_NEGATIVE: [f"{SHOP}::test_negatives_are_in_no_split"],
    },
    "a sum of batch means is divided by the number of predictions": {
        MEAN_OVER_POSITIVES: [f"{LINKS}::test_the_loss_is_the_mean_over_all_examples_without_padding"],
        MEAN_OF_STEPS: [f"{HERE}::test_the_epoch_loss_is_the_mean_over_seeds_even_with_a_partial_batch"],
    },
    "the forward pass changes its batch": {IN_PLACE: [f"{HERE}::test_the_forward_pass_changes_none_of_its_inputs"]},
    "every process takes the first GPU": {FIRST_GPU: ["task/test_device.py::test_each_rank_gets_its_own_device"]},
    "hundreds of loader processes per node, which hang once CUDA is initialized and fill /dev/shm": {
        LOADER_PROCESSES: [
            f"{HERE}::test_training_starts_no_process",
            "training/test_prefetch.py::test_items_come_in_order_and_are_prepared_in_another_thread",
        ]
    },
    "every job uses the same port": {
        PORT_GIVEN_BACK: ["task/test_meeting.py::test_a_reserved_port_stays_reserved_but_a_program_can_listen_on_it"],
    },
    "lazy modules have no parameters yet when they are handed to DDP": {
        LAZY: [f"{HERE}::test_every_parameter_exists_before_the_first_batch"]
    },
    "several ranks download or convert at once, or only one rank of all nodes does": {
        NO_LEASE: ["runs/test_once.py::test_concurrent_callers_prepare_once_and_leave_nothing_behind"],
        EVERY_RANK_PREPARES: ["task/test_task.py::test_ranks_on_uneven_nodes_form_groups_and_prepare_once"],
    },
    "DistributedSampler repeats samples to fill up, and the metrics count them": {
        A_NODE_TWICE: [f"{RANKS}::test_every_test_node_is_counted_once_and_every_node_inferred_once"],
        A_GRAPH_TWICE: [
            "training/test_graph_objective.py::test_losses_and_accuracy_do_not_depend_on_the_number_of_ranks_with_dropout_and_padding"
        ],
    },
    "Join costs one collective per step, and gradients are averaged over ranks, not seeds": {
        UNEQUAL_STEPS: [f"{PLAN}::test_every_seed_is_trained_on_once_in_equal_steps_and_shares"],
        RANKS_WEIGHTED_EQUALLY: [f"{RANKS}::test_in_float64_without_dropout_losses_and_accuracy_are_the_same"],
    },
    "set_epoch is forgotten, and every epoch has the same order": {
        NO_SET_EPOCH: [f"{PLAN}::test_each_epoch_and_seed_has_its_own_reproducible_order"]
    },
    "every rank evaluates and prints the whole test set": {
        EVERY_RANK_LOGS: ["workloads/test_reddit.py::test_two_ranks_train_on_real_data_and_record_their_stages"]
    },
    "NaN labels become classes": {
        NO_LABEL_IS_ONE: ["workloads/test_reddit_format.py::test_a_node_without_a_label_in_a_split_is_rejected"]
    },
    "a mean over thousands of neighbours in half precision loses them": {
        SUMMED_IN_HALF: [f"{HERE}::test_a_mean_over_thousands_of_neighbours_keeps_them_all_in_bfloat16"]
    },
    "NCCL has no collective for sparse gradients, and an empty one fails": {
        GRADIENT_OF_ONE_RANK: [f"{LINK_RANKS}::test_rows_are_fetched_from_their_owner_and_gradients_summed_there"]
    },
    "which nodes are sampled at the second hop depends on the library and is not documented": {
        ONLY_NEW_NODES: [
            "graph/test_sampling.py::test_every_frontier_node_is_sampled_at_every_hop_and_targets_come_first"
        ],
        ALL_NODES_AGAIN: ["graph/test_pyg_sampler.py::test_a_hop_samples_the_full_fan_out_of_new_nodes_only"],
    },
}
MUTATIONS = sorted({mutation for bug in BUGS.values() for mutation in bug}, key=str)
NAMES = {value: name for name, value in globals().items() if isinstance(value, Mutation)}

MakeGraph = Callable[..., Graph]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=NAMES.__getitem__)
def test_every_mutation_can_be_applied(mutation: Mutation) -> None:
    assert mutation.source()


@pytest.mark.long  # half an hour
@pytest.mark.parametrize("mutation", MUTATIONS, ids=NAMES.__getitem__)
def test_each_bug_fails_the_tests_against_it(mutation: Mutation, tmp_path: Path) -> None:
    against = {test for bug in BUGS.values() for test in bug.get(mutation, ())}
    failed, output = mutation.failing(tmp_path, sorted(against))
    assert failed == against, output


@dataclass
class Numbers:
    """Learns y = 2 x on ten numbers."""

    unit, unit_of_seeds, classes, own_training = "nodes", "nodes", 2, None
    seeds: Tensor = field(default_factory=lambda: torch.arange(10))
    model: nn.Module = field(default_factory=lambda: nn.Linear(1, 1, bias=False).double())

    def prepare(self, batch: Batch) -> Tensor:
        return batch.seeds[:, None].double()

    def losses(self, numbers: Tensor) -> Tensor:
        return (self.model(numbers) - 2 * numbers).square().squeeze(1)  # type: ignore[no-any-return]

    def loss(self, batch: Batch, prepared: Tensor) -> Tensor:
        return (self.losses(prepared) * batch.weights).sum() / batch.total

    def evaluate(self, splits: Any) -> dict[str, Accuracy]:
        return {split: Accuracy(3, 4) for split in splits}


@pytest.mark.parametrize("right", ["val", "test"])
def test_the_test_accuracy_is_that_of_the_test_split(
    random_graph: MakeGraph, lone_task: Task, monkeypatch: pytest.MonkeyPatch, right: str
) -> None:
    graph = random_graph()
    trained = NodeClassification(graph, NodeTrain(fan_out=(4, 4)), lone_task)

    def inferred(*_: object) -> tuple[range, Tensor]:
        """Right on one split, wrong everywhere else."""
        classes = (graph.y + 1) % graph.num_classes
        classes[getattr(graph, right)] = graph.y[getattr(graph, right)]
        return range(graph.num_nodes), classes

    monkeypatch.setattr("clusterctl.engine.training.objectives.node.infer", inferred)
    scores = trained.evaluate(("val", "test"))
    assert {split: score.value for split, score in scores.items()} == {"val": 0.0, "test": 0.0} | {right: 1.0}


def test_a_rank_trains_on_different_seeds_in_every_epoch() -> None:
    plan = EpochPlan(torch.arange(80), global_size=20, seed=0, rank=1, world_size=4)
    epochs = [{int(seed) for batch in plan.batches(epoch) for seed in batch.seeds} for epoch in range(1, 30)]
    assert all(len(own) == 20 for own in epochs)
    assert len({frozenset(own) for own in epochs}) == len(epochs)
    assert set().union(*epochs) == set(range(80))


def test_the_epoch_loss_is_the_mean_over_seeds_even_with_a_partial_batch(
    lone_task: Task, capsys: pytest.CaptureFixture[str]
) -> None:
    objective = Numbers()
    expected = float(objective.losses(objective.seeds[:, None].double()).mean().detach())
    fit(objective, LoopTrain(epochs=1, batch_size=4, lr=1e-12, precision="float64"), lone_task)
    assert f"loss {expected:.4f}  " in capsys.readouterr().out


@pytest.mark.parametrize("lr", [0.01, 0.3])
def test_the_configured_learning_rate_is_used(lone_task: Task, lr: float) -> None:
    """Adam's first step is as long as the learning rate."""
    objective = Numbers()
    before = next(objective.model.parameters()).item()
    fit(objective, LoopTrain(epochs=1, batch_size=10, lr=lr), lone_task)
    assert abs(next(objective.model.parameters()).item() - before) == pytest.approx(lr, rel=1e-6)


def test_the_forward_pass_changes_none_of_its_inputs() -> None:
    torch.manual_seed(0)
    seeds = {USER: torch.tensor([3, 10, 20]), ITEM: torch.tensor([5, 2, 40])}
    sample = HeteroSampler(random_shop(), fan_outs(4, 3), seed=1).sample(seeds, 1, 0)
    blocks = [(hop, kind, block) for hop, found in enumerate(sample.hops) for kind, block in found.items()]
    tables = [torch.randn(sample.nodes[kind].numel(), 6) for kind in (USER, ITEM)]
    pairs = (torch.tensor([0, 1, 2]), torch.tensor([0, 1, 2]))
    tensors = [*tables, *pairs, *sample.nodes.values(), *(block.neighbors for _, _, block in blocks)]
    copies = [tensor.clone() for tensor in tensors]
    nodes = dict(sample.nodes)
    model = Recommender(6)
    first, second = (model(sample, *tables, pairs) for _ in range(2))
    assert torch.equal(first, second)
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(tensors, copies, strict=True))
    assert all(sample.nodes[kind] is own for kind, own in nodes.items())
    assert all(sample.hops[hop][kind] is block for hop, kind, block in blocks)


def test_training_starts_no_process(random_graph: MakeGraph, lone_task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", refuse)
    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
    monkeypatch.setattr(os, "fork", refuse)
    train = NodeTrain(batch_size=4, fan_out=(4, 4), hidden_channels=5)
    fit(NodeClassification(random_graph(), train, lone_task), train, lone_task)


def test_every_parameter_exists_before_the_first_batch(random_graph: MakeGraph, lone_task: Task) -> None:
    train = NodeTrain(fan_out=(4, 4), hidden_channels=5)
    models: list[nn.Module] = [Gin(7, 5, 3, 2, "mean", 0.0), PlainGin(7, 5, 3, 2, "mean")]
    models += [
        NodeClassification(random_graph(), replace(train, model=kind), lone_task).model for kind in ("sage", "gcn")
    ]
    models.append(LinkPrediction(random_shop(), TaobaoTrain(hidden_channels=6), lone_task).model)
    for model in models:
        parameters = list(model.parameters())
        assert parameters
        assert not any(is_lazy(parameter) for parameter in parameters)


def test_a_mean_over_thousands_of_neighbours_keeps_them_all_in_bfloat16(random_graph: MakeGraph) -> None:
    """A sum of ones in bfloat16, added one by one, never gets past 256."""
    columns = torch.zeros(5000, dtype=torch.int32)
    block = Block(random_graph(), torch.tensor([0]), torch.tensor([0, 5000], dtype=torch.int32), columns, columns)
    assert block.mean(torch.ones(1, 3, dtype=torch.bfloat16)).tolist() == [[pytest.approx(1.0, rel=0.01)] * 3]
