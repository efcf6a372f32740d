"""The models of torch_geometric.nn.models, by name."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from clusterctl.engine.graph.dropout import Dropout
from clusterctl.engine.training.own.model import chosen, described
from clusterctl.shared.errors import Cause, TaskError
from clusterctl.shared.spec import PYG_MODELS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from clusterctl.engine.graph.storage import Graph

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
