"""What the `forward` of a user's model takes, and why it cannot be called: from its source, or from the class."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

OF_EDGES = ("edge_weight", "edge_attr")
TRIMS = ("num_sampled_nodes_per_hop", "num_sampled_edges_per_hop")
KNOWN = ("x", "edge_index", *OF_EDGES, "batch", "batch_size", "n_id", *TRIMS)
_SPARSE = ("adj_t", "adj", "adjs")
_OF_TYPES = ("x_dict", "edge_index_dict")
_KNOWN_BY_TYPE = (
    *(*_OF_TYPES, "n_id_dict", "batch_size"),
    *("batch_dict", "time_dict", "seed_time"),  # in data with times
    *("num_sampled_nodes_dict", "num_sampled_edges_dict"),
    *(f"{name}_dict" for name in OF_EDGES),
)


@dataclass(frozen=True)
class Forward:
    """The names of the arguments, without `self`."""

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    rest: str = ""  # of *args
    method: str = "forward"

    @classmethod
    def of(cls, function: Callable[..., Any], name: str = "forward") -> Forward:
        """That of a bound method, or of another one than forward."""
        parameters = signature(function).parameters.values()
        given = [one for one in parameters if one.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)]
        required = tuple(one.name for one in given if one.default is one.empty)
        optional = tuple(one.name for one in given if one.default is not one.empty)
        rest = next((one.name for one in parameters if one.kind is one.VAR_POSITIONAL), "")
        return cls(required, optional, rest, name)

    @property
    def names(self) -> tuple[str, ...]:
        return self.required + self.optional

    @property
    def takes_data(self) -> bool:
        """Whether it takes one of PyG's `Data`, which may be named `batch` if there is nothing to be a batch of."""
        if self.required == ("batch",):
            return not {"x", "edge_index", *_OF_TYPES} & {*self.optional}
        return len(self.required) == 1 and self.required[0] not in (*KNOWN, *_SPARSE, *_KNOWN_BY_TYPE)

    @property
    def is_by_type(self) -> bool:
        """Whether it takes dicts of a graph with several types of nodes and edges."""
        return any(name in self.names for name in _OF_TYPES)

    @property
    def is_pygs(self) -> bool:
        """Whether it is one of PyG's forms, and not `forward(hops, x)`."""
        names = self.required
        return self.takes_data or not names or "edge_index" in self.names or names[0] in (*KNOWN, *_SPARSE)

    @property
    def features(self) -> str:
        """The argument for the features: x, or one with another name before edge_index."""
        return self.required[0] if self.required[1:2] == ("edge_index",) else "x"

    @property
    def written(self) -> str:
        """How it looks in Python, without the defaults."""
        names = (*self.required, *(f"{name}=..." for name in self.optional), *([f"*{self.rest}"] if self.rest else []))
        return f"{self.method}({', '.join(names)})"

    @property
    def problem(self) -> tuple[str, str] | None:
        """Why it cannot be called, and a hint."""
        written = self.written
        if sparse := [name for name in self.required if name in _SPARSE]:
            hint = "take edge_index, the format of PyG's layers, instead of a sparse matrix"
            return f"{written}: {sparse[0]} is not supported", hint
        if self.rest:
            return f"{written}: it is unknown what *{self.rest} takes", "name its arguments, such as x, edge_index"
        if self.is_by_type:
            return self.problem_with_types
        if not self.is_pygs or self.takes_data:
            return None
        unknown = [name for name in self.required if name not in (*KNOWN, self.features)]
        if unknown or not self.required:
            what = f"nobody fills {', '.join(unknown)}" if unknown else "it takes nothing"
            return f"{written}: {what}", f"it may take {', '.join(KNOWN)}, or one Data; give others a default"
        return None

    @property
    def problem_with_types(self) -> tuple[str, str] | None:
        """Like `problem`, for a graph with several types of nodes and edges."""
        if self.rest:
            hint = "name its arguments, such as x_dict, edge_index_dict"
            return f"{self.written}: it is unknown what *{self.rest} takes", hint
        of_to_hetero = () if self.is_by_type else ("x", "edge_index", *OF_EDGES)
        known = (*_KNOWN_BY_TYPE, *of_to_hetero)
        unknown = [name for name in self.required if name not in known]
        if self.takes_data or (self.required and not unknown):
            return None
        what = f"nobody fills {', '.join(unknown)}" if unknown else "it takes nothing"
        hint = f"on several types it may take {', '.join(_KNOWN_BY_TYPE)}, or one HeteroData; give others a default"
        return f"{self.written}: {what}", hint


def in_source(source: str, name: str) -> Forward | None:
    """The `forward` of the class `name` in Python source; None if there is none, or if it has `layer`."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    classes = [one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == name]
    if not classes:
        return None
    methods = {one.name: one.args for one in classes[-1].body if isinstance(one, ast.FunctionDef)}
    if "forward" not in methods or "layer" in methods or classes[-1].decorator_list:
        return None
    found = methods["forward"]
    positional = [*found.posonlyargs, *found.args]
    without_default = positional[1 : len(positional) - len(found.defaults)]
    by_name = list(zip(found.kwonlyargs, found.kw_defaults, strict=True))
    required = [*without_default, *(one for one, default in by_name if default is None)]
    optional = [*positional[len(without_default) + 1 :], *(one for one, default in by_name if default is not None)]
    rest = found.vararg.arg if found.vararg else ""
    return Forward(tuple(one.arg for one in required), tuple(one.arg for one in optional), rest)
