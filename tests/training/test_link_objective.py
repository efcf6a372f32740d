"""The objective on one rank. Several ranks are tested in test_link_rank_counts.py."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.made_graphs import random_shop

from clusterctl.engine.graph.links import ends, has_edge
from clusterctl.engine.graph.recommender import ITEM, OF_USER, USER
from clusterctl.engine.task.task import Task
from clusterctl.engine.training.epoch_plan import EpochPlan
from clusterctl.engine.training.objectives.link import LinkPrediction, Pairs
from clusterctl.shared.spec import TaobaoTrain

TRAIN = TaobaoTrain(batch_size=16, fan_out=(-1, -1), hidden_channels=6, precision="float64")


def objective(task: Task, train: TaobaoTrain = TRAIN) -> LinkPrediction:
    return LinkPrediction(random_shop(), train, task)


def ends_of_pairs(prepared: Pairs) -> torch.Tensor:
    nodes = prepared.sample.nodes
    return torch.stack([nodes[kind][place] for kind, place in zip((USER, ITEM), prepared.pairs, strict=True)])


def scores_of(trained: LinkPrediction, prepared: Pairs) -> torch.Tensor:
    return trained.scored(prepared, trained.gather(prepared), ())


def messages(prepared: Pairs) -> set[tuple[int, int]]:
    """The (user, item) pairs along which a message is passed."""
    block = prepared.sample.hops[0][OF_USER]
    users = block.nodes.repeat_interleave(block.offsets.diff())
    return set(zip(users.tolist(), block.neighbors.tolist(), strict=True))


@pytest.mark.parametrize("world_size", [1, 4])
def test_edges_of_the_global_batch_carry_no_messages_on_any_rank(lone_task: Task, world_size: int) -> None:
    trained = objective(lone_task)
    edges = random_shop().relation(OF_USER)
    plans = [EpochPlan(trained.seeds, 16, 0, rank, world_size) for rank in range(world_size)]
    for batches in zip(*(plan.batches(1) for plan in plans), strict=True):
        seeds = torch.cat([batch.seeds[batch.weights] for batch in batches])
        assert torch.equal(batches[0].everyone.sort().values, seeds.sort().values)
        items, users = ends(edges, seeds)
        hidden = set(zip(users.tolist(), items.tolist(), strict=True))
        passed = set().union(*(messages(trained.prepare(batch)) for batch in batches))
        assert not hidden & passed
    assert passed  # along the other edges


def test_a_batch_has_its_edges_and_as_many_non_edges(lone_task: Task) -> None:
    trained = objective(lone_task)
    edges = random_shop().relation(OF_USER)
    (batch, *_) = EpochPlan(trained.seeds, 16, 0, 0, 1).batches(1)
    users, items = ends_of_pairs(trained.prepare(batch))
    assert torch.equal(torch.stack([items[:16], users[:16]]), torch.stack(ends(edges, batch.seeds)))
    assert has_edge(edges, items, users).tolist() == [True] * 16 + [False] * 16


def test_with_replacement_every_user_with_items_gets_fan_out_neighbours(lone_task: Task) -> None:
    trained = objective(lone_task, replace(TRAIN, fan_out=(50, 4), replace=True))
    (batch, *_) = EpochPlan(trained.seeds, 16, 0, 0, 1).batches(1)
    block = trained.prepare(batch).sample.hops[0][OF_USER]
    assert {*block.offsets.diff().tolist()} == {0, 50}


def test_the_loss_is_the_mean_over_all_examples_without_padding(lone_task: Task) -> None:
    trained = objective(lone_task)
    *_, last = EpochPlan(trained.seeds, 16, 0, 0, 1).batches(1)
    assert last.total < 16
    prepared = trained.prepare(last)
    scores = scores_of(trained, prepared).detach()
    real = last.weights.repeat(2)
    signs = torch.cat([torch.ones(16), -torch.ones(16)])
    expected = torch.nn.functional.softplus(-signs * scores)[real].mean()
    assert float(trained.loss(last, prepared).detach()) == pytest.approx(float(expected), abs=1e-12)


def test_every_pair_is_scored_once_from_full_neighbourhoods_whatever_the_fan_out(lone_task: Task) -> None:
    data = random_shop()
    sampling, whole = (objective(lone_task, replace(TRAIN, fan_out=fan_out)) for fan_out in ((3, 2), (-1, -1)))
    for trained in (sampling, whole):
        scores = trained.evaluate(("val", "test"))
        assert {split: score.total for split, score in scores.items()} == {"val": 25, "test": 25}
        assert {score.negatives for score in scores.values()} == {25}
    with torch.no_grad():
        encoded = sampling.encoded()
        for name in ("val", "test_negatives"):
            pairs = getattr(data, name).to(torch.int64)
            expected = scores_of(whole, whole.neighborhood((pairs[0], pairs[1]), epoch=0, step=0))
            torch.testing.assert_close(sampling.scores_of(pairs, *encoded), expected, rtol=0, atol=1e-12)


def test_an_empty_split_has_a_total_of_zero(lone_task: Task) -> None:
    none = torch.empty(2, 0, dtype=torch.int32)
    trained = LinkPrediction(replace(random_shop(), val=none, val_negatives=none), TRAIN, lone_task)
    assert trained.evaluate(("val",))["val"].total == 0


def test_bfloat16_keeps_rows_and_gradients_in_float32_and_stays_close(lone_task: Task) -> None:
    losses = []
    for precision in ("float32", "bfloat16"):
        trained = objective(lone_task, replace(TRAIN, precision=precision))
        batch = next(iter(EpochPlan(trained.seeds, 16, 0, 0, 1).batches(1)))
        loss = trained.loss(batch, trained.prepare(batch))
        loss.backward()  # type: ignore[no-untyped-call]
        touched, gradients = trained.model.table.collect()
        assert (trained.model.table.rows.dtype, gradients.dtype) == (torch.float32, torch.float32)
        assert touched.unique().numel() == touched.numel()
        losses.append(float(loss.detach()))
    assert losses[0] == pytest.approx(losses[1], rel=0.05)
