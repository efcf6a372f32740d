"""The optimizer over a training: one of torch that the user's code makes, its learning rate, and a mean of its weights.

The state of an optimizer of the user's (`train.optimizer`) resumes bit for bit (`OwnOptimizer`). The learning rate is a
factor of `train.lr` (`Schedule`). The running mean of the weights (`train.ema`) is measured and saved instead of them.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from clusterctl.engine.graph.hashing import Purpose, stream
from clusterctl.engine.training.objective import merit_of
from clusterctl.engine.training.own.function import OwnFunction, shown
from clusterctl.engine.training.own.model import described
from clusterctl.engine.training.state import PartState, flattened, put
from clusterctl.shared.errors import Cause, TaskError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import nn

    from clusterctl.engine.training.objective import Score
    from clusterctl.shared.spec import LoopTrain


_LR = ("lr", "initial_lr")


class _StateValue(NamedTuple):
    """A value of the optimizer's state: a tensor like `like`, which is on no device, or a number of this `type`."""

    like: Tensor | None
    device: torch.device
    type: type

    def zeros(self) -> Tensor:
        if self.like is None:
            return torch.zeros(1, dtype=torch.float64)
        return torch.zeros(self.like.shape, dtype=self.like.dtype, device=self.device)


class OwnOptimizer:
    """The optimizer that the function `name` makes of the named parameters of `model`, which it trains in place.

    All ranks step alike, from the same gradients: before each step torch's generator gets the same seed on all. Its
    state is known from a trial step, which changes nothing.
    """

    def __init__(self, model: nn.Module, name: str, options: Mapping[str, object], seed: int, *, scaled: bool) -> None:
        """`scaled`: the learning rates change. Raises TaskError for anything but an optimizer of these parameters."""
        self._own, self._seed, self._steps = OwnFunction("train.optimizer", name), seed, 0
        named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        made = self._own({"parameters": named}, **options)
        if not isinstance(made, torch.optim.Optimizer):
            hint = "return one, such as torch.optim.RAdam(parameters, lr=1e-3)"
            raise self._own.wrong(f"it returned {shown(made)}, not a torch.optim.Optimizer", hint)
        self._optimizer = made
        self._parameters = [parameter for group in made.param_groups for parameter in group["params"]]
        known = {id(parameter) for _, parameter in named}
        if not {id(parameter) for parameter in self._parameters} <= known:
            hint = "use only the parameters that it is called with, not copies of them"
            raise self._own.wrong("its optimizer has parameters that are not of the model", hint)
        if scaled and not any("lr" in group for group in made.param_groups):
            hint = 'set train.schedule = "constant" and train.warmup = 0'
            raise self._own.wrong("its optimizer has no lr, which train.schedule and train.warmup scale", hint)
        mine = {id(parameter) for parameter in self._parameters}
        self.left_out = [name for name, parameter in named if id(parameter) not in mine]
        self._rates = [group.get("lr") for group in made.param_groups]
        self._rates = [rate.clone() if isinstance(rate, Tensor) else rate for rate in self._rates]
        self._kept = self._tried()

    def step(self, lr_scale: float = 1.0) -> None:
        """Update the parameters, with the learning rates scaled by `lr_scale`. Raises TaskError."""
        self._steps += 1
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            if isinstance(rate, Tensor):
                group["lr"].copy_(rate * lr_scale)
            elif rate is not None:
                group["lr"] = rate * lr_scale
        torch.manual_seed(stream(Purpose.DROPOUT, self._seed, self._steps))
        try:
            self._optimizer.step()
        except Exception as error:
            hint = "optimizers whose step needs a closure are not supported" if "closure" in str(error) else ""
            raise self._own.wrong(f"a step of its optimizer fails: {described(error)}", hint) from error

    def state(self) -> PartState:
        """The optimizer's state by parameter, and the numbers of its groups other than learning rates."""
        live = dict(self._values())
        if self._steps and live.keys() != self._kept.keys():
            other = ", ".join(sorted(live.keys() ^ self._kept.keys()))
            raise self._own.wrong(f"the state of its optimizer changes its form: {other}", "it cannot be resumed")
        tensors = {}
        for name, kept in self._kept.items():
            value = live[name] if name in live else kept.zeros()
            tensor = value if isinstance(value, Tensor) else torch.tensor([value], dtype=torch.float64)
            tensors[name] = flattened(tensor)
        return PartState({"steps": torch.tensor([self._steps]), **tensors})

    def load(self, state: PartState) -> None:
        self._steps = int(state.same["steps"])
        if not self._steps:
            return
        for name, kept in self._kept.items():
            value = kept.zeros()
            put(value, state.same[name])
            restored = value if kept.like is not None else kept.type(value.item())
            place, _, key = name.partition(".")
            number = int(place[1:])
            if place[0] == "g":
                self._optimizer.param_groups[number][key] = restored
            else:
                self._optimizer.state[self._parameters[number]][key] = restored

    def _values(self) -> Iterator[tuple[str, Tensor | float]]:
        """The current values by name, "p" of a parameter, "g" of a group."""
        for number, group in enumerate(self._optimizer.param_groups):
            for key, value in group.items():
                if key not in _LR and isinstance(value, bool | int | float):
                    yield f"g{number}.{key}", value
        for number, parameter in enumerate(self._parameters):
            for key, value in self._optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor | bool | int | float):
                    yield f"p{number}.{key}", value
                elif value is not None:
                    what = f"the state of its optimizer has {key}, a {shown(value)}"
                    raise self._own.wrong(what, "it cannot be resumed: only tensors and numbers can")

    def _tried(self) -> dict[str, _StateValue]:
        """What a step adds to the state: one with gradients of 0, which is then undone."""
        weights = [parameter.detach().clone() for parameter in self._parameters]
        groups = [
            {key: value for key, value in group.items() if key != "params"} for group in self._optimizer.param_groups
        ]
        generator = torch.get_rng_state()
        self.step()
        torch.set_rng_state(generator)
        kept = {}
        for name, value in self._values():
            like = torch.empty_like(value, device="meta") if isinstance(value, Tensor) else None
            device = value.device if isinstance(value, Tensor) else torch.device("cpu")
            kept[name] = _StateValue(like, device, type(value))
        self._optimizer.state.clear()
        for group, before in zip(self._optimizer.param_groups, groups, strict=True):
            for key in group.keys() - before.keys() - {"params"}:
                del group[key]
            group.update(before)
        with torch.no_grad():
            for parameter, weight in zip(self._parameters, weights, strict=True):
                parameter.copy_(weight)
        self._steps = 0
        return kept


class Schedule:
    """The factor at each step of epochs of `steps` steps. With "plateau", `offer` lowers it."""

    def __init__(self, train: LoopTrain, steps: int) -> None:
        self._train, self._steps = train, steps
        self._best, self._waited, self._changes = -math.inf, 0, 0
        self.waits_for_scores = train.schedule == "plateau"

    def factor(self, epoch: int, step: int) -> float:
        """The factor at `step`, counted from 0, of `epoch`, counted from 1."""
        train = self._train
        place = (epoch - 1) * self._steps + step
        factor = lr_scale(train.schedule, train.warmup, place, train.epochs * self._steps)
        changes = (epoch - 1) // train.schedule_every if train.schedule == "step" else self._changes
        return factor * train.schedule_factor**changes

    def offer(self, score: Score) -> None:
        """Record a validation score. Raises TaskError if there is none."""
        if score.total == 0:
            message = 'the validation split is empty, but train.schedule = "plateau" needs it'
            raise TaskError(message, 'set train.schedule = "step"', Cause.DATA)
        if merit_of(score) > self._best:
            self._best, self._waited = merit_of(score), 0
            return
        self._waited += 1
        if self._waited == self._train.schedule_every:
            self._waited, self._changes = 0, self._changes + 1

    def state(self) -> PartState:
        return PartState({"noted": torch.tensor([self._best, self._waited, self._changes], dtype=torch.float64)})

    def load(self, state: PartState) -> None:
        self._best, waited, changes = state.same["noted"].tolist()
        self._waited, self._changes = int(waited), int(changes)


def lr_scale(schedule: str, warmup: float, step: int, steps: int) -> float:
    """The factor of the learning rate at `step`, counted from 0, of `steps`.

    It rises linearly to 1 over the fraction `warmup` of the steps. Then it stays constant, or falls along half a cosine
    ("cosine") that would reach 0 one step after the last.
    """
    rising = int(warmup * steps + 0.5)
    if step < rising:
        return (step + 1) / rising
    if schedule != "cosine":
        return 1.0
    first = max(0, rising - 1)  # the step with scale 1
    return (1 + math.cos(math.pi * (step - first) / (steps - first))) / 2


class RunningMean:
    """An exponential moving average of `values`.

    The first steps count more: after step t the decay is (1 + t) / (10 + t), until that reaches `decay`. Otherwise a
    short training would be measured by its initial weights.
    """

    def __init__(self, values: Tensor, decay: float) -> None:
        self._values, self._decay, self._steps = values, decay, 0
        self.mean = values.clone()

    def update(self) -> None:
        """Add the values after a step."""
        self._steps += 1
        decay = min(self._decay, (1 + self._steps) / (10 + self._steps))
        self.mean.lerp_(self._values, 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The values are their mean within this context."""
        kept = self._values.clone()
        self._values.copy_(self.mean)
        yield
        self._values.copy_(kept)

    def state(self) -> PartState:
        return PartState({"mean": self.mean, "steps": torch.tensor([self._steps])})

    def load(self, state: PartState) -> None:
        self.mean.copy_(state.same["mean"])
        self._steps = int(state.same["steps"])
