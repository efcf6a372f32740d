"""Heterogeneous models as PyG's users write them: `forward(x_dict, edge_index_dict)`, or `forward(data)`.

Models of `to_hetero` are among them: their `forward(x, edge_index)` takes dicts, too. A model with `layer(i, hop, x)`
gets dicts by type and returns the rows of the targets by type.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clusterctl.engine.graph.dropout import rows_of_types
from clusterctl.engine.training.own.model import (
    OwnModel,
    broken_parameter,
    check_has_gradient,
    check_not_lazy,
    described,
    undisturbed,
)
from clusterctl.engine.training.own.pyg_model import forward_of, print_what_varies
from clusterctl.shared.errors import Cause, TaskError
from clusterctl.shared.spec.forward import OF_EDGES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.engine.graph.hops import TypedHop
    from clusterctl.engine.graph.storage import EdgeType, HeteroGraph
    from clusterctl.engine.graph.subgraphs import TypedSubgraph

H = TypeVar("H", bound="HeteroGraph")
Rows = dict[str, Tensor]
_MOST_LAYERS = 64  # of a model that trims hops by itself


class TypedModel(OwnModel):
    """Calls a model on a `TypedSubgraph`; its outputs are those of the seeds of type `kind`, or of all seeds."""

    def __init__(self, model: nn.Module, name: str, classes: int | None, kind: str, method: str = "forward") -> None:
        """Raises TaskError if the model cannot be called."""
        super().__init__(model, name, classes, method)
        self.form, self.kind, self.kinds = forward_of(model, method), kind, [kind]
        if not self.by_layer and (problem := self.form.problem_with_types):
            what, hint = problem
            raise TaskError(f"{name}: {what}", hint, Cause.USER)

    def with_used_edges(self, graph: H, *, quiet: bool) -> H:
        """The graph with the attributes of edges that the model takes; unless `quiet`, prints a line about the others.

        Raises TaskError if the model needs one that the graph lacks.
        """
        unused: list[str] = []
        for name in OF_EDGES:
            # A model of to_hetero keeps the names of one type.
            argument = f"{name}_dict" if self.form.is_by_type else name
            if getattr(graph, name):
                is_used = not self.by_layer and (self.form.takes_data or argument in self.form.names)
                unused += [] if is_used else [name]
            elif argument in self.form.required and not self.by_layer:
                hint = f"set {name} of a type of edges in the function of data.load, or give {argument} a default"
                what = f"{self.name}: {self.method} needs {argument}, and no type of edges has {name}"
                raise TaskError(what, hint, Cause.USER)
        if unused and not quiet:
            print(f"{self.name} does not take {' and '.join(f'{name}_dict' for name in unused)}: not used")
        without: dict[str, Any] = {name: {} for name in unused}
        return replace(graph, **without)

    @torch.no_grad()
    def begin(self, sample: Any, x: Rows, *, quiet: bool) -> None:
        """Give lazy layers their sizes; unless `quiet`, print what keeps training from being the same on any ranks.

        `sample` is a TypedSubgraph, or a list of TypedHops. Raises TaskError.
        """
        device, hops = next(iter(x.values())).device, sample if isinstance(sample, list) else [sample]
        with undisturbed(self.model, device):
            self.outputs([replace(hop, randomness=None) for hop in hops], dict(x))
            check_not_lazy(self.model, self.name, "give their sizes: the first forward did not use them")
            if not quiet:
                print_what_varies(self.model, self.name, device, lambda: self.outputs(hops, dict(x)))

    def outputs(self, hops: Sequence[Any], x: Rows) -> Tensor:  # type: ignore[override]
        """The scores of the seeds [seeds, classes], from one subgraph, or one hop for each layer. Raises TaskError."""
        if self.by_layer:
            for number, hop in enumerate(hops):
                x = self.layer_of_types(number, hop, x, last=number == len(hops) - 1)
            rows, wanted = x[self.kind], hops[-1].wanted
            check_has_gradient(rows, self.model, f"{self.name}: layer {len(hops) - 1} gives rows")
            return rows if wanted is None else rows.index_select(0, wanted)
        (subgraph,) = hops
        rows = self.rows(subgraph, x)
        return self.of_seeds(self.of_type(rows, self.kind) if isinstance(rows, dict) else rows, subgraph, self.kind)

    def of_type(self, rows: Any, kind: str) -> Any:
        """One type of what the model gives as a dict. Raises TaskError."""
        if isinstance(rows, dict) and kind in rows:
            return rows[kind]
        given = type(rows).__name__
        if isinstance(rows, dict):
            given = f"rows of {', '.join(map(str, rows)) or 'no type'}"
        raise TaskError(f"{self.name}: {self.method} gives {given}", f"rows of {kind} are wanted", Cause.USER)

    def layer_of_types(self, number: int, hop: TypedHop, x: Rows, *, last: bool) -> Rows:
        """The new rows of the hop's targets, by type. Raises TaskError if the number of rows of a type is wrong."""
        try:
            rows = self.model.layer(number, hop, x)  # type: ignore[operator]
        except Exception as error:
            shapes = ", ".join(f"{kind} {[*own.shape]}" for kind, own in x.items())
            message = f"{self.name}: layer {number} fails on x of {shapes}: {described(error)}"
            raise TaskError(message, cause=Cause.USER) from error
        if not isinstance(rows, dict):
            message = f"{self.name}: layer {number} gives {type(rows).__name__}"
            raise TaskError(message, "a dict of rows by node type is wanted", Cause.USER)
        if last and self.kind not in rows and hop.targets[self.kind]:
            message = f"{self.name}: layer {number} gives rows of {', '.join(map(str, rows)) or 'no type'}"
            raise TaskError(message, f"rows of {self.kind} are wanted", Cause.USER)
        return {
            kind: self._shaped(own, (hop.targets[kind], self.classes if last else None), f"layer {number}: {kind}")
            for kind, own in rows.items()
            if kind in hop.targets and (kind == self.kind or not last)
        }

    def of_seeds(self, rows: Any, subgraph: TypedSubgraph, kind: str) -> Tensor:
        """The rows of the seeds of this type. Raises TaskError if `rows` are something else."""
        seeds = subgraph.seeds.get(kind, 0)
        lengths = {*accumulate(subgraph.rows_by_depth.get(kind, (seeds,))), len(subgraph.places[kind])}
        if isinstance(rows, Tensor) and rows.dim() == 2 and len(rows) in lengths:
            rows = rows[:seeds]
        found = self._shaped(rows, (seeds, self.classes), self.method)
        check_has_gradient(found, self.model, f"{self.name}: {self.method} gives rows")
        return found

    def rows(self, subgraph: TypedSubgraph, x: Rows) -> Any:
        """What the model gives. Raises TaskError if it fails."""
        arguments, keywords = self._arguments(subgraph, x)
        try:
            with rows_of_types(subgraph):
                return self.call(*arguments, **keywords)
        except TaskError:
            raise
        except Exception as error:
            shapes = ", ".join(f"{kind} {[*rows.shape]}" for kind, rows in x.items())
            message = f"{self.name}: {self.method} fails on x_dict of {shapes}: {described(error)}"
            hint = "x and edge_index are dicts by type here: see PyG's to_hetero" if "x" in self.form.required else ""
            raise TaskError(message, hint, Cause.USER) from error

    @torch.no_grad()
    def where_it_breaks(self, hops: Sequence[Any], x: Rows) -> str:  # type: ignore[override]  # noqa: ARG002
        """The first part of the model with a NaN or infinity; empty if it is the data."""
        if not all(rows.isfinite().all() for rows in x.values()):
            return ""
        return broken_parameter(self.model) or self.method

    def _arguments(self, subgraph: TypedSubgraph, x: Rows) -> tuple[list[Any], dict[str, Any]]:
        found: dict[str, Any] = {  # copies: a model may change its dicts
            "x_dict": dict(x),
            "edge_index_dict": dict(subgraph.edge_index),
            "n_id_dict": dict(subgraph.places),
        }
        like = next(iter(x.values()))
        for name in OF_EDGES:
            by_type = subgraph.of_edges(name)
            found[f"{name}_dict"] = {relation: own.to(like.device, like.dtype) for relation, own in by_type.items()}
        if len(self.kinds) == 1:
            found["batch_size"] = subgraph.seeds.get(self.kind, 0)
        trees = subgraph.trees
        if trees is not None:
            found |= {"batch_dict": dict(trees.of_rows), "seed_time": trees.latest}
            found["time_dict"] = {
                kind: times[subgraph.places[kind]] for kind, times in subgraph.graph.node_times.items()
            }
        for name, by_depth, whole in (
            ("num_sampled_nodes_dict", subgraph.rows_by_depth, subgraph.places),
            ("num_sampled_edges_dict", subgraph.edges_by_depth, subgraph.edge_index),
        ):
            counts: Mapping[Any, Sequence[int]] = by_depth or {
                kind: (tensor.size(-1), *[0] * (_MOST_LAYERS - 1)) for kind, tensor in whole.items()
            }
            found[name] = {kind: list(own) for kind, own in counts.items()}
        if self.form.takes_data:
            return [self._as_data(found)], {}
        found |= {name: found[f"{name}_dict"] for name in ("x", "edge_index", *OF_EDGES)}  # of to_hetero
        for name in self.form.required:
            if name not in found:
                why, hint = "the data has no times", f"give {name} a default, or set time of the nodes or edges"
                if name == "batch_size":
                    why, hint = (
                        f"there are seeds of {' and of '.join(self.kinds)}",
                        "give it a default, or leave it out",
                    )
                raise TaskError(f"{self.name}: {self.form.written}: nobody fills {name}, since {why}", hint, Cause.USER)
        return [], {name: found[name] for name in self.form.names if name in found}

    def _as_data(self, found: Mapping[str, Any]) -> Any:
        """A batch with the attributes that PyG's NeighborLoader gives."""
        from torch_geometric.data import HeteroData  # late: only for such models, which import it anyway

        data = HeteroData()
        for kind, rows in found["x_dict"].items():
            data[kind].x, data[kind].n_id = rows, found["n_id_dict"][kind]
            for name in ("batch", "time", "num_sampled_nodes"):
                if kind in found.get(f"{name}_dict", {}):
                    data[kind][name] = found[f"{name}_dict"][kind]
        for name in ("edge_index", *OF_EDGES, "num_sampled_edges"):
            for relation, values in found[f"{name}_dict"].items():
                data[relation][name] = values
        for name in ("batch_size", "seed_time"):
            if name in found:
                data[name] = data[self.kind][name] = found[name]
        return data


class EndsModel(TypedModel):
    """Calls a model for both ends of edges: its outputs are the seeds' rows of the source's type, then the target's.

    The types' rows may differ in width: the narrower ones are padded, and `by_type` takes them apart.
    """

    def __init__(self, model: nn.Module, name: str, edge_type: EdgeType) -> None:
        """Its method `encode` is called, or else `forward`. Raises TaskError if it cannot be."""
        if hasattr(model, "layer"):
            hint = "write encode(self, x_dict, edge_index_dict) instead"
            what = f"{name} has layer(i, hop, x), which link prediction on several types does not call"
            raise TaskError(what, hint, Cause.USER)
        method = "encode" if hasattr(model, "encode") else "forward"
        form = forward_of(model, method)
        if pairs := [argument for argument in form.required if "label_index" in argument]:
            hint = "split it: encode(self, x_dict, edge_index_dict) and decode(self, z_dict, edge_label_index)"
            raise TaskError(f"{name}: {form.written}: nobody fills {pairs[0]}", hint, Cause.USER)
        super().__init__(model, name, None, edge_type[0], method)
        self.kinds = list(dict.fromkeys((edge_type[0], edge_type[2])))
        self._widths: dict[str, int] = {}

    def outputs(self, hops: Sequence[Any], x: Rows) -> Tensor:  # type: ignore[override]
        (subgraph,) = hops
        rows = self.rows(subgraph, x)
        if isinstance(rows, Tensor) and len(self.kinds) == 1:
            rows = {self.kind: rows}
        parts = [self.of_seeds(self.of_type(rows, kind), subgraph, kind) for kind in self.kinds]
        self._widths = {kind: part.size(1) for kind, part in zip(self.kinds, parts, strict=True)}
        most = max(self._widths.values())
        return torch.cat([part if part.size(1) == most else F.pad(part, (0, most - part.size(1))) for part in parts])

    def by_type(self, rows: Tensor, sources: int) -> Rows:
        """The rows of both ends by type, of which the first `sources` are of the source's type if they differ."""
        parts = [rows] if len(self.kinds) == 1 else [rows[:sources], rows[sources:]]
        return {kind: part[:, : self._widths[kind]] for kind, part in zip(self.kinds, parts, strict=True)}
