"""Optimizers against torch's own, users' optimizers and their state, schedules, and the running mean of the weights."""

from __future__ import annotations

import copy
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clusterctl.engine.training.flat import FlatModel
from clusterctl.engine.training.learner import optimizer_of
from clusterctl.engine.training.metrics import Measured
from clusterctl.engine.training.optimizer import RunningMean, Schedule
from clusterctl.shared.errors import TaskError
from clusterctl.shared.spec import NodeClassificationTrain

STEPS = 6


@pytest.fixture(autouse=True)
def users() -> Iterator[types.ModuleType]:
    """The user's module."""
    module = types.ModuleType("users")
    sys.modules["users"] = module
    yield module
    del sys.modules["users"]


def train(optimizer: str, **others: Any) -> NodeClassificationTrain:
    return NodeClassificationTrain(model="users:Net", optimizer=optimizer, **others)


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def loss(model: nn.Module, step: int) -> Tensor:
    x = torch.randn(8, 5, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
    return model(x).square().sum() + model(x).sum()  # type: ignore[no-any-return]


class Trained:
    """A model, and the optimizer that these settings make."""

    def __init__(self, settings: NodeClassificationTrain) -> None:
        self.model = net()
        self.flat = FlatModel(self.model)
        self.optimizer = optimizer_of(self.model, self.flat, settings)

    def go(self, steps: range) -> Tensor:
        for step in steps:
            self.flat.differentiate(loss(self.model, step))
            self.optimizer.step(1 / (1 + step))
        return self.flat.values.clone()


def theirs(make: Callable[[Any], torch.optim.Optimizer]) -> Tensor:
    """The weights after training with torch's optimizer, at the same learning rates."""
    model = net()
    optimizer = make([*model.named_parameters()])
    rates = [group["lr"] for group in optimizer.param_groups]
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(model, step).backward()  # type: ignore[no-untyped-call]
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate / (1 + step)
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def kept(trained: Trained) -> Any:
    return copy.deepcopy(trained.optimizer.state())


BUILT_IN: list[tuple[str, dict[str, Any], Callable[[Any], torch.optim.Optimizer]]] = [
    ("adam", {}, lambda named: torch.optim.Adam([p for _, p in named], 0.01, weight_decay=0.1)),
    (
        "adam",
        {"beta1": 0.5, "beta2": 0.9, "eps": 0.01},
        lambda named: torch.optim.Adam([p for _, p in named], 0.01, (0.5, 0.9), 0.01, 0.1),
    ),
    (
        "adamw",
        {"beta2": 0.98},
        lambda named: torch.optim.AdamW([p for _, p in named], 0.01, (0.9, 0.98), weight_decay=0.1),
    ),
    ("sgd", {}, lambda named: torch.optim.SGD([p for _, p in named], 0.01, weight_decay=0.1)),
    ("sgd", {"momentum": 0.9}, lambda named: torch.optim.SGD([p for _, p in named], 0.01, 0.9, weight_decay=0.1)),
    (
        "sgd",
        {"momentum": 0.9, "nesterov": True},
        lambda named: torch.optim.SGD([p for _, p in named], 0.01, 0.9, weight_decay=0.1, nesterov=True),
    ),
]


@pytest.mark.parametrize(("name", "options", "make"), BUILT_IN)
def test_ours_are_torchs_and_resume_bit_for_bit(
    name: str, options: dict[str, Any], make: Callable[[Any], torch.optim.Optimizer]
) -> None:
    settings = train(name, optimizer_options=options, weight_decay=0.1)
    found = resumed(settings)
    torch.testing.assert_close(found, theirs(make), rtol=0, atol=1e-12)


def resumed(settings: NodeClassificationTrain) -> Tensor:
    """The weights of a training; that of one that is interrupted and restored is the same."""
    found = Trained(settings).go(range(STEPS))
    first, second = Trained(settings), Trained(settings)
    second.flat.values.copy_(first.go(range(3)))
    second.optimizer.load(kept(first))
    assert torch.equal(second.go(range(3, STEPS)), found)
    return found


OWN: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "RAdam": lambda named: torch.optim.RAdam([p for _, p in named], 0.01, weight_decay=0.1),
    "NAdam": lambda named: torch.optim.NAdam([p for _, p in named], 0.01),
    "Adagrad": lambda named: torch.optim.Adagrad([p for _, p in named], 0.01),
    "amsgrad": lambda named: torch.optim.AdamW([p for _, p in named], 0.01, amsgrad=True),
    "groups": lambda named: torch.optim.SGD(
        [{"params": [named[0][1], named[2][1]], "lr": 0.1, "momentum": 0.5}, {"params": [named[1][1], named[3][1]]}],
        lr=0.01,
    ),
}


@pytest.mark.parametrize("name", OWN)
def test_an_optimizer_of_the_users_is_torchs_and_resumes_bit_for_bit(users: types.ModuleType, name: str) -> None:
    users.make = OWN[name]  # type: ignore[attr-defined]
    torch.testing.assert_close(resumed(train("users:make")), theirs(OWN[name]), rtol=0, atol=1e-12)


def test_its_options_are_keyword_arguments_and_what_it_leaves_out_is_known(users: types.ModuleType) -> None:
    users.make = lambda named, lr: torch.optim.SGD([named[0][1]], lr=lr)  # type: ignore[attr-defined]
    trained = Trained(train("users:make", optimizer_options={"lr": 0.5}))
    assert trained.optimizer.left_out == ["0.bias", "2.weight", "2.bias"]  # type: ignore[union-attr]
    before = trained.flat.values.clone()
    trained.flat.differentiate(loss(trained.model, 0))
    trained.optimizer.step()
    torch.testing.assert_close(trained.flat.values[:20], before[:20] - 0.5 * trained.flat.gradients[:20])
    assert torch.equal(trained.flat.values[20:], before[20:])


class Counting(torch.optim.SGD):
    """Has numbers in its state and its groups, and draws from torch's generator."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
            for parameter in group["params"]:
                self.state[parameter]["seen"] = self.state[parameter].get("seen", 0.0) + 0.5
                parameter.data.add_(torch.randn_like(parameter), alpha=0.01 * group["count"])
        return super().step(closure)


def test_numbers_and_random_draws_of_an_optimizer_are_the_same_after_a_resume(users: types.ModuleType) -> None:
    users.make = lambda named: Counting([p for _, p in named], lr=0.01, momentum=0.9)  # type: ignore[attr-defined]
    resumed(train("users:make"))


class Listing(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["history"] = [1, 2]
        return super().step(closure)


def fails(parameters: Any) -> Any:
    return parameters["weight"]


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (fails, r"train.optimizer = users:make fails on parameters list: .*\(test_optimizers.py, line \d+\)"),
        (lambda parameters: None, r"\(test_optimizers.py, line \d+\): it returned NoneType, not a torch.optim"),
        (lambda parameters: torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1), "that are not of the model"),
        (lambda parameters: torch.optim.LBFGS([p for _, p in parameters]), "a step of its optimizer fails: .*closure"),
        (lambda parameters: Listing([p for _, p in parameters], 0.1), "has history, a list"),
        (lambda parameters: torch.optim.SGD([], 0.1), "fails on .*: optimizer got an empty parameter list"),
        (lambda parameters, lr: None, "missing 1 required positional argument: 'lr'"),
    ],
)
def test_a_wrong_optimizer_of_the_users_is_named_with_its_line(
    users: types.ModuleType, make: Callable[..., Any], problem: str
) -> None:
    users.make = make  # type: ignore[attr-defined]
    with pytest.raises(TaskError, match=problem):
        Trained(train("users:make"))


# Schedules, and the mean of the weights.


def score(value: float, *, lower: bool = False) -> Measured:
    return Measured("rmse", value, 1, lower)


def test_steps_change_the_rate_every_few_epochs_after_the_warm_up() -> None:
    settings = train("adam", epochs=6, schedule="step", schedule_every=2, schedule_factor=0.5, warmup=0.25)
    schedule = Schedule(settings, 2)
    factors = [schedule.factor(epoch, step) for epoch in range(1, 7) for step in range(2)]
    assert factors == pytest.approx([1 / 3, 2 / 3, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25])


@pytest.mark.parametrize("lower", [False, True])
def test_on_a_plateau_the_rate_changes_after_so_many_scores_that_are_no_better(lower: bool) -> None:
    settings = train("adam", schedule="plateau", schedule_every=2, schedule_factor=0.1)
    schedule, copied = Schedule(settings, 1), Schedule(settings, 1)
    factors = []
    for value in (5, 6, 6, 5, 7, 7, 1, 7, 8, 8, 8):
        schedule.offer(score(-value if lower else value, lower=lower))
        copied.load(schedule.state())
        factors.append(round(copied.factor(1, 0), 6))
    assert factors == [1, 1, 1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.01, 0.01, 0.001]
    with pytest.raises(TaskError, match="the validation split is empty"):
        schedule.offer(Measured("rmse", 0.0, 0, lower_is_better=True))


def test_the_mean_of_the_weights_forgets_the_first_ones_sooner_and_is_in_place_only_for_a_while() -> None:
    values = torch.tensor([1.0])
    mean, expected = RunningMean(values, 0.5), 1.0
    for step in range(1, 20):
        values.fill_(step)
        mean.update()
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * step
    assert float(mean.mean) == pytest.approx(expected)
    with mean.in_place():
        assert values == mean.mean
    assert values == 19
    other = RunningMean(torch.tensor([19.0]), 0.5)
    other.load(mean.state())
    other.update()
    mean.update()
    assert other.mean == mean.mean
