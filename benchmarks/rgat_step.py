"""The cost of a training step of the relational attention network, ours and PyG's, on the same data in one process.

Two layers of GATv2 for each relation, 4 heads of 64, fan-out 15/10 in each relation, 1,024 seeds, on a generated graph
like IGB-heterogeneous with 1,024 features.

The rival is PyG as an expert uses it: bipartite `GATv2Conv`s, summed as by `HeteroConv(aggr="sum")`, only for required
relations and target rows, each on only the source rows that its edges read; fused Adam, and autocast if ours is
bfloat16. Its sampling is not timed. Both sides use the allocator of a run.

python benchmarks/rgat_step.py [float32] [bfloat16] [--scale 1e-4] [--threads 2] [--runs 10]
"""

from __future__ import annotations

import tempfile
import time
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from attention_steps import side_by_side
from torch.nn import functional as F

from clusterctl.engine.data import igb
from clusterctl.engine.data.igb import read_raw
from clusterctl.engine.graph.attention import fan_outs, layer_hops, relations_by_layer
from clusterctl.engine.graph.sampling import HeteroSampler
from clusterctl.engine.training.epoch_plan import EpochPlan
from clusterctl.engine.training.objectives.relation import RelationNodeClassification
from clusterctl.shared.spec import GatOptions, NodeClassificationTrain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from side_by_side import Timed
    from torch import Tensor

    from clusterctl.engine.graph.storage import EdgeType, LabelledHeteroGraph

    Read = dict[EdgeType, tuple[Tensor, Tensor]]
    """For each relation that a layer reads: the source rows, and the edges between them and the target rows."""

AIM = 1.5  # times faster than the expert's
OPTIONS = GatOptions(hidden=64, heads=4, dropout=0.2)
TRAIN = NodeClassificationTrain(
    model="rgat",
    batch_size=1024,
    lr=1e-3,
    fan_out=(15, 10),
    options={"hidden": OPTIONS.hidden, "heads": OPTIONS.heads, "dropout": OPTIONS.dropout},
)


def main() -> None:
    side_by_side(__doc__ or "", "rgat", igb_graph, TRAIN, RelationNodeClassification, expert_step, AIM, scale=1e-4)


def igb_graph(scale: float) -> LabelledHeteroGraph:
    """A generated graph; its features stay mapped from deleted files."""
    with tempfile.TemporaryDirectory() as folder:
        igb.write(Path(folder), scale, 0)
        scratch = Path(folder, "scratch")
        scratch.mkdir()
        return read_raw(Path(folder), scratch)


def expert_step(graph: LabelledHeteroGraph, train: NodeClassificationTrain) -> Timed:
    """The features of a sample, PyG's bipartite layers on it, backward, fused Adam."""
    from torch_geometric.nn import GATv2Conv

    by_layer = relations_by_layer(list(graph.indptr), graph.node_type, len(train.fan_out))
    widths, layers = {kind: x.size(1) for kind, x in graph.x.items()}, []
    for number, relations in enumerate(by_layer):
        last = number == len(by_layer) - 1
        channels, heads = (graph.num_classes, OPTIONS.output_heads) if last else (OPTIONS.hidden, OPTIONS.heads)
        layers.append(
            {
                relation: GATv2Conv(
                    (widths[relation[0]], widths[relation[2]]), channels, heads, concat=not last, add_self_loops=False
                )
                for relation in relations
            }
        )
        widths = {relation[2]: OPTIONS.heads * OPTIONS.hidden for relation in relations}
    modules = torch.nn.ModuleList(conv for layer in layers for conv in layer.values())
    optimizer = torch.optim.Adam(modules.parameters(), lr=train.lr, fused=True)
    samples = expert_samples(graph, train, by_layer)
    is_narrow = train.precision == "bfloat16"

    def once() -> float:
        nodes, hops, y = next(samples)
        began = time.perf_counter()
        x = {kind: graph.x[kind].index_select(0, rows) for kind, rows in nodes.items() if rows.numel()}
        with torch.autocast("cpu", torch.bfloat16, enabled=is_narrow):
            for number, (layer, (read, targets)) in enumerate(zip(layers, hops, strict=True)):
                out: dict[str, Tensor] = {}
                for relation, (rows, edges) in read.items():
                    source, _, target = relation
                    part = layer[relation]((x[source].index_select(0, rows), x[target][: targets[target]]), edges)
                    out[target] = out[target] + part if target in out else part
                x = out
                if number < len(layers) - 1:
                    x = {kind: F.dropout(F.elu(rows), OPTIONS.dropout) for kind, rows in out.items()}
            loss = F.cross_entropy(x[graph.node_type].float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return time.perf_counter() - began

    return once


def expert_samples(
    graph: LabelledHeteroGraph, train: NodeClassificationTrain, by_layer: list[list[EdgeType]]
) -> Iterator[tuple[dict[str, Tensor], list[tuple[Read, dict[str, int]]], Tensor]]:
    """The nodes of each type, the inputs and number of output rows of each layer, and the labels of the seeds.

    The samples contain self loops, so that the rival need not add them.
    """
    sampler = HeteroSampler(graph, fan_outs(by_layer, train.fan_out), seed=1)
    plan = EpochPlan(graph.train, train.batch_size or 0, seed=1, rank=0, world_size=1)
    for epoch in count():
        for batch in plan.batches(epoch):
            sample = sampler.sample({graph.node_type: batch.seeds}, epoch, batch.step)
            layers = [
                (
                    {
                        relation: (own.rows, torch.stack([own.edges.columns.long(), own.edges.targets()]))
                        for relation, own in hop.relations.items()
                    },
                    hop.targets,
                )
                for hop in layer_hops(sample, self_loops=OPTIONS.self_loops)
            ]
            yield sample.nodes, layers, graph.y[batch.seeds]


if __name__ == "__main__":
    main()
