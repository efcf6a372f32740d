"""Bugs in published examples of distributed graph training, and for each the tests that catch it.

The examples are PyG's and DGL's for several GPUs and nodes, as of 2025 and 2026. Read an entry of the table as: they do
this, we do not, and if the bug is put into our code, these tests fail (`make test-long` checks that they do, with the
wrong functions of `support/published_bugs.py`). Tests that cover a single bug are in this file.
"""

from __future__ import annotations

import ast
import importlib
import multiprocessing.process
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from support import published_bugs as bugs
from support.made_graphs import random_shop
from support.published_bugs import PublishedBug
from support.put_back import put_back, startup
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

TESTS = Path(__file__).resolve().parents[1]
_FAILED = re.compile(r"^(?:FAILED|ERROR) tests/(\S+?::\w+)", re.MULTILINE)

# What the examples do -> the bugs that bring it back, each with the tests (file::test) that then fail.
BUGS: dict[str, dict[PublishedBug, list[str]]] = {
    "the test accuracy is that of the validation split": {
        bugs.wrong_split: [f"{HERE}::test_the_test_accuracy_is_that_of_the_test_split"]
    },
    "an evaluation drops its last batches, and averages the shares of ranks": {
        bugs.last_node_left_out: [f"{RANKS}::test_every_test_node_is_counted_once_and_every_node_inferred_once"],
        bugs.last_graphs_left_out: [
            "workloads/test_graph_classification.py::test_folds_are_labelled_and_test_every_graph_once"
        ],
        bugs.last_pair_left_out: [
            f"{LINKS}::test_every_pair_is_scored_once_from_full_neighbourhoods_whatever_the_fan_out"
        ],
    },
    "ranks take different numbers of steps, and some wait forever": {
        bugs.unequal_steps: [f"{PLAN}::test_every_seed_is_trained_on_once_in_equal_steps_and_shares"]
    },
    "fewer seeds than ranks: an IndexError": {
        bugs.no_padding: [f"{PLAN}::test_every_seed_is_trained_on_once_in_equal_steps_and_shares"]
    },
    "the remainder of a division by the ranks, and the last batches, are never trained on": {
        bugs.rest_left_out: [f"{PLAN}::test_every_seed_is_trained_on_once_in_equal_steps_and_shares"]
    },
    "every rank owns the same seeds in all epochs; seeds are not shuffled": {
        bugs.no_shuffle: [
            f"{HERE}::test_a_rank_trains_on_different_seeds_in_every_epoch",
            f"{PLAN}::test_each_epoch_and_seed_has_its_own_reproducible_order",
        ]
    },
    "synthetic tests on its training nodes": {
        bugs.tested_on_training: [
            "workloads/test_synthetic.py::test_the_splits_are_60_20_20_disjoint_and_cover_all_nodes"
        ]
    },
    "synthetic generates a different graph and split on every rank": {
        bugs.another_graph: ["workloads/test_synthetic.py::test_the_graph_and_its_splits_depend_only_on_the_seed"],
        bugs.every_rank_prepares: ["task/test_task.py::test_ranks_on_uneven_nodes_form_groups_and_prepare_once"],
    },
    "in a partial batch, sampled neighbours count as seeds, and the mean is over one step too few": {
        bugs.mean_of_steps: [f"{HERE}::test_the_epoch_loss_is_the_mean_over_seeds_even_with_a_partial_batch"],
        bugs.ranks_weighted_equally: [f"{RANKS}::test_in_float64_without_dropout_losses_and_accuracy_are_the_same"],
    },
    "the model is not put back into training mode": {
        bugs.never_train_again: [f"{LOOP}::test_the_model_is_in_train_and_eval_mode_and_tested_once"]
    },
    "the model is never put into evaluation mode": {
        bugs.never_eval: [f"{LOOP}::test_the_model_is_in_train_and_eval_mode_and_tested_once"]
    },
    "the timer restarts in every step, so the time of one step is divided by the number of steps": {
        bugs.one_part_forgotten: [
            f"{LOOP}::test_every_step_and_every_score_is_in_the_metrics",
            "task/test_step_clock.py::test_the_parts_of_a_lap_add_up",
        ],
        bugs.clock_starts_again: [
            "task/test_step_clock.py::test_time_after_a_lap_counts_for_the_next_unless_restarted"
        ],
    },
    "synthetic's GCN cannot learn, and nobody notices": {
        bugs.last_node_left_out: [
            "workloads/test_synthetic.py::test_on_fake_dataset_the_gcn_stays_at_chance_and_counts_every_test_node"
        ],
        bugs.no_root: [
            "workloads/test_synthetic.py::test_graphsage_learns_the_synthetic_labels_with_and_without_accelerations"
        ],
    },
    "a GCN normalises with the degrees of the sample": {
        bugs.degree_of_sample: ["graph/test_convolutions.py::test_a_sampled_gcn_estimates_the_whole_neighbourhood"]
    },
    "an epoch shorter than the warm-up fails": {
        bugs.no_last_evaluation: [f"{LOOP}::test_evaluate_every_never_skips_the_last_evaluation"],
        bugs.window_out_of_reach: ["training/test_trace.py::test_a_training_shorter_than_the_window_is_still_traced"],
    },
    "a share is printed as if it were percent": {
        bugs.percent: [f"{LOOP}::test_the_model_learns_and_rank_0_logs_every_epoch"]
    },
    "--lr is ignored": {bugs.lr_ignored: [f"{HERE}::test_the_configured_learning_rate_is_used"]},
    "rank 0 evaluates alone, while the others wait until NCCL gives up": {
        bugs.rank_0_alone: [
            f"{RANKS}::test_every_test_node_is_counted_once_and_every_node_inferred_once",
            "graph/test_inference.py::test_inference_over_uneven_slices_equals_pyg_on_the_whole_graph",
            f"{LINK_RANKS}::test_in_float64_losses_scores_and_embeddings_are_the_same",
        ]
    },
    "every rank loads, converts and sorts the data set, or gets it pickled": {
        bugs.every_rank_prepares: [
            "graph/test_storage.py::test_shared_data_is_built_once_and_rebuilt_when_damaged",
            "task/test_task.py::test_ranks_on_uneven_nodes_form_groups_and_prepare_once",
        ]
    },
    "taobao counts co-occurring items over test events too": {
        bugs.events_of_the_test_split_together: [
            f"{SHOP}::test_only_training_events_decide_which_items_go_together",
            f"{SHOP}::test_test_events_change_no_edge_that_carries_messages",
        ]
    },
    "the edges to be predicted carry messages": {
        bugs.targets_carry_messages: [f"{LINKS}::test_edges_of_the_global_batch_carry_no_messages_on_any_rank"]
    },
    "a repeated event is in training and test": {
        bugs.events_split_one_by_one: [f"{SHOP}::test_all_events_of_a_pair_are_in_the_same_split"]
    },
    "negatives may be positives": {
        bugs.any_pair_is_negative: ["graph/test_links.py::test_negatives_are_never_edges_even_if_most_pairs_are"],
        bugs.other_splits_are_negative: [f"{SHOP}::test_negatives_are_in_no_split"],
    },
    "a sum of batch means is divided by the number of predictions": {
        bugs.mean_over_positives: [f"{LINKS}::test_the_loss_is_the_mean_over_all_examples_without_padding"],
        bugs.mean_of_steps: [f"{HERE}::test_the_epoch_loss_is_the_mean_over_seeds_even_with_a_partial_batch"],
    },
    "the forward pass changes its batch": {
        bugs.in_place: [f"{HERE}::test_the_forward_pass_changes_none_of_its_inputs"]
    },
    "every process takes the first GPU": {bugs.first_gpu: ["task/test_device.py::test_each_rank_gets_its_own_device"]},
    "hundreds of loader processes per node, which hang once CUDA is initialized and fill /dev/shm": {
        bugs.loader_processes: [
            f"{HERE}::test_training_starts_no_process",
            "training/test_prefetch.py::test_items_come_in_order_and_are_prepared_in_another_thread",
        ]
    },
    "every job uses the same port": {
        bugs.port_given_back: [
            "task/test_meeting.py::test_a_reserved_port_stays_reserved_but_a_program_can_listen_on_it"
        ],
    },
    "lazy modules have no parameters yet when they are handed to DDP": {
        bugs.lazy: [f"{HERE}::test_every_parameter_exists_before_the_first_batch"]
    },
    "several ranks download or convert at once, or only one rank of all nodes does": {
        bugs.no_lease: ["record/test_once.py::test_concurrent_callers_prepare_once_and_leave_nothing_behind"],
        bugs.every_rank_prepares: ["task/test_task.py::test_ranks_on_uneven_nodes_form_groups_and_prepare_once"],
    },
    "DistributedSampler repeats samples to fill up, and the metrics count them": {
        bugs.a_node_twice: [f"{RANKS}::test_every_test_node_is_counted_once_and_every_node_inferred_once"],
        bugs.a_graph_twice: [
            "training/test_graph_objective.py::test_losses_and_accuracy_do_not_depend_on_the_number_of_ranks_with_dropout_and_padding"
        ],
    },
    "Join costs one collective per step, and gradients are averaged over ranks, not seeds": {
        bugs.unequal_steps: [f"{PLAN}::test_every_seed_is_trained_on_once_in_equal_steps_and_shares"],
        bugs.ranks_weighted_equally: [f"{RANKS}::test_in_float64_without_dropout_losses_and_accuracy_are_the_same"],
    },
    "set_epoch is forgotten, and every epoch has the same order": {
        bugs.no_set_epoch: [f"{PLAN}::test_each_epoch_and_seed_has_its_own_reproducible_order"]
    },
    "every rank evaluates and prints the whole test set": {
        bugs.every_rank_logs: ["workloads/test_reddit.py::test_two_ranks_train_on_real_data_and_record_their_states"]
    },
    "NaN labels become classes": {
        bugs.no_label_is_one: ["data/test_reddit_format.py::test_a_node_without_a_label_in_a_split_is_rejected"]
    },
    "a mean over thousands of neighbours in half precision loses them": {
        bugs.summed_in_half: [f"{HERE}::test_a_mean_over_thousands_of_neighbours_keeps_them_all_in_bfloat16"]
    },
    "NCCL has no collective for sparse gradients, and an empty one fails": {
        bugs.gradient_of_one_rank: [f"{LINK_RANKS}::test_rows_are_fetched_from_their_owner_and_gradients_summed_there"]
    },
    "which nodes are sampled at the second hop depends on the library and is not documented": {
        bugs.only_new_nodes: [
            "graph/test_sampling.py::test_every_frontier_node_is_sampled_at_every_hop_and_targets_come_first"
        ],
        bugs.all_nodes_again: ["graph/test_pyg_sampler.py::test_a_hop_samples_the_full_fan_out_of_new_nodes_only"],
    },
}
MakeGraph = Callable[..., Graph]


def test_every_bug_is_in_the_table() -> None:
    assert {bug for put_back in BUGS.values() for bug in put_back} == set(bugs.BY_NAME.values())


def test_every_test_against_a_bug_exists() -> None:
    against = {test for put_back in BUGS.values() for tests in put_back.values() for test in tests}
    for file, names in groupby(sorted(test.split("::") for test in against), key=lambda pair: pair[0]):
        defined = {
            node.name for node in ast.parse((TESTS / file).read_text()).body if isinstance(node, ast.FunctionDef)
        }
        assert {name for _, name in names} <= defined, file


@pytest.mark.parametrize("bug", bugs.BY_NAME.values(), ids=bugs.BY_NAME)
def test_every_bug_can_be_put_back(bug: PublishedBug, monkeypatch: pytest.MonkeyPatch) -> None:
    *owners, name = bug.seam.split(".")
    owner = reduce(getattr, owners, importlib.import_module(bug.module))
    right = getattr(owner, name)
    monkeypatch.setattr(owner, name, right)  # which takes the wrong one away
    put_back(bug.name)
    assert getattr(owner, name) is not right


@pytest.mark.long  # half an hour
@pytest.mark.parametrize("bug", bugs.BY_NAME.values(), ids=bugs.BY_NAME)
def test_each_bug_fails_the_tests_against_it(bug: PublishedBug, tmp_path: Path) -> None:
    against = {test for put_back in BUGS.values() for test in put_back.get(bug, ())}
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *(f"tests/{test}" for test in sorted(against)),
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        words,
        cwd=TESTS.parent,
        env=environment | {"PYTHONPATH": str(startup(tmp_path / "startup", bug.module, bug.name))},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert set(_FAILED.findall(done.stdout)) == against, done.stdout + done.stderr


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
