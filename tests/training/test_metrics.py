"""Metrics against definitions written out by hand: with ties, missing answers, and columns of one label."""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from clusterctl.engine.task.task import Task
from clusterctl.engine.training import metrics
from clusterctl.engine.training.metrics import Metric
from clusterctl.engine.training.objective import Accuracy, merit_of
from clusterctl.shared.errors import TaskError
from clusterctl.shared.spec import LinkPredictionTrain, NodeClassificationTrain
from clusterctl.shared.spec.learning import Learning

NAN = math.nan


def trained(metric: str, loss: str = "mse", **others: Any) -> Learning:
    return NodeClassificationTrain(model="users:Net", loss=loss, metric=metric, **others)


def labels(seed: int, shape: tuple[int, ...], missing: float = 0.0) -> tuple[Tensor, Tensor]:
    """Scores with many ties, and labels, of which some are missing."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(-3, 4, shape, generator=generator) / 2.0
    y = torch.randint(0, 2, shape, generator=generator).float()
    return scores, torch.where(torch.rand(shape, generator=generator) < missing, NAN, y)


def by_pairs(scores: Tensor, y: Tensor) -> float:
    pairs = [(p > n) + 0.5 * (p == n) for p in scores[y == 1].tolist() for n in scores[y == 0].tolist()]
    return sum(pairs) / len(pairs)


def by_thresholds(scores: Tensor, y: Tensor) -> float:
    found, last = 0.0, 0.0
    for threshold in sorted(set(scores.tolist()), reverse=True):
        chosen = scores >= threshold
        recall = int(y[chosen].sum()) / int(y.sum())
        found += (recall - last) * int(y[chosen].sum()) / int(chosen.sum())
        last = recall
    return found


def of_columns(scores: Tensor, y: Tensor, measure: Callable[[Tensor, Tensor], float]) -> float:
    found = []
    for column in range(y.size(1)):
        known = ~y[:, column].isnan()
        if len(set(y[known, column].tolist())) == 2:
            found.append(measure(scores[known, column], y[known, column]))
    return sum(found) / len(found)


@pytest.mark.parametrize("missing", [0.0, 0.4])
@pytest.mark.parametrize(("ours", "plain"), [(metrics.roc_auc, by_pairs), (metrics.average_precision, by_thresholds)])
def test_the_area_and_the_average_precision_count_ties_and_leave_out_what_is_missing(
    ours: Callable[[Tensor, Tensor], float], plain: Callable[[Tensor, Tensor], float], missing: float
) -> None:
    for seed in range(5):
        scores, y = labels(seed, (40, 4), missing)
        y[:, 2] = 1.0  # of one label only
        assert ours(scores, y) == pytest.approx(of_columns(scores, y, plain), rel=0, abs=1e-12)
        one = labels(seed, (40,))
        assert ours(*one) == pytest.approx(plain(*one), rel=0, abs=1e-12)


def test_of_two_classes_one_column_counts_and_of_more_each_against_the_rest() -> None:
    scores, y = torch.randn(50, 2), torch.randint(0, 2, (50,))
    assert metrics.roc_auc(scores, y) == pytest.approx(by_pairs(scores[:, 1] - scores[:, 0], y))
    scores, y = torch.randn(60, 3), torch.randint(0, 3, (60,))
    chances = scores.softmax(1)
    expected = sum(by_pairs(chances[:, one], (y == one).float()) for one in range(3)) / 3
    assert metrics.roc_auc(scores, y) == pytest.approx(expected)


def f1(predicted: Tensor, wanted: Tensor) -> float:
    right, wrong = int((predicted & wanted).sum()), int((predicted ^ wanted).sum())
    return 2 * right / (2 * right + wrong) if right or wrong else 0.0


def test_f1_of_labels_counts_columns_without_a_one_as_zero() -> None:
    scores, y = labels(0, (40, 4), 0.3)
    y[:, 1] = torch.where(y[:, 1].isnan(), NAN, 0.0)
    scores[:, 1] = -1.0
    known = ~y.isnan()
    columns = [f1(scores[known[:, one], one] > 0, y[known[:, one], one] == 1) for one in range(4)]
    assert metrics.f1_macro(scores, y) == pytest.approx(sum(columns) / 4)
    assert columns[1] == 0
    assert metrics.f1_micro(scores, y) == pytest.approx(f1((scores > 0)[known], (y == 1)[known]))


def test_f1_of_classes_is_over_those_that_are_predicted_or_wanted() -> None:
    scores, y = torch.randn(30, 5), torch.randint(0, 3, (30,))
    scores[:, 4] = -100  # the class 3 may be predicted, the class 4 is not
    predicted = scores.argmax(1)
    used = sorted({*predicted.tolist(), *y.tolist()})
    expected = sum(f1(predicted == one, y == one) for one in used) / len(used)
    assert metrics.f1_macro(scores, y) == pytest.approx(expected)
    assert metrics.f1_micro(scores, y) == pytest.approx(float((predicted == y).double().mean()))


def test_errors_are_means_over_columns_of_what_is_known() -> None:
    scores, y = torch.randn(20, 3), torch.randn(20, 3)
    y[:15, 1] = NAN
    y[:, 2] = NAN  # nothing known: no part
    first, second = scores[:, 0] - y[:, 0], scores[15:, 1] - y[15:, 1]
    assert metrics.mae(scores, y) == pytest.approx(float(first.abs().mean() + second.abs().mean()) / 2)
    roots = first.square().mean().sqrt() + second.square().mean().sqrt()
    assert metrics.rmse(scores, y) == pytest.approx(float(roots) / 2)


def test_ranks_and_hits_are_those_of_each_positive_among_the_negatives() -> None:
    scores, y = labels(1, (50,))
    positive, negative = scores[y == 1].tolist(), scores[y == 0].tolist()
    ranks = [
        1 + sum(other > one for other in negative) + sum(other == one for other in negative) / 2 for one in positive
    ]
    among_all = metrics.mrr(torch.tensor(positive), torch.tensor(negative))
    assert among_all == pytest.approx(sum(1 / rank for rank in ranks) / len(ranks))
    rows = torch.tensor(negative).expand(len(positive), -1)
    assert metrics.mrr(torch.tensor(positive), rows) == pytest.approx(among_all)
    for k in (1, 5, len(negative)):
        worst = sorted(negative, reverse=True)[k - 1]
        expected = sum(one > worst for one in positive) / len(positive)
        for others in (torch.tensor(negative), rows):
            assert metrics.hits(torch.tensor(positive), others, k) == pytest.approx(expected)
    assert metrics.hits(torch.tensor(positive), torch.tensor(negative), len(negative) + 1) == 1.0


def test_the_accuracy_of_one_label_takes_scores_above_zero_for_ones() -> None:
    y = torch.tensor([[1.0], [0.0], [NAN], [1.0]])
    assert metrics.accuracy(torch.tensor([[0.5], [0.5], [9.0], [2.0]]), y) == pytest.approx(2 / 3)


# The metric of a training, over ranks.


@pytest.fixture
def users() -> Iterator[types.ModuleType]:
    """The user's module."""
    module = types.ModuleType("users")
    sys.modules["users"] = module
    yield module
    del sys.modules["users"]


def test_examples_are_in_the_order_of_their_numbers_whoever_has_them(users: types.ModuleType, lone_task: Task) -> None:
    def ordered(predictions: Tensor, y: Tensor) -> Tensor:
        assert not predictions.requires_grad
        return (predictions[:, 0] * torch.arange(len(y))).sum() + y[0, 0]

    users.ordered = ordered  # type: ignore[attr-defined]
    metric = Metric(trained("users:ordered", metric_better="lower"), lone_task.agreeing)
    scores, y = torch.tensor([[3.0], [1.0], [2.0]], requires_grad=True), torch.tensor([[7.0], [8.0], [9.0]])
    score = metric.score(metric.kept(scores, y), y, torch.tensor([30, 10, 20]))
    assert (score.name, score.value, score.total) == ("ordered", 1 * 0 + 2 * 1 + 3 * 2 + 8, 3)
    assert score.lower_is_better
    assert merit_of(score) == -score.value


def test_the_accuracy_of_classes_is_counted_where_they_are(lone_task: Task) -> None:
    metric = Metric(trained("accuracy", "cross_entropy"), lone_task.agreeing)
    scores, y = torch.tensor([[3.0, 1.0], [0.0, 1.0]]), torch.tensor([0, 0])
    kept = metric.kept(scores, y)
    assert kept.tolist() == [0, 1]
    assert metric.score(kept, y, torch.arange(2)) == Accuracy(1, 2)


def test_an_empty_split_has_no_examples(lone_task: Task) -> None:
    metric = Metric(trained("rmse"), lone_task.agreeing)
    metric.check(torch.empty(0, 1), lambda _: torch.arange(0))
    assert metric.score(torch.empty(0, 1), torch.empty(0, 1), torch.empty(0, dtype=torch.int64)).total == 0


@pytest.mark.parametrize(
    ("train", "y", "problem"),
    [
        (trained("rmse"), torch.full((3, 2), NAN), "rmse has no value on the val split: all of y is NaN"),
        (trained("roc_auc"), torch.tensor([[1.0], [NAN], [1.0]]), "all examples of it have the same label"),
        (trained("average_precision"), torch.tensor([2, 2, 2]), "all examples of it have the same label"),
        (trained("accuracy"), torch.ones(3, 2), "y has 2 columns; use f1_micro"),
        (LinkPredictionTrain(model="users:Net", metric="hits@3"), torch.ones(3), "all examples of it have the same"),
    ],
)
def test_a_split_without_a_value_is_named_before_the_training(train: Learning, y: Tensor, problem: str) -> None:
    with pytest.raises(TaskError, match=problem):
        Metric(train).check(y, lambda _: torch.arange(len(y)))


@pytest.mark.parametrize("loss", ["cross_entropy", "bce_with_logits", "mse"])
def test_outputs_that_have_no_order_are_refused_and_not_measured(loss: str, lone_task: Task) -> None:
    """Sorting puts NaN somewhere, and the largest of a row with NaN is one: every metric would have a value."""
    y = torch.tensor([0, 1, 0]) if loss == "cross_entropy" else torch.tensor([[0.0], [1.0], [0.0]])
    scores = torch.tensor([[0.0, 1.0], [1.0, NAN], [0.0, 1.0]])[:, : 2 if y.dim() == 1 else 1]
    scores[1, -1] = NAN
    metric = Metric(trained({"mse": "rmse"}.get(loss, "accuracy"), loss), lone_task.agreeing)
    with pytest.raises(TaskError, match="the model gives NaN for 1 of 3 examples in evaluation"):
        metric.kept(scores, y)
    if loss == "mse":
        with pytest.raises(TaskError, match="train.metric = rmse is inf: the model gives infinite numbers"):
            metric.score(torch.full((3, 1), math.inf), y, torch.arange(3))


def fails(predictions: Tensor, y: Tensor) -> float:
    raise KeyError("precision")


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (
            fails,
            r"users:metric fails on predictions \[4, 1\], y \[4, 1\]: KeyError: .* \(test_metrics.py, line \d+\)",
        ),
        (
            lambda predictions, y: NAN,
            r"users:metric \(test_metrics.py, line \d+\): it gives nan, where a finite number",
        ),
        (lambda predictions, y: predictions, r"it gives \[4, 1\], where one number is wanted"),
        (lambda predictions, y: None, "it gives NoneType, where one number is wanted"),
        (lambda predictions: 1.0, "takes 1 positional argument but 2 were given"),
        (3, "it is int, not a function"),
    ],
)
def test_a_wrong_metric_of_the_users_is_named_with_its_line(
    users: types.ModuleType, lone_task: Task, function: object, problem: str
) -> None:
    users.metric = function  # type: ignore[attr-defined]
    with pytest.raises(TaskError, match=problem):
        Metric(trained("users:metric"), lone_task.agreeing).score(torch.ones(4, 1), torch.ones(4, 1), torch.arange(4))
