"""Models as PyG's users write them: `forward(x, edge_index)`, with what else its signature names, or `forward(data)`."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from clusterctl.engine.graph.dropout import rows_of_a_step
from clusterctl.engine.training.own_model import OwnModel, described
from clusterctl.shared.errors import Cause, TaskError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from clusterctl.engine.graph.subgraphs import Subgraph

OF_EDGES = ("edge_weight", "edge_attr")
_TRIMS = {
    "num_sampled_nodes_per_hop": "rows_by_depth",
    "num_sampled_edges_per_hop": "edges_by_depth",
}
_KNOWN = ("x", "edge_index", *OF_EDGES, "batch", "batch_size", "n_id", *_TRIMS)
_SPARSE = ("adj_t", "adj", "adjs")


class Signature:
    """What the `forward` of a model takes, or another `method`."""

    def __init__(self, model: nn.Module, method: str = "forward") -> None:
        self.method = method
        self.parameters = dict(inspect.signature(getattr(getattr(model, "_orig_mod", model), method)).parameters)

    @property
    def required(self) -> list[str]:
        return [name for name, one in self.parameters.items() if one.default is one.empty and not _is_rest(one)]

    @property
    def takes_data(self) -> bool:
        """Whether it takes a `Data`."""
        return len(self.required) == 1 and self.required[0] not in (*_KNOWN, *_SPARSE)

    @property
    def is_pygs(self) -> bool:
        """Whether it is one of PyG's forms, and not `forward(hops, x)`."""
        names = self.required
        return self.takes_data or not names or "edge_index" in self.parameters or names[0] in (*_KNOWN, *_SPARSE)

    def check(self, name: str) -> None:
        """Raise TaskError if nobody can fill an argument."""
        written = f"{self.method}({', '.join(map(str, self.parameters.values()))})"
        for argument, one in self.parameters.items():
            if argument in _SPARSE and argument in self.required:
                hint = "take edge_index, the format of PyG's layers, instead of a sparse matrix"
                raise TaskError(f"{name}: {written}: {argument} is not supported", hint, Cause.USER)
            if one.kind is one.VAR_POSITIONAL:
                hint = "name its arguments, such as forward(self, x, edge_index)"
                raise TaskError(f"{name}: {written}: it is unknown what *{argument} takes", hint, Cause.USER)
        unknown = [] if self.takes_data else [one for one in self.required if one not in _KNOWN]
        if self.required[1:2] == ["edge_index"]:
            unknown = [one for one in unknown if one != self.required[0]]
        if unknown or not self.required:
            what = f"nobody fills {', '.join(unknown)}" if unknown else "it takes nothing"
            hint = f"it may take {', '.join(_KNOWN)}, or one Data; give others a default"
            raise TaskError(f"{name}: {written}: {what}", hint, Cause.USER)


def _is_rest(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)


class PygModel(OwnModel):
    """Calls a model on a `Subgraph`; its outputs are those of the seeds."""

    def __init__(self, model: nn.Module, name: str, classes: int | None, method: str = "forward") -> None:
        super().__init__(model, name, classes, method)
        self.signature = Signature(model, method)
        self.signature.check(name)
        self.by_layer, self.trims = False, False

    def outputs(self, hops: Sequence[Subgraph], x: Tensor) -> Tensor:  # type: ignore[override]
        """The scores of the seeds [seeds, classes]; the only one of `hops` is the subgraph. Raises TaskError."""
        (subgraph,) = hops
        arguments, keywords = self._arguments(subgraph, x)
        try:
            with rows_of_a_step(subgraph):
                rows = self.call(*arguments, **keywords)
        except TaskError:
            raise
        except Exception as error:
            shapes = f"x {[*x.shape]}, edge_index {[*subgraph.edge_index.shape]}"
            raise TaskError(
                f"{self.name}: {self.method} fails on {shapes}: {described(error)}", cause=Cause.USER
            ) from error
        if isinstance(rows, Tensor) and rows.dim() == 2 and len(rows) in self._lengths(subgraph):
            rows = rows[: subgraph.seeds]
        return self._shaped(rows, (subgraph.seeds, self.classes), self.method)

    def _lengths(self, subgraph: Subgraph) -> set[int]:
        """The numbers of rows that a model may return: of the seeds, of all depths up to one, or all."""
        counts = torch.tensor(subgraph.rows_by_depth or [subgraph.seeds]).cumsum(0)
        return {*counts.tolist(), len(subgraph.places)}

    def _arguments(self, subgraph: Subgraph, x: Tensor) -> tuple[list[Any], dict[str, Any]]:
        found: dict[str, Any] = {"x": x, "edge_index": subgraph.edge_index, "n_id": subgraph.nodes}
        for name in OF_EDGES:
            values = subgraph.of_edges(name)
            found[name] = values if values is None else values.to(x.device, x.dtype)
        named = self.signature.parameters
        found["batch_size"] = subgraph.seeds
        if self.signature.takes_data:
            from torch_geometric.data import Data  # late: only for such models, which import it anyway

            return [Data(**{name: value for name, value in found.items() if value is not None})], {}
        if "batch" in self.signature.required:  # one graph
            found["batch"], found["batch_size"] = subgraph.places.new_zeros(len(subgraph.places)), 1
        elif "batch" in named:
            del found["batch_size"]
        for name, of in _TRIMS.items():
            if name in self.signature.required or self.trims:
                found[name] = list(getattr(subgraph, of)) or None
        first, *others = named
        if first not in _KNOWN:
            found[first] = found.pop("x")
        return [], {name: found[name] for name in (first, *others) if found.get(name) is not None}

    def where_it_breaks(self, hops: Sequence[Subgraph], x: Tensor) -> str:  # type: ignore[override]  # noqa: ARG002
        """The first part of the model with a NaN or infinity; empty if it is the data."""
        if not x.isfinite().all():
            return ""
        broken = (name for name, parameter in self.model.named_parameters() if not parameter.isfinite().all())
        return next((f"the parameter {name}" for name in broken), "forward")
