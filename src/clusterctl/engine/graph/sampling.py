"""Neighbour sampling, uniform (`neighbors`) or LABOR (`labor`): in plain torch, or by numba for large graphs on a CPU.

The sample of a node depends only on (seed, epoch, step, hop, node). Every hop samples every node of the frontier,
including the seeds (as in DGL; PyG samples only nodes that are new to the hop, so a node's neighbours depend on the
rest of its batch).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from clusterctl.engine.graph.blocks import Block, transposed
from clusterctl.engine.graph.hashing import Purpose, stream
from clusterctl.engine.graph.labor import max_duplicates, sample_labor
from clusterctl.engine.graph.neighbors import renumbered, sample_neighbors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clusterctl.engine.graph.storage import EdgeType, FeatureGraph, HeteroGraph

WORTH_COMPILING = 2_000_000  # edges: importing numba takes a second
Sampled = tuple[Tensor, Tensor]


class NeighborSampler:
    """Samples `fan_out` neighbours per node and hop, the seeds' hop first; -1 takes all.

    With `replace`, neighbours are drawn with replacement and may repeat. `labor` samples as in the module of that name,
    without replacement.
    """

    def __init__(
        self, graph: FeatureGraph, fan_out: Sequence[int], seed: int, *, replace: bool = False, labor: bool = False
    ) -> None:
        self._given, self._fan_out, self._seed = graph, fan_out, seed
        self._graph = graph = graph.beside_edges
        engine = engine_for(graph.indices.numel(), graph.indices.device)
        self._renumbered, self._transpose = engine.renumbering(graph.num_nodes), engine.transpose
        if labor:
            self._sample_neighbors = partial(engine.sample_labor, duplicates=max_duplicates(graph))
        else:
            self._sample_neighbors = partial(engine.sample_neighbors, replace=replace)

    def sample(self, seeds: Tensor, epoch: int, step: int, excluded: Tensor | None = None) -> list[Block]:
        """The blocks in the order of the layers: the outermost first, the one with the nodes `seeds` last.

        `excluded` is passed to `neighbors.sample_neighbors`; LABOR does not support it.
        """
        device = self._graph.indices.device
        absent = () if excluded is None else (excluded.to(device),)
        blocks, nodes = [], seeds.to(device)
        for hop, count in enumerate(self._fan_out):
            key = stream(Purpose.SAMPLING, self._seed, epoch, step, hop)
            offsets, neighbors = self._sample_neighbors(self._graph, nodes, count, key, *absent)
            if hop == len(self._fan_out) - 1:
                blocks.append(Block(self._graph, nodes, offsets, neighbors, columns=neighbors))
            else:
                sources, columns = self._renumbered(nodes, neighbors)
                blocks.append(Block(self._graph, nodes, offsets, neighbors, columns, transpose=self._transpose))
                nodes = sources
        return [block.of(self._given) for block in reversed(blocks)]


@dataclass(frozen=True)
class HeteroSample:
    """The blocks of each hop, the seeds' first, and all nodes of each type.

    The nodes of a type begin with its seeds; every hop appends its new nodes. So the blocks of all hops share one table
    of rows for `nodes`, and the targets of a block are its first rows.
    """

    hops: list[dict[EdgeType, Block]]
    nodes: dict[str, Tensor]  # int64
    targets: list[dict[str, int]]  # of each hop: how many of the nodes were known before it


class HeteroSampler:
    """Samples `fan_out[edge type][hop]` sources per target; -1 takes all. Edge types without a fan-out are ignored.

    Randomness is keyed by (seed, epoch, step, hop, relation, node). `replace` is as for `NeighborSampler`.
    """

    def __init__(
        self, graph: HeteroGraph, fan_out: Mapping[EdgeType, Sequence[int]], seed: int, *, replace: bool = False
    ) -> None:
        self._graph, self._fan_out, self._seed, self._replace = graph, fan_out, seed, replace
        self._hops = max(len(counts) for counts in fan_out.values())
        self._numbers = {edge_type: number for number, edge_type in enumerate(graph.indptr)}
        edges = list(graph.indices.values())
        engine = engine_for(sum(map(len, edges)), edges[0].device)
        self._sample_neighbors, self._transpose = engine.sample_neighbors, engine.transpose
        self._renumbered = {node_type: engine.renumbering(count) for node_type, count in graph.num_nodes.items()}

    def sample(
        self, seeds: Mapping[str, Tensor], epoch: int, step: int, excluded: Mapping[EdgeType, Tensor] | None = None
    ) -> HeteroSample:
        """The neighbourhood of these nodes (int64, by type).

        The `excluded` edges of each type are passed to `neighbors.sample_neighbors`.
        """
        empty = next(iter(seeds.values())).new_empty(0)
        nodes = {node_type: seeds.get(node_type, empty) for node_type in self._graph.num_nodes}
        hops, known = [], []
        for hop in range(self._hops):
            known.append({node_type: len(own) for node_type, own in nodes.items()})
            found = {}
            for edge_type, counts in self._fan_out.items():
                if hop < len(counts) and counts[hop] != 0:
                    key = stream(Purpose.SAMPLING, self._seed, epoch, step, hop, self._numbers[edge_type])
                    relation, absent = self._graph.relation(edge_type), (excluded or {}).get(edge_type)
                    found[edge_type] = self._sample_neighbors(
                        relation, nodes[edge_type[2]], counts[hop], key, absent, replace=self._replace
                    )
            blocks, targets = {}, nodes
            nodes = dict(nodes)
            # The relations from one type of sources share its table of rows, so they are renumbered together.
            for source in dict.fromkeys(edge_type[0] for edge_type in found):
                sampled = {
                    edge_type: neighbors for edge_type, (_, neighbors) in found.items() if edge_type[0] == source
                }
                nodes[source], columns = self._renumbered[source](nodes[source], torch.cat([*sampled.values()]))
                parts = torch.split(columns, [neighbors.numel() for neighbors in sampled.values()])
                for edge_type, own_columns in zip(sampled, parts, strict=True):
                    offsets, neighbors = found[edge_type]
                    relation = self._graph.relation(edge_type)
                    own = targets[edge_type[2]]
                    blocks[edge_type] = Block(relation, own, offsets, neighbors, own_columns, transpose=self._transpose)
            hops.append(blocks)
        return HeteroSample(hops, nodes, known)


class Engine(NamedTuple):
    """The sampling functions, a factory of `neighbors.renumbered` for a number of nodes, and `blocks.transposed`."""

    sample_neighbors: Callable[..., Sampled]
    sample_labor: Callable[..., Sampled]
    renumbering: Callable[[int], Callable[[Tensor, Tensor], Sampled]]
    transpose: Callable[[Tensor, Tensor, int], Sampled]


def engine_for(edges: int, device: torch.device) -> Engine:
    """The numba engine if it pays off and is installed, otherwise plain torch."""
    if device.type == "cpu" and edges >= WORTH_COMPILING and find_spec("numba") is not None:
        from clusterctl.engine.graph import compiled

        return Engine(
            compiled.sample_neighbors_compiled,
            compiled.sample_labor_compiled,
            compiled.Renumbering,
            compiled.transposed_compiled,
        )
    return Engine(sample_neighbors, sample_labor, lambda _: renumbered, transposed)
