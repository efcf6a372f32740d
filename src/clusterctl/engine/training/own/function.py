"""What keys name of the user's code besides models: a loss, a metric, an optimizer, a sampler; errors name them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from clusterctl.engine.graph.subgraphs import Subgraph
from clusterctl.engine.training.own.model import described, found
from clusterctl.shared.errors import Cause, TaskError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clusterctl.engine.graph.storage import Graph


class OwnFunction:
    """Calls the function `name` that the key `key` names, with errors that say which one, and where it is."""

    def __init__(self, key: str, name: str) -> None:
        """Raises TaskError if there is no such function."""
        self.key, self.name = key, name
        self._function: Callable[..., Any] = found(name, key)
        if not callable(self._function):
            raise self.wrong(f"it is {shown(self._function)}, not a function")

    def __call__(self, given: Mapping[str, object], **options: object) -> Any:
        """Its result for the values of `given`; their names are for messages. Raises TaskError."""
        try:
            return self._function(*given.values(), **options)
        except TaskError:
            raise
        except Exception as error:
            on = ", ".join(f"{name} {shown(value)}" for name, value in given.items())
            message = f"{self.key} = {self.name} fails on {on}: {described(error)}"
            raise TaskError(message, cause=Cause.USER) from error

    def wrong(self, what: str, hint: str = "") -> TaskError:
        """The error that the function gave something unusable, with its place in the user's code."""
        code = getattr(self._function, "__code__", None)
        place = f" ({Path(code.co_filename).name}, line {code.co_firstlineno})" if code else ""
        return TaskError(f"{self.key} = {self.name}{place}: {what}", hint, Cause.USER)


def shown(value: object) -> str:
    """The shape of a tensor, the type of anything else."""
    return f"{[*value.shape]}" if isinstance(value, Tensor) else type(value).__name__


_WANTED = "return nodes and edge_index, or nodes, edge_index and edges; see the guide on your own model"


class OwnSampler:
    """Calls `sample(seeds, epoch, step, seed)` of the user's class, made with the graph and `train.fan_out`.

    It returns nodes (int64, the seeds first and in their order), `edge_index` (rows of sources and targets among the
    nodes), and, if the model takes attributes of edges, their places in `graph.indices`.
    """

    def __init__(self, name: str, graph: Graph, fan_out: Sequence[int], seed: int) -> None:
        """Raises TaskError if there is no such class, or it cannot be made."""
        self._name, self._graph, self._seed = name, graph, seed
        make = found(name, "train.sampler")
        try:
            self._own = make(graph, tuple(fan_out))
        except TaskError:
            raise
        except Exception as error:
            raise self._wrong(
                f"cannot be made: {described(error)}", "it is called with the graph and train.fan_out"
            ) from error
        if not callable(getattr(self._own, "sample", None)):
            raise self._wrong("has no sample(seeds, epoch, step, seed)", _WANTED)

    def sample(self, seeds: Tensor, epoch: int, step: int) -> Subgraph:
        """The user's sample around `seeds`, int64. Raises TaskError if it fails, or cannot be used."""
        try:
            result = self._own.sample(seeds, epoch, step, self._seed)
        except Exception as error:
            raise self._wrong(f"fails on {len(seeds)} seeds: {described(error)}") from error
        if not isinstance(result, tuple) or len(result) not in (2, 3):
            given = f"a tuple of {len(result)}" if isinstance(result, tuple) else shown(result)
            raise self._wrong(f"gives {given}", _WANTED)
        nodes, edge_index, *rest = result
        nodes = self._integers(nodes, "nodes", 1, self._graph.num_nodes)
        if not torch.equal(nodes[: len(seeds)], seeds):
            raise self._wrong("gives nodes that do not begin with the seeds", "put the seeds first, in their order")
        edge_index = self._integers(edge_index, "edge_index", 2, len(nodes))
        if edge_index.size(0) != 2:
            raise self._wrong(f"gives edge_index {shown(edge_index)}", "its shape is [2, edges]: sources, then targets")
        edges = self._integers(rest[0], "edges", 1, self._graph.indices.numel()) if rest else None
        if edges is None and (self._graph.edge_weight is not None or self._graph.edge_attr is not None):
            hint = "return nodes, edge_index and edges: the place of each edge in graph.indices"
            raise self._wrong("gives no edges, whose attributes the model takes", hint)
        if edges is not None and len(edges) != edge_index.size(1):
            raise self._wrong(f"gives {len(edges)} edges, and edge_index has {edge_index.size(1)}", _WANTED)
        randomness = (self._seed, epoch, step)
        return Subgraph(self._graph, nodes, edge_index, len(seeds), edges, randomness=randomness)

    def _integers(self, value: Any, name: str, dimensions: int, below: int) -> Tensor:
        """`value` as int64 on the graph's device, if it is such a tensor with values from 0 to below `below`."""
        if not isinstance(value, Tensor) or value.dim() != dimensions:
            hint = f"a tensor with {dimensions} dimension{'s' * (dimensions > 1)} is wanted"
            raise self._wrong(f"gives {name} {shown(value)}", hint)
        if value.dtype not in (torch.int64, torch.int32) and value.numel():  # torch.tensor([[], []]) is float32
            raise self._wrong(f"gives {name} of type {str(value.dtype).removeprefix('torch.')}", "make it int64")
        found: Tensor = value.to(self._graph.indptr.device, torch.int64)
        if found.numel() and not 0 <= int(found.min()) <= int(found.max()) < below:
            among = {"nodes": "nodes of the graph", "edge_index": "rows of nodes", "edges": "places in graph.indices"}
            what = f"gives {name} from {int(found.min())} to {int(found.max())}"
            raise self._wrong(what, f"there are {below} {among[name]}, numbered from 0")
        return found

    def _wrong(self, what: str, hint: str = "") -> TaskError:
        return TaskError(f"train.sampler = {self._name} {what}", hint, Cause.USER)
