"""Models as PyG's users write them: `forward(x, edge_index)`, with what its signature names, or `forward(data)`."""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from clusterctl.engine.graph.dropout import Dropout, rows_of_a_step
from clusterctl.engine.training.own.layers import Layers
from clusterctl.engine.training.own.model import (
    OwnModel,
    check_has_gradient,
    check_not_lazy,
    chosen,
    described,
    relative_difference,
    undisturbed,
)
from clusterctl.engine.training.own.trimming import CannotTrimError, Trimming
from clusterctl.engine.training.state import untrained
from clusterctl.shared.errors import Cause, TaskError
from clusterctl.shared.spec import PYG_MODELS
from clusterctl.shared.spec.forward import OF_EDGES, TRIMS, Forward

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from clusterctl.engine.graph.links import LinkGraph
    from clusterctl.engine.graph.storage import FeatureGraph, Graph
    from clusterctl.engine.graph.subgraphs import Subgraph


G = TypeVar("G", "Graph", "LinkGraph")

_MOST_LAYERS = 64  # of a model that trims hops by itself
_NO_FORWARD = Forward.of(nn.Module().forward).rest
_NOISE = 0.1  # added to the weights when outputs are compared: fresh ones may be zero
_TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-5}  # relative to the largest output: rounding stays below


def forward_of(model: nn.Module, method: str = "forward") -> Forward:
    """What the `forward` of a model takes, or another method; that of the original if `torch.compile` made it.

    Methods that hand `*args` on to a part of the model take what that takes, as in PyG's GAE.
    """
    model = getattr(model, "_orig_mod", model)
    form = Forward.of(getattr(model, method), method)
    part = delegate_of(model, method)
    return form if part is None else replace(Forward.of(part.forward), method=method)


def delegate_of(model: nn.Module, method: str) -> nn.Module | None:
    """The encoder or decoder to which `encode` or `decode`, which are written with `*args`, hand their arguments on."""
    part = getattr(model, {"encode": "encoder", "decode": "decoder"}.get(method, ""), None)
    return part if isinstance(part, nn.Module) and Forward.of(getattr(model, method), method).rest else None


def check_takes_one_type(model: Any, name: str, method: str = "forward") -> None:
    """Raise TaskError if a model without `layer`, or a class of such models, takes dicts by type."""
    if not hasattr(model, method):
        return  # a function that makes the model
    form = forward_of(model, method)
    if form.is_by_type and not hasattr(model, "layer"):
        hint = "return HeteroData from data.load"
        raise TaskError(f"{name}: {form.written}: the data has one type of nodes and edges", hint, Cause.USER)


class PygModel(OwnModel):
    """Calls a model on a `Subgraph`; its outputs are those of the seeds."""

    def __init__(self, model: nn.Module, name: str, classes: int | None, method: str = "forward") -> None:
        super().__init__(model, name, classes, method)
        self.form = forward_of(model, method)
        if self.form.rest == _NO_FORWARD:
            raise TaskError(f"{name} has no forward", "write forward(self, x, edge_index)", Cause.USER)
        if self.form.problem:
            what, hint = self.form.problem
            raise TaskError(f"{name}: {what}", hint, Cause.USER)
        self.by_layer = False
        self.trimming, self._layers = Trimming(model), Layers(model)

    def takes(self, name: str) -> bool:
        """Whether the model uses this attribute of edges."""
        if self.form.takes_data:
            return True
        model = getattr(self.model, "_orig_mod", self.model)
        model = delegate_of(model, self.method) or model
        if not getattr(model, f"supports_{name}", True):  # PyG's BasicGNN names arguments that its layers may not take
            return False
        layers = getattr(model, "convs", None) if hasattr(model, f"supports_{name}") else None
        return name in self.form.names and not (
            name == "edge_attr" and layers and getattr(layers[0], "edge_dim", 0) is None
        )

    @torch.no_grad()
    def begin(self, sample: Subgraph, x: Tensor, *, quiet: bool) -> None:
        """Give lazy layers their sizes, and find out whether hops may be trimmed; call it before training.

        Unless `quiet`, prints what keeps training from being the same on any number of ranks. Raises TaskError.
        """
        with undisturbed(self.model, x.device):
            evaluated = replace(sample, randomness=None)
            self.outputs([evaluated], x.clone())
            check_not_lazy(self.model, self.name, "give their sizes: the first forward did not use them")
            with other_weights(self.model):
                plain = self.outputs([evaluated], x.clone())

                self.trimming.try_on(lambda: not differs(plain, self.outputs([evaluated], x.clone())))
            if not quiet:
                with torch.enable_grad():  # as in training
                    print_what_varies(self.model, self.name, x.device, lambda: self.outputs([sample], x.clone()))

    def stored(self, graph: FeatureGraph, places: Tensor) -> Tensor:
        """The features of these nodes (int64) as they are stored, in the precision of the weights."""
        weights = next(self.model.parameters())
        return graph.x.index_select(0, places.to(graph.x.device)).to(weights.device, weights.dtype)

    def outputs(self, hops: Sequence[Subgraph], x: Tensor) -> Tensor:  # type: ignore[override]
        """The scores of the seeds [seeds, classes]; the only one of `hops` is the subgraph. Raises TaskError."""
        (subgraph,) = hops
        arguments, keywords = self._arguments(subgraph, x)
        before = _generator_state(x.device)
        try:
            with rows_of_a_step(subgraph), self.trimming.of(subgraph), self._layers.of(subgraph):
                rows = self.call(*arguments, **keywords)
        except TaskError:
            raise
        except Exception as error:
            if self.trimming.is_on and not self.trimming.is_tried:  # in training, it is another forward
                self.trimming.is_on = False
                _set_generator_state(x.device, before)  # a resumed run may have tried again
                return self.outputs(hops, x)
            if isinstance(error, CannotTrimError):
                raise TaskError(f"{self.name}: its layers cannot be trimmed", cause=Cause.USER) from error
            shapes = f"x {[*x.shape]}, edge_index {[*subgraph.edge_index.shape]}"
            message = f"{self.name}: {self.method} fails on {shapes}: {described(error)}"
            raise TaskError(message, cause=Cause.USER) from error
        # A model may give the rows of the seeds, of all depths up to one, or all.
        lengths = {*accumulate(subgraph.rows_by_depth or [subgraph.seeds]), len(subgraph.places)}
        if isinstance(rows, Tensor) and rows.dim() == 2 and len(rows) in lengths:
            rows = rows[: subgraph.seeds]
        rows = self._shaped(rows, (subgraph.seeds, self.classes), self.method)
        check_has_gradient(rows, self.model, f"{self.name}: {self.method} gives rows")
        return rows if subgraph.wanted is None else rows.index_select(0, subgraph.wanted)

    def _arguments(self, subgraph: Subgraph, x: Tensor) -> tuple[list[Any], dict[str, Any]]:
        found: dict[str, Any] = {"x": x, "edge_index": subgraph.edge_index, "n_id": subgraph.nodes}
        for name in OF_EDGES:
            values = subgraph.of_edges(name) if self.takes(name) else None
            found[name] = values if values is None else values.to(x.device, x.dtype)
        found["batch_size"] = subgraph.seeds
        counts = subgraph.rows_by_depth, subgraph.edges_by_depth
        if not subgraph.rows_by_depth:  # on whole neighbourhoods nothing may be trimmed
            counts = (len(x), *[0] * _MOST_LAYERS), (subgraph.edge_index.size(1), *[0] * (_MOST_LAYERS - 1))
        nodes, edges = map(list, counts)
        if self.form.takes_data:
            from torch_geometric.data import Data  # late: only for such models, which import it anyway

            found |= {"num_sampled_nodes": nodes, "num_sampled_edges": edges}  # as of PyG's NeighborLoader
            return [Data(**{name: value for name, value in found.items() if value is not None})], {}
        if "batch" in self.form.required:  # one graph
            found["batch"], found["batch_size"] = subgraph.places.new_zeros(len(subgraph.places)), 1
        elif "batch" in self.form.names:
            del found["batch_size"]
        if set(TRIMS) & set(self.form.required):
            found |= dict(zip(TRIMS, (nodes, edges), strict=True))
        found[self.form.features] = x
        return [], {name: found[name] for name in self.form.names if found.get(name) is not None}


def print_what_varies(model: nn.Module, name: str, device: torch.device, forward: Callable[[], object]) -> None:
    """Print what keeps training from being the same on any number of ranks, from one `forward`; leaves no traces."""
    with undisturbed(model, device), kept(untrained(model)):
        model.train()
        before = _generator_state(device)
        forward()
        draws = not torch.equal(before, _generator_state(device))
    if norms := batch_norms(model):
        print(f"{name}: {', '.join(norms)} sees only the batch of its rank, so training depends on their number")
    if draws:
        # Those that are not replaced by drawing by edge, see `draw_attention_by_edge`.
        of_layers = [
            f"{part_name} ({type(part).__name__})"
            for part_name, part in model.named_modules()
            if hasattr(part, "propagate") and not hasattr(part, "dropped_by_edge") and getattr(part, "dropout", None)
        ]
        where = f"{' and '.join(of_layers)} and perhaps others" if of_layers else "such as for dropout"
        instead = "with dropout from clusterctl.pyg it does not"
        if of_layers:
            instead = "GATConv, GATv2Conv and TransformerConv draw by edge, and dropout from clusterctl.pyg by node"
        print(f"{name}: a forward draws random numbers, {where}, so training depends on the number of ranks; {instead}")


@torch.no_grad()
def print_if_seeds_mix(
    model: nn.Module, name: str, device: torch.device, outputs: Callable[[int], Tensor], seeds: int
) -> None:
    """Print a line if the outputs of some seeds depend on the others; `outputs(n)` are those of the first n."""
    if seeds < 2:
        return
    with undisturbed(model, device), other_weights(model):
        fewer = outputs(seeds // 2)
        is_random = differs(outputs(seeds // 2), fewer)
        if not is_random and differs(outputs(seeds)[: len(fewer)], fewer):
            print(
                f"{name}: the output of a seed depends on the other seeds of its batch, so training depends on the "
                "number of ranks"
            )


def batch_norms(model: nn.Module) -> list[str]:
    """The names of the parts by which, in training, a row's output depends on all rows of the batch."""
    with undisturbed(model, torch.device("cpu")):
        model.train()
        return [name for name, part in model.named_modules() if isinstance(part, _BatchNorm) and part.training]


@contextmanager
def other_weights(model: nn.Module) -> Iterator[None]:
    """Within this context, all weights are others by some noise: fresh ones may hide a part of the model."""
    with kept(dict(model.named_parameters()) | untrained(model)):
        torch.manual_seed(0)
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=_NOISE)
        yield


@contextmanager
def kept(tensors: dict[str, Tensor]) -> Iterator[None]:
    """Restores the values of these tensors."""
    values = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    try:
        yield
    finally:
        for name, value in values.items():
            tensors[name].copy_(value)


def differs(one: Tensor, other: Tensor) -> float:
    """The largest difference of two outputs, as a part of the largest value; 0 if it is within rounding."""
    difference = relative_difference(one, other)
    return difference if difference > _TOLERANCES.get(one.dtype, 1e-2) else 0.0


def _generator_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _set_generator_state(device: torch.device, state: Tensor) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


def with_used_edges(graph: G, own: OwnModel, *, quiet: bool) -> G:
    """The graph with the attributes of edges that the model takes; unless `quiet`, prints a line about the others.

    Raises TaskError if the model needs one that the graph lacks.
    """
    given = [name for name in OF_EDGES if getattr(graph, name) is not None]
    used = [name for name in given if isinstance(own, PygModel) and own.takes(name)]
    if isinstance(own, PygModel):
        for name in OF_EDGES:
            if name in own.form.required and name not in given:
                hint = f"set data.{name} in the function of data.load, or give {name} a default in {own.method}"
                raise TaskError(
                    f"{own.name}: {own.method} needs {name}, which the data does not have", hint, Cause.USER
                )
    if (unused := [name for name in given if name not in used]) and not quiet:
        print(f"{own.name} does not take {' and '.join(unused)}: not used")
    without: dict[str, Any] = dict.fromkeys(unused)
    return replace(graph, **without)


_TAKE_EDGE_ATTRIBUTES = ("GAT", "PNA")
_LISTS = ("aggregators", "scalers")


def of_pyg(name: str, graph: Graph, layers: int, options: Mapping[str, Any]) -> nn.Module:
    """The model `name` of PyG for this graph, with `layers` unless the options say another number. Raises TaskError.

    Its dropout between layers does not depend on the number of ranks.
    """
    try:
        from torch_geometric.nn import models  # late: a second, only for those who use it
    except ImportError as error:
        raise TaskError(f"train.model = {name} needs torch_geometric: {error}", cause=Cause.USER) from error
    arguments = dataclasses.asdict(chosen(PYG_MODELS[name], name, options))
    arguments |= {one: arguments[one].split(",") for one in _LISTS if one in arguments}
    arguments["num_layers"] = arguments["num_layers"] or layers
    if name == "PNA":
        arguments["deg"] = graph.degree.bincount()
    if name in _TAKE_EDGE_ATTRIBUTES and graph.edge_attr is not None:
        arguments["edge_dim"] = 1 if graph.edge_attr.dim() == 1 else graph.edge_attr.size(1)
    try:
        model = getattr(models, name)(in_channels=graph.num_features, out_channels=graph.num_classes, **arguments)
    except Exception as error:
        raise TaskError(f"train.model = {name} cannot be made: {described(error)}", cause=Cause.USER) from error
    model.dropout = Dropout(model.dropout.p)
    return model  # type: ignore[no-any-return]
