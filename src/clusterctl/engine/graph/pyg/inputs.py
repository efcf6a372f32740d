"""Inputs of PyG's loaders that PyG misreads in silence, or that let it write beyond a tensor: errors that name them.

They are ValueErrors, as PyG's are. Negative times are allowed, as in PyG; NaN, which is later than nothing, is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader.utils import get_edge_label_index, get_input_nodes

if TYPE_CHECKING:
    from collections.abc import Mapping


def check_edges(data: Any) -> None:
    """Raise ValueError if an `edge_index` of a Data or HeteroData names nodes that are not there."""
    if isinstance(data, Data) and isinstance(data.edge_index, Tensor):
        check_edge_index(data.edge_index, data.num_nodes, data.num_nodes)
    elif isinstance(data, HeteroData):
        for edge_type, store in data.edge_items():
            if isinstance(store.get("edge_index"), Tensor):
                source, _, target = edge_type
                counts = data[source].num_nodes, data[target].num_nodes
                check_edge_index(store["edge_index"], *counts, f"{', '.join(edge_type)}: edge_index")


def check_attribute(data: Any, name: str | None, *, of_nodes: bool) -> None:
    """Raise ValueError unless the attribute `name` has one number for each edge, or also for each node.

    Without a check, compiled loops would read beyond the end of a shorter tensor.
    """
    given: list[tuple[str, Any, list[int | None]]] = []  # whose it is, its values, and how many there may be
    if isinstance(data, Data) and name in data:
        given = [("", data[name], [*([data.num_nodes] if of_nodes else []), data.num_edges])]
    elif isinstance(data, HeteroData):
        of_types = [(f"{kind}: ", store, store.num_nodes) for kind, store in data.node_items() if of_nodes]
        of_types += [(f"{', '.join(kind)}: ", store, store.num_edges) for kind, store in data.edge_items()]
        given = [(of, store[name], [count]) for of, store, count in of_types if name in store]
    for of, values, counts in given:
        if isinstance(values, Tensor) and (values.dim() != 1 or len(values) not in counts):
            raise ValueError(f"{of}{name} has shape {[*values.shape]}, not [{' or '.join(map(str, counts))}]")


def check_edge_index(edges: Tensor, sources: int | None, targets: int | None, name: str = "edge_index") -> None:
    """Raise ValueError unless `edges` are int [2, edges] below these numbers of nodes; None is an unknown one."""
    if edges.dim() != 2 or edges.size(0) != 2:
        raise ValueError(f"{name} has shape {[*edges.shape]}, not [2, edges]")
    for side, ends, count in zip(("sources", "targets"), edges, (sources, targets), strict=True):
        check_numbers(ends, count, name, side)


def check_numbers(numbers: Tensor, count: int | None, what: str, role: str = "nodes") -> None:
    """Raise ValueError unless these are whole numbers from 0 to below `count`; `what` has them as `role`."""
    if numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool:
        raise ValueError(f"{what} is {str(numbers.dtype).removeprefix('torch.')}, where whole numbers are wanted")
    if not numbers.numel():
        return
    low, high = (int(one) for one in numbers.aminmax())
    if low < 0 or (count is not None and high >= count):
        beyond = "" if count is None else f", and there are {count} nodes, numbered from 0"
        raise ValueError(f"{what} has {role} from {low} to {high}{beyond}")


def check_seeds(data: Any, input_nodes: Any, time: Tensor | None = None) -> None:
    """Raise ValueError for seeds that are not there, masks of another length, and times for other numbers of seeds."""
    given = input_nodes[1] if isinstance(input_nodes, tuple | list) and len(input_nodes) == 2 else input_nodes
    kind = input_nodes if isinstance(input_nodes, str) else input_nodes[0] if given is not input_nodes else None
    if isinstance(data, HeteroData) and isinstance(kind, str) and kind not in data.node_types:
        raise ValueError(f"input_nodes has nodes of type {kind}, and there are {', '.join(data.node_types)}")
    found, nodes, *_ = get_input_nodes(data, input_nodes)
    count = _number_of_nodes(data, found)
    is_mask = isinstance(given, Tensor) and given.dtype == torch.bool
    if is_mask and count is not None and tuple(given.shape) != (count,):
        raise ValueError(f"input_nodes is a mask of shape {[*given.shape]}, and there are {count} nodes")
    check_numbers(given if isinstance(given, Tensor) and not is_mask else nodes, count, "input_nodes")
    _check_values(time, len(nodes), "input_time", "input_nodes")
    check_times(time, "input_time")


def check_seed_edges(data: Any, edge_label_index: Any, label: Tensor | None, time: Tensor | None) -> None:
    """The same for the seed edges of a link loader, their labels and times."""
    edge_type, ends = get_edge_label_index(data, edge_label_index)
    ends = ends if isinstance(ends, Tensor) else torch.stack([*ends])
    source, target = (None, None) if edge_type is None else (edge_type[0], edge_type[2])
    counts = _number_of_nodes(data, source), _number_of_nodes(data, target)
    check_edge_index(ends, *counts, "edge_label_index")
    for values, name in ((label, "edge_label"), (time, "edge_label_time")):
        _check_values(values, ends.size(1), name, "edge_label_index")
    check_times(time, "edge_label_time")


def check_times(values: Tensor | Mapping[Any, Tensor] | None, what: str) -> None:
    """Raise ValueError if there are NaNs."""
    by_type: Mapping[Any, Any] = values if isinstance(values, dict) else {"": values}
    for name, own in by_type.items():
        missing = int(own.isnan().sum()) if isinstance(own, Tensor) and own.is_floating_point() else 0
        if missing:
            raise ValueError(f"{name}{': ' * bool(name)}{what} is NaN in {missing} of {len(own)} rows")


def _check_values(values: Any, wanted: int, what: str, of: str) -> None:
    if isinstance(values, Tensor) and len(values) != wanted:
        raise ValueError(f"{what} has {len(values)} values for the {wanted} of {of}")


def _number_of_nodes(data: Any, kind: str | None) -> int | None:
    """None if it is unknown: stores of the user's may have to ask another machine."""
    found: int | None = None
    if isinstance(data, Data):
        found = data.num_nodes
    elif isinstance(data, HeteroData):
        found = data[kind].num_nodes
    return found
