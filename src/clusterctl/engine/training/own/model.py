"""Finds, builds, calls and trains a model from the user's code, with error messages that name the layer.

`OwnModel` is its forward pass. `OwnTraining` is what it needs in training: equal buffers on all ranks, a report of
parameters that no loss depends on, and the check that losses are finite.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import traceback
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parameter import is_lazy

from clusterctl.engine.graph.dropout import draw_attention_by_edge, rows_of_a_hop
from clusterctl.engine.graph.hashing import Purpose, stream
from clusterctl.engine.training.state import PartState, flattened, put, untrained
from clusterctl.shared.errors import Cause, TaskError
from clusterctl.shared.spec import BUILT_IN
from clusterctl.shared.spec.records import InvalidRecord, from_record, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor

    from clusterctl.engine.graph.hops import Hop
    from clusterctl.engine.task.task import Task
    from clusterctl.shared.spec import GatOptions


def found(name: str, what: str) -> Any:
    """Import `name`, "module:attribute", from the code of the run; `what` is the key it comes from, for messages."""
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.partition(".")[0] and error.name != module_name:
            raise  # the module itself imports something that is missing
        hint = f"expected {module_name.replace('.', '/')}.py in the folder that the job's `code` key points to"
        raise TaskError(f"{what} = {name}: there is no module {module_name}", hint, Cause.USER) from None
    if not hasattr(module, attribute):
        near = nearest(attribute, vars(module))
        hint = f"did you mean {module_name}:{near}?" if near else f"see {getattr(module, '__file__', module_name)}"
        raise TaskError(f"{what} = {name}: {module_name} has no {attribute}", hint, Cause.USER)
    return getattr(module, attribute)


def options_of(name: str, options: Mapping[str, Any]) -> GatOptions:
    """The options of the built-in model with this name. Raises TaskError."""
    return chosen(BUILT_IN[name], name, options)  # type: ignore[no-any-return]


def built(
    name: str,
    sizes: Mapping[str, Any],
    options: Mapping[str, Any],
    layers: int | None = None,
    *,
    known: Mapping[str, Any] | None = None,
) -> nn.Module:
    """The user's model `name` for these numbers of features and, if any, classes. Raises TaskError.

    They go to the arguments with a usual name, such as in_channels and num_classes, otherwise to the first ones
    unless all have defaults, and `layers` to num_layers. The model gets `options` as an instance of its dataclass
    `Options`, if it has one, otherwise as keyword arguments. It may have layers whose sizes are unknown before the
    first forward. For several types of nodes, the features are numbers by type, for models that name them, and
    arguments get what is `known` by their names, such as metadata.
    """
    make: Callable[..., Any] = found(name, "train.model")
    kind = getattr(make, "Options", None)
    try:
        if kind is not None and dataclasses.is_dataclass(kind):
            model = make(*sizes.values(), chosen(kind, f"{name}.Options", options), **_named(make, known or {}))
        else:
            if known is not None:
                options = {**_named(make, known), **options}
                if not _named(make, dict.fromkeys(_USUAL_NAMES["features"])):
                    sizes = {what: size for what, size in sizes.items() if what != "features"}
            positional, keywords = arguments_of(make, name, sizes, options, layers)
            model = make(*positional, **keywords)
    except TaskError:
        raise
    except Exception as error:
        hint = f"it is called with the number of {' and of '.join(sizes)}, and train.options as keyword arguments"
        raise TaskError(f"train.model = {name} cannot be made: {described(error)}", hint, Cause.USER) from error
    if not isinstance(model, nn.Module):
        raise TaskError(
            f"train.model = {name} returned {type(model).__name__}, not a torch.nn.Module", cause=Cause.USER
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise TaskError(f"train.model = {name} has nothing to train: no parameters", cause=Cause.USER)
    return model


def _named(make: Callable[..., Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """What is known, of the arguments of `make`."""
    try:
        return {name: known[name] for name in inspect.signature(make).parameters if name in known}
    except ValueError:  # such as a class written in C
        return {}


def check_not_lazy(model: nn.Module, name: str, hint: str) -> None:
    """Raise TaskError, with this hint, if the model has layers whose sizes are unknown."""
    tensors = chain(model.named_parameters(), model.named_buffers())
    if lazy := [part for part, tensor in tensors if is_lazy(tensor)]:
        what = f"train.model = {name} has lazy layers, whose sizes are unknown before the first step: {', '.join(lazy)}"
        raise TaskError(what, hint, Cause.USER)


_USUAL_NAMES = {
    "features": (
        *("in_channels", "num_features", "num_node_features", "in_feats", "in_features", "in_dim", "input_dim"),
        *("in_size", "input_size", "num_input_features", "n_features", "features", "nfeat"),
    ),
    "classes": (
        *("out_channels", "num_classes", "out_feats", "out_features", "out_dim", "output_dim", "out_size"),
        *("output_size", "num_outputs", "n_classes", "classes", "nclass"),
    ),
}


def arguments_of(
    make: Callable[..., Any], name: str, sizes: Mapping[str, Any], options: Mapping[str, Any], layers: int | None
) -> tuple[list[Any], dict[str, Any]]:
    """What to call `make` with, by position and by name. Raises TaskError if it takes something else."""
    positional: list[Any]
    try:
        parameters = dict(inspect.signature(make).parameters)
    except ValueError:  # such as a class written in C
        return [*sizes.values()], dict(options)
    usual = {
        size: next((one for one in _USUAL_NAMES[size] if one in parameters and one not in options), "")
        for size in sizes
    }
    takes_more = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    if unknown := [] if takes_more else [option for option in options if option not in parameters]:
        near = nearest(unknown[0], parameters)
        hint = f"did you mean {near}?" if near else f"it takes {', '.join(parameters) or 'no arguments'}"
        raise TaskError(f"train.options.{unknown[0]}: {name} has no such argument", hint, Cause.USER)
    named = {argument: sizes[size] for size, argument in usual.items() if argument}
    keywords: dict[str, Any] = {**options, **named}
    if layers is not None and "num_layers" in parameters:
        keywords.setdefault("num_layers", layers)
    required = [one.name for one in parameters.values() if one.default is one.empty and one.kind not in _REST]
    missing = [one for one in required if one not in keywords]
    takes_any = any(one.kind is one.VAR_POSITIONAL for one in parameters.values())
    if not missing and (named or not takes_any):
        return [], keywords
    unnamed = [size for size, argument in usual.items() if not argument]
    if not named:  # the first arguments
        first = [one.name for one in parameters.values() if one.kind is not one.VAR_KEYWORD][: len(sizes)]
        positional, missing = [*sizes.values()], [one for one in missing if one not in first]
    elif len(missing) == len(unnamed):  # the only arguments that are left
        keywords |= dict(zip(missing, (sizes[size] for size in unnamed), strict=True))
        positional, missing = [], []
    else:
        positional = []
        if missing and unnamed:
            hint = f"name the argument for the number of {unnamed[0]} {' or '.join(_USUAL_NAMES[unnamed[0]][:2])}, "
            taken = f"{name} takes {', '.join(parameters)}"
            what = f"{taken}: it is unknown which is the number of {unnamed[0]}"
            raise TaskError(what, f"{hint}and set the others in train.options", Cause.USER)
    if missing:
        settings = ", ".join(f"train.options.{one}" for one in missing)
        raise TaskError(f"train.model = {name} needs {', '.join(missing)}", f"set {settings}", Cause.USER)
    return positional, keywords


_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def chosen(kind: Any, name: str, options: Mapping[str, Any]) -> Any:
    """The `options` as an instance of the dataclass `kind`."""
    try:
        return from_record(kind, dict(options))
    except InvalidRecord as error:
        lines = "; ".join(f"train.options.{problem}" for problem in error.problems)
        keys = ", ".join(field.name for field in dataclasses.fields(kind))
        raise TaskError(lines, f"the keys of {name} are {keys}", Cause.USER) from None


def described(error: Exception) -> str:
    """The message of an error in the user's code, the exception's name if that says more, and its last line there."""
    ours, line = str(Path(__file__).parents[2]), ""
    for frame in traceback.extract_tb(error.__traceback__):
        name = Path(frame.filename).name
        of_packages = "site-packages" in frame.filename or name.startswith("torch_geometric.")  # which PyG generates
        if not frame.filename.startswith((ours, "<")) and not of_packages:
            line = f" ({name}, line {frame.lineno})"
    plain = isinstance(error, (RuntimeError, ValueError, TypeError)) and str(error)
    return (str(error) if plain else f"{type(error).__name__}: {error}".removesuffix(": ")) + line


@contextmanager
def undisturbed(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Within this context, the model is in evaluation; afterwards it and torch's generators are as before."""
    training = {part: part.training for part in model.modules()}
    model.eval()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        for part, was in training.items():
            part.training = was


def relative_difference(one: Tensor, other: Tensor) -> float:
    """The largest difference, as a part of the largest value."""
    most = max(float(one.abs().max()), float(other.abs().max()))
    return float((one - other).abs().max()) / most if most else 0.0


def broken_parameter(model: nn.Module) -> str:
    """The first parameter with a NaN or infinity, in words; empty if there is none."""
    broken = (name for name, parameter in model.named_parameters() if not parameter.isfinite().all())
    return next((f"the parameter {name}" for name in broken), "")


def check_has_gradient(outputs: Tensor, model: nn.Module, what: str) -> None:
    """Raise TaskError if a model in training is cut off from its outputs; `what` says what gives them."""
    if torch.is_grad_enabled() and model.training and not outputs.requires_grad:
        hint = "leave out detach(), .data, torch.no_grad() and conversions to numpy"
        raise TaskError(f"{what} without a gradient", hint, Cause.USER)


class OwnModel:
    """Calls a model layer by layer if it has `layer(i, hop, x)`, otherwise as a whole with `forward(hops, x)`.

    Without `classes`, the output may have any width.
    """

    def __init__(self, model: nn.Module, name: str, classes: int | None, method: str = "forward") -> None:
        """`method` is called instead of `forward` if it is another."""
        self.model, self.name, self.classes, self.method = model, name, classes, method
        draw_attention_by_edge(model)
        self.by_layer = hasattr(model, "layer")
        self.call: Callable[..., Any] = model if method == "forward" else getattr(model, method)

    def outputs(self, hops: Sequence[Hop], x: Tensor) -> Tensor:
        """The scores of the last hop's targets [targets, classes]. Raises TaskError if they have another shape."""
        if not self.by_layer:
            try:
                rows = self.call(list(hops), x)
            except Exception as error:
                message = f"{self.name}: {self.method} fails on {len(hops)} hops, x {[*x.shape]}: {described(error)}"
                raise TaskError(message, cause=Cause.USER) from error
            return self._shaped(rows, (hops[-1].targets, self.classes), self.method)
        for number, hop in enumerate(hops):
            x = self.layer(number, hop, x, last=number == len(hops) - 1)
        return x

    def layer(self, number: int, hop: Hop, x: Tensor, *, last: bool) -> Tensor:
        """The new rows of the hop's targets. Raises TaskError if the number of rows is wrong."""
        try:
            with rows_of_a_hop(hop):
                rows = self.model.layer(number, hop, x)  # type: ignore[operator]
        except Exception as error:
            shapes = f"x {[*x.shape]}, {hop.targets} targets, {hop.edge_index.size(1)} edges"
            message = f"{self.name}: layer {number} fails on {shapes}: {described(error)}"
            raise TaskError(message, cause=Cause.USER) from error
        return self._shaped(rows, (hop.targets, self.classes if last else None), f"layer {number}")

    def _shaped(self, rows: Any, wanted: tuple[int, int | None], what: str) -> Tensor:
        shape = tuple(rows.shape) if isinstance(rows, torch.Tensor) else None
        if shape is None or len(shape) != 2 or shape[0] != wanted[0] or wanted[1] not in (None, shape[1]):
            columns = "any number of columns" if wanted[1] is None else f"{wanted[1]} columns, one for each class"
            given = type(rows).__name__ if shape is None else f"a tensor {[*shape]}"
            message = f"{self.name}: {what} gives {given}, where a row for each of {wanted[0]} targets is wanted"
            raise TaskError(message, f"with {columns}", Cause.USER)
        return rows  # type: ignore[no-any-return]

    @torch.no_grad()
    def where_it_breaks(self, hops: Sequence[Hop], x: Tensor) -> str:
        """The first part of the model with a NaN or infinity; empty if it is the data."""
        if not x.isfinite().all():
            return ""
        if broken := broken_parameter(self.model):
            return broken
        if self.by_layer:
            for number, hop in enumerate(hops):
                x = self.layer(number, hop, x, last=number == len(hops) - 1)
                if not x.isfinite().all():
                    return f"layer {number}"
        return "forward"


# Training support for a user's model: ranks agree on its buffers, and unused parameters are reported once.


class OwnTraining:
    """A model in training; `name` is used in messages."""

    def __init__(self, model: nn.Module, name: str, task: Task) -> None:
        self._model, self._name, self._rank, self._group = model, name, task.place.rank, task.agreeing
        self._unused: _UnusedParameters | None = _UnusedParameters(model)
        self._has_stepped, self._has_agreed = False, True
        self._agreed = {name: _Seen(tensor) for name, tensor in untrained(model).items()}
        self._unversioned: set[str] = set()  # changed through `.data`, which the version of a tensor does not count

    def begin_step(self, *key: int) -> None:
        """Call before each step's forward, with a unique `key`. A collective."""
        if self._unused is not None and self._has_stepped:
            names = self._unused.names()
            if names and self._rank == 0:
                print(f"{self._name}: no loss depends on {', '.join(names)}")
        self.agree_on_buffers(thoroughly=self._unused is not None)
        if self._has_stepped:
            self._unused = None
        # The model may use torch's own generator: its draws must be the same after a resume.
        torch.manual_seed(stream(Purpose.DROPOUT, *key, self._rank))
        self._has_stepped, self._has_agreed = True, False

    @torch.no_grad()
    def agree_on_buffers(self, *, thoroughly: bool = True) -> None:
        """Average the buffers that a rank updated from its own seeds in a step. Repeated calls do nothing.

        Constant ones cost nothing; `thoroughly` compares their content. Do not call it within a step: the backward
        needs the original buffers. A collective if there are buffers.
        """
        if self._has_agreed:
            return
        self._has_agreed = True
        if dist.get_world_size() == 1:
            return
        tensors = {name: tensor for name, tensor in untrained(self._model).items() if tensor.is_floating_point()}
        if not tensors:
            return
        if thoroughly:
            seen = self._agreed
            same = [name for name, tensor in tensors.items() if seen[name].is_latest(tensor)]
            self._unversioned |= {name for name in same if seen[name].differs(tensors[name])}
        changed = [name in self._unversioned or not self._agreed[name].is_latest(tensors[name]) for name in tensors]
        flags = torch.tensor(changed, dtype=torch.uint8)
        dist.all_reduce(flags, dist.ReduceOp.MAX, group=self._group)
        by_dtype: dict[torch.dtype, dict[str, Tensor]] = {}  # in the order of the model, on every rank
        for (name, tensor), flag in zip(tensors.items(), flags.tolist(), strict=True):
            if flag:
                by_dtype.setdefault(tensor.dtype, {})[name] = tensor
        for group in by_dtype.values():  # a model has dozens of small buffers, and each collective takes its time
            whole = torch.cat([tensor.reshape(-1) for tensor in group.values()])
            dist.all_reduce(whole)
            means = torch.split(whole / dist.get_world_size(), [tensor.numel() for tensor in group.values()])
            for (name, tensor), mean in zip(group.items(), means, strict=True):
                tensor.copy_(mean.view(tensor.shape))
                self._agreed[name] = _Seen(tensor)

    def state(self) -> PartState:
        """The buffers, such as the statistics of a BatchNorm. A collective after a step."""
        self.agree_on_buffers()
        tensors = untrained(self._model)
        frozen = {name for name, parameter in self._model.named_parameters() if name in tensors}
        return PartState({name: flattened(tensor) for name, tensor in tensors.items()}, optional=frozen)

    def load(self, state: PartState) -> None:
        for name, tensor in untrained(self._model).items():
            if name in state.same:
                put(tensor, state.same[name])
                self._agreed[name] = _Seen(tensor)

    def check_finite(self, loss: Tensor, where: Callable[[], str]) -> None:
        """Raise TaskError if the loss of a step is not finite, except on a GPU, where looking would synchronize.

        `where` returns the part of the model that caused it; empty: the data.
        """
        if loss.device.type != "cpu" or loss.isfinite():
            return
        if not (place := where()):
            message = "the loss is not finite: the features x of the data have NaN or infinity"
            raise TaskError(message, "fill them where the data is made, or leave those nodes out", Cause.DATA)
        message = f"the loss is not finite: {place} of {self._name} gives NaN or infinity"
        raise TaskError(message, "lower train.lr, or set train.clip_norm = 1", Cause.USER)


class _Seen:
    """A tensor at one moment. PyTorch counts the writes to it, under a private name."""

    def __init__(self, tensor: Tensor) -> None:
        self._writes, self._content = (tensor.data_ptr(), tensor._version), tensor.clone()  # noqa: SLF001

    def is_latest(self, tensor: Tensor) -> bool:
        return (tensor.data_ptr(), tensor._version) == self._writes  # noqa: SLF001

    def differs(self, tensor: Tensor) -> bool:
        return not torch.equal(tensor, self._content)


class _UnusedParameters:
    """Records the parameters without a gradient; call `names` once, after the first backward."""

    def __init__(self, model: nn.Module) -> None:
        self._left = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: self._left.discard(name))  # type: ignore[no-untyped-call]
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        ]

    def names(self) -> list[str]:
        for hook in self._hooks:
            hook.remove()
        return sorted(self._left)
