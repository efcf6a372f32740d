"""An epoch on IMDB-BINARY (800 training and 100 validation graphs), ours compared with PyG's GINConv.

All use the same network, the same settings and the allocator of a run. Three rivals: PyG's DataLoader and Adam, as in
its examples; and the same layers as an expert uses them, with fused Adam, whose batches are collated in advance or,
like ours, within the measured time.

imdb-gin    two layers of width 64 on one-hot degrees, each read out, LayerNorm, Adam, 32 graphs a step
imdb-seed   the tutorial's toy: two plain layers of width two on constant features

Ours are epochs of a training that is long enough to compile its steps. The job imdb-seed, of five epochs, is not: its
whole training is compared with that of an expert who collates once.

python benchmarks/graph_classification_epoch.py [--threads 1] [--runs 15]
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import torch
from node_steps import begin_alone, lone_task
from side_by_side import Timed, arguments, compare, timed
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

from clusterctl.engine.data.graph_sets import raw_identity, read_raw
from clusterctl.engine.training.epoch_plan import EpochPlan
from clusterctl.engine.training.flat import FlatModel
from clusterctl.engine.training.learner import Adam
from clusterctl.engine.training.objectives.graph import GraphClassification, features_of, stratified
from clusterctl.shared.spec import GraphClassificationTrain

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch_geometric.data import Batch

    from clusterctl.engine.graph.collection import Collection

DATA = Path(__file__).resolve().parents[1] / "data" / "IMDB-BINARY"
GIN = GraphClassificationTrain(features="degree", epochs=400)
SEED = replace(GIN, model="plain", features="ones", hidden_channels=2, readout="sum", dropout=0.0, lr=0.01)


def main() -> None:
    words = arguments(__doc__)
    words.add_argument("--threads", type=int, default=1)
    words.add_argument("--runs", type=int, default=15)
    options = words.parse_args()
    begin_alone(options.threads)
    with TemporaryDirectory() as scratch:
        graphs = read_raw(raw_identity(str(DATA)), Path(scratch))
    for name, settings in (("imdb-gin", GIN), ("imdb-seed", SEED)):
        ours = our_epoch(graphs, settings)
        rivals = {
            "expert's PyG, collation not timed": (pyg_epoch(graphs, settings, fused=True, in_advance=True), 1 / 2),
            "expert's PyG, collation timed": (pyg_epoch(graphs, settings, fused=True), 1 / 2),
            "PyG's DataLoader and Adam": (pyg_epoch(graphs, settings), None),
        }
        for rival, (epoch, bound) in rivals.items():
            title = f"{name}: an epoch, {options.threads} threads"
            compare(title, ("clusterctl", ours), (rival, epoch), bound=bound, runs=options.runs)
    ours = our_epoch(graphs, replace(SEED, epochs=5, folds=1))
    expert = pyg_epoch(graphs, SEED, fused=True, epochs=5)
    title = f"imdb-seed: a training of five epochs, {options.threads} threads"
    five = ("clusterctl", lambda: sum(ours() for _ in range(5)))
    compare(title, five, ("expert's PyG, collated once", expert), bound=None, runs=options.runs)
    dist.destroy_process_group()


def our_epoch(graphs: Collection, settings: GraphClassificationTrain) -> Timed:
    task = lone_task()
    objective = GraphClassification(graphs, settings, task, fold=0)
    flat = FlatModel(objective.model)
    optimizer = Adam(flat.values, flat.gradients, settings.lr, settings.weight_decay)
    plan = EpochPlan(objective.seeds, settings.batch_size, seed=0, rank=0, world_size=1)
    epochs = count()
    objective.model.train()

    def once() -> None:
        for batch in plan.batches(next(epochs)):
            flat.backward(objective.loss(batch, objective.prepare(batch)), task.stop)
            optimizer.step()
        objective.model.eval()
        objective.evaluate(["val"])
        objective.model.train()

    return timed(once)


class PygGin(nn.Module):
    """The same network from PyG's layers: every layer read out and scored, or the last one read out."""

    def __init__(self, inputs: int, classes: int, settings: GraphClassificationTrain) -> None:
        from torch_geometric.nn import GINConv

        super().__init__()
        self._settings, hidden = settings, settings.hidden_channels
        if settings.model == "plain":
            widths = [inputs, *[hidden] * (settings.layers - 1), classes]
            self.layers = nn.ModuleList(GINConv(nn.Linear(*widths[at : at + 2])) for at in range(settings.layers))
            return
        widths = [inputs, *[hidden] * (settings.layers - 1)]
        self.layers = nn.ModuleList(GINConv(perceptron(width, hidden)) for width in widths)
        self.scores = nn.ModuleList(nn.Linear(hidden, classes) for _ in widths)

    def forward(self, x: Tensor, edges: Tensor, graph: Tensor, size: int) -> Tensor:
        from torch_geometric.nn import global_add_pool, global_mean_pool

        pool = global_mean_pool if self._settings.readout == "mean" else global_add_pool
        if self._settings.model == "plain":
            x = self.layers[0](x, edges)
            for layer in list(self.layers)[1:]:
                x = layer(x.relu(), edges)
            return pool(x, graph, size)
        scores = []
        for layer, score in zip(self.layers, self.scores, strict=True):
            x = F.dropout(layer(x, edges), self._settings.dropout, self.training)
            scores.append(score(pool(x, graph, size)))
        return torch.stack(scores).sum(0)


def perceptron(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(inputs, outputs), nn.LayerNorm(outputs), nn.ReLU()),
        *(nn.Linear(outputs, outputs), nn.LayerNorm(outputs), nn.ReLU()),
    )


def pyg_epoch(
    graphs: Collection,
    settings: GraphClassificationTrain,
    *,
    fused: bool = False,
    in_advance: bool = False,
    epochs: int = 1,
) -> Timed:
    """An epoch, whose batches are collated before the clock starts if `in_advance`; or several, collated once."""
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader

    features = features_of(graphs, settings.features)
    parts = stratified(graphs.y, settings.seed)

    def loader(numbers: Tensor, shuffle: bool) -> DataLoader:
        data = []
        for number in numbers.tolist():
            first, last = graphs.bounds[number], graphs.bounds[number + 1]
            begin, end = graphs.indptr[first], graphs.indptr[last]
            targets = torch.arange(first, last).repeat_interleave(graphs.degree[first:last])
            edges = torch.stack([graphs.indices[begin:end].to(torch.int64), targets]) - first
            data.append(Data(x=features[first:last], edge_index=edges, y=graphs.y[number : number + 1]))
        return DataLoader(data, settings.batch_size, shuffle=shuffle)

    training, validation = loader(torch.cat(parts[2:]), True), loader(parts[1], False)
    model = PygGin(features.size(1), graphs.num_classes, settings)
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.lr, fused=fused)

    def epoch(training: Iterable[Batch], validation: Iterable[Batch]) -> None:
        model.train()
        for batch in training:
            loss = F.cross_entropy(model(batch.x, batch.edge_index, batch.batch, batch.num_graphs), batch.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for batch in validation:
                scores = model(batch.x, batch.edge_index, batch.batch, batch.num_graphs)
                int((scores.argmax(1) == batch.y).sum())

    def several() -> None:
        batches = list(training), list(validation)
        for _ in range(epochs):
            epoch(*batches)

    def once() -> float:
        if epochs > 1:
            return timed(several)()
        batches = (list(training), list(validation)) if in_advance else (training, validation)
        return timed(lambda: epoch(*batches))()

    return once


if __name__ == "__main__":
    main()
