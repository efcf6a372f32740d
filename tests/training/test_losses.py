"""Losses against torch's own, over any division into ranks, and the errors for wrong ones."""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from clusterctl.engine.training.losses import Loss
from clusterctl.shared.errors import TaskError
from clusterctl.shared.spec import NodeClassificationTrain

NAN = math.nan


def loss_of(y: Tensor, classes: int = 3, name: str = "cross_entropy", **others: Any) -> Loss:
    train = NodeClassificationTrain(model="users:Net", loss=name, **others)
    return Loss(train, y, torch.arange(len(y)), classes)


def in_parts(loss: Loss, scores: Tensor, y: Tensor, ranks: int) -> Tensor:
    """The sum over ranks that have unequal shares, each with an example of padding."""
    total = loss.total(y)
    parts = []
    for rank in range(ranks):
        own = torch.arange(rank * rank, len(y) if rank == ranks - 1 else (rank + 1) ** 2)
        padded, weights = torch.cat([own, own.new_tensor([3])]), torch.cat([torch.ones(len(own)), torch.zeros(1)])
        parts.append(loss(scores[padded], y[padded], weights, total))
    return torch.stack(parts).sum()


def same_for_any_ranks(loss: Loss, scores: Tensor, y: Tensor, expected: Tensor) -> None:
    """The value and the gradients are those of torch, on 1 to 4 ranks."""
    (wanted,) = torch.autograd.grad(expected, scores, retain_graph=True)
    for ranks in range(1, 5):
        found = in_parts(loss, scores, y, ranks)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(torch.autograd.grad(found, scores)[0], wanted, rtol=0, atol=1e-12)


@pytest.fixture
def scores() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(20, 3, generator=generator, dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weights", [(), (1.0, 0.5, 3.0), "balanced"])
def test_cross_entropy_is_torchs_with_weights_and_smoothing(scores: Tensor, weights: Any, smoothing: float) -> None:
    y = torch.arange(20) % 7 % 3
    counts = torch.bincount(y).double()
    given = 20 / (3 * counts) if weights == "balanced" else torch.tensor(weights).double() if weights else None
    expected = F.cross_entropy(scores, y, given, label_smoothing=smoothing)
    same_for_any_ranks(loss_of(y, class_weights=weights, label_smoothing=smoothing), scores, y, expected)


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("mse", F.mse_loss),
        ("l1", F.l1_loss),
        ("huber", F.huber_loss),
        ("bce_with_logits", F.binary_cross_entropy_with_logits),
    ],
)
@pytest.mark.parametrize("missing", [False, True])
def test_losses_of_numbers_are_torchs_over_what_is_known(
    scores: Tensor, name: str, theirs: Callable[[Tensor, Tensor], Tensor], missing: bool
) -> None:
    y = (torch.randn(20, 3, dtype=torch.float64) > 0).double()
    if missing:
        y[torch.rand(20, 3) < 0.4] = NAN
        y[:4] = NAN  # all that a rank has
    known = ~y.isnan()
    same_for_any_ranks(loss_of(y, name=name), scores, y, theirs(scores[known], y[known]))


def test_a_step_in_which_nothing_is_known_has_no_loss_and_no_gradient(scores: Tensor) -> None:
    y = torch.full((20, 3), NAN)
    loss = loss_of(y, name="mse")(scores, y, torch.ones(20), loss_of(y, name="mse").total(y))
    assert loss == 0
    assert not torch.autograd.grad(loss, scores)[0].any()


# Functions of the user's.


@pytest.fixture(autouse=True)
def users() -> Iterator[types.ModuleType]:
    """The user's module."""
    module = types.ModuleType("users")
    sys.modules["users"] = module
    yield module
    del sys.modules["users"]


def own(users: types.ModuleType, function: Callable[..., Any], y: Tensor) -> Loss:
    users.loss = function  # type: ignore[attr-defined]
    return loss_of(y, name="users:loss", metric="mae")


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_mean_over_a_ranks_examples_weighs_as_much_as_they_do(
    users: types.ModuleType, scores: Tensor, reduction: str
) -> None:
    y = torch.arange(20) % 3
    seen = []

    def function(scores: Tensor, y: Tensor) -> Tensor:
        seen.append(len(y))
        return F.cross_entropy(scores, y, reduction=reduction)

    same_for_any_ranks(own(users, function, y), scores, y, F.cross_entropy(scores, y))
    assert 0 not in seen  # padding is not shown to it


def test_a_rank_with_padding_alone_has_no_part(users: types.ModuleType, scores: Tensor) -> None:
    y = torch.arange(20) % 3
    part = own(users, F.cross_entropy, y)(scores, y, torch.zeros(20), 7)
    assert part == 0
    assert not torch.autograd.grad(part, scores)[0].any()


def fails(scores: Tensor, y: Tensor) -> Tensor:
    return scores @ y


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (fails, r"train.loss = users:loss fails on scores \[20, 3\], y \[20, 1\]: .*\(test_losses.py, line \d+\)"),
        (
            lambda scores, y: 0.5,
            r"users:loss \(test_losses.py, line \d+\): it gives float, where a loss for each of 20",
        ),
        (lambda scores, y: (scores - y).square(), r"it gives a tensor \[20, 3\], where a loss for each of 20 examples"),
        (lambda scores, y: (scores - y).square().sum(0), r"it gives a tensor \[3\]"),
        (lambda scores, y: (scores.detach() - y).square().mean(), "its result has no gradient"),
        (lambda scores, y: (scores - y).mean() / 0, "it gives NaN or infinity for finite scores"),
        (lambda scores: scores.mean(), "takes 1 positional argument but 2 were given"),
        (lambda scores, y: None, "it gives NoneType"),
    ],
)
def test_a_wrong_loss_of_the_users_is_named_with_its_line(
    users: types.ModuleType, scores: Tensor, function: Callable[..., Any], problem: str
) -> None:
    y = torch.randn(20, 1, dtype=torch.float64)
    loss = own(users, function, y)
    with pytest.raises(TaskError, match=problem):
        loss(scores, y, torch.ones(20), loss.total(y))


@pytest.mark.parametrize(
    ("y", "settings", "problem"),
    [
        (torch.tensor([[0.0], [0.5]]), {"name": "bce_with_logits"}, "y has values other than 0 and 1"),
        (torch.tensor([0, 1, 2]), {"name": "mse"}, "is for numbers, and y of this data are classes"),
        (torch.tensor([0, 1, 2]), {"class_weights": (1.0, 2.0)}, "has 2 weights, and the data has 3 classes"),
        (torch.zeros(2, 1), {"name": "users:nothing", "metric": "mae"}, "users has no nothing"),
        (torch.zeros(2, 1), {"name": "nowhere:loss", "metric": "mae"}, "there is no module nowhere"),
    ],
)
def test_answers_and_settings_that_do_not_suit_a_loss_are_named(
    y: Tensor, settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises(TaskError, match=problem):
        loss_of(y, **settings)
