"""Graph classification with a user-defined model: `forward(x, edge_index, batch)`, as in PyG."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from clusterctl.engine.graph.gin import Distinct
from clusterctl.engine.training.graph_objective import GraphClassification, Graphs
from clusterctl.engine.training.own_model import OwnTraining, built, described
from clusterctl.shared.errors import Cause, TaskError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from clusterctl.engine.graph.collection import Collection
    from clusterctl.engine.graph.gin import Copied
    from clusterctl.engine.task.task import Task
    from clusterctl.engine.training.objective import Accuracy
    from clusterctl.shared.spec import GraphClassificationTrain


class OwnGraphClassification(GraphClassification):
    """Trains the model `train.model`."""

    own_training: OwnTraining

    def __init__(self, collection: Collection, train: GraphClassificationTrain, task: Task, fold: int) -> None:
        super().__init__(collection, train, task, fold)
        self._name = train.model
        self.own_training = OwnTraining(self.model, train.model, task)
        if task.place.rank == 0 and fold == 0 and collection.x.size(1) and train.features != "given":
            print(f'the features x of the data are not used: train.features = "{train.features}", not "given"')

    def table_of(self, features: Tensor) -> Distinct:
        return Distinct(features, torch.arange(len(features), device=features.device))

    def network_of(self, train: GraphClassificationTrain, features: int) -> nn.Module:
        return built(train.model, {"features": features, "classes": self.classes}, train.options)

    def scores(self, prepared: Graphs, gathered: Copied, randomness: tuple[int, ...]) -> Tensor:  # noqa: ARG002 - torch draws here
        batch, x = prepared.batch, gathered.rows
        offsets, sources = batch.incoming
        targets = _owners(offsets, len(sources))
        of_graph = _owners(batch.bounds, len(batch.nodes))
        try:
            scores: Tensor = self.model(x, torch.stack([sources, targets]), of_graph)
        except Exception as error:
            shapes = f"x {[*x.shape]}, {len(sources)} edges, {len(batch.bounds) - 1} graphs"
            message = f"{self._name}: forward fails on {shapes}: {described(error)}"
            raise TaskError(message, cause=Cause.USER) from error
        wanted = (len(batch.bounds) - 1, self.classes)
        if not isinstance(scores, torch.Tensor) or tuple(scores.shape) != wanted:
            given = f"a tensor {[*scores.shape]}" if isinstance(scores, torch.Tensor) else type(scores).__name__
            message = f"{self._name}: forward gives {given}, where [graphs, classes] = {[*wanted]} is wanted"
            raise TaskError(message, "read the nodes out by graph, as with global_add_pool(x, batch)", Cause.USER)
        return scores

    def where_it_breaks(self, prepared: Graphs, gathered: Copied) -> str:  # noqa: ARG002 - of the base class
        return "forward" if gathered.rows.isfinite().all() else ""

    def evaluate(self, splits: Sequence[str]) -> dict[str, Accuracy]:
        self.own_training.agree_on_buffers()
        return super().evaluate(splits)


def _owners(bounds: Tensor, rows: int) -> Tensor:
    """int64 [rows]: the range, from `bounds[i]` up to `bounds[i + 1]`, that contains each of the `rows`."""
    numbers = torch.arange(len(bounds) - 1, device=bounds.device)
    return numbers.repeat_interleave(bounds.diff(), output_size=rows)
