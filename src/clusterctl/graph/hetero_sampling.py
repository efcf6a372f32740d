"""Neighbour sampling in heterogeneous graphs, keyed as in `sampling`: by (seed, epoch, step, hop, relation, node)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clusterctl.graph.blocks import Block
from clusterctl.graph.hashing import Purpose, stream
from clusterctl.graph.neighbors import renumbered, sample_neighbors
from clusterctl.graph.sampling import worth_compiling

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.graph.hetero import EdgeType, HeteroGraph


@dataclass(frozen=True)
class HeteroSample:
    """The blocks of each hop, the seeds' first, and all nodes of each type.

    The nodes of a type begin with its seeds; every hop adds its new ones at the end. So one table of rows for `nodes`
    serves the blocks of all hops, and the targets of a block are its first rows.
    """

    hops: list[dict[EdgeType, Block]]
    nodes: dict[str, Tensor]  # int64


class HeteroSampler:
    """Samples `fan_out[edge type][hop]` sources a target; -1 takes all. Edge types without fan-out do not count.

    Every node of a frontier is sampled at every hop, and `replace` means the same, as in `sampling`.
    """

    def __init__(
        self, graph: HeteroGraph, fan_out: Mapping[EdgeType, Sequence[int]], seed: int, *, replace: bool = False
    ) -> None:
        self._graph, self._fan_out, self._seed, self._replace = graph, fan_out, seed, replace
        self._hops = max(len(counts) for counts in fan_out.values())
        self._numbers = {edge_type: number for number, edge_type in enumerate(graph.edge_types)}
        device = next(iter(graph.indices.values())).device
        self._sample_neighbors, self._renumbered = sample_neighbors, dict.fromkeys(graph.num_nodes, renumbered)
        if worth_compiling(graph.num_edges, device):
            from clusterctl.graph.compiled import Renumbering, sample_neighbors_compiled  # numba is optional

            self._sample_neighbors = sample_neighbors_compiled
            self._renumbered = {node_type: Renumbering(count) for node_type, count in graph.num_nodes.items()}

    def sample(
        self, seeds: Mapping[str, Tensor], epoch: int, step: int, excluded: Mapping[EdgeType, Tensor] | None = None
    ) -> HeteroSample:
        """The neighbourhood of these nodes (int64 of each type), without the `excluded` edges of each type.

        Edges are excluded as by `neighbors.sample_neighbors`.
        """
        empty = next(iter(seeds.values())).new_empty(0)
        nodes = {node_type: seeds.get(node_type, empty) for node_type in self._graph.num_nodes}
        hops = []
        for hop in range(self._hops):
            found = {
                edge_type: self._sampled(edge_type, nodes[edge_type[2]], hop, (epoch, step), excluded or {})
                for edge_type, counts in self._fan_out.items()
                if hop < len(counts) and counts[hop] != 0
            }
            blocks, targets = {}, nodes
            nodes = dict(nodes)
            for source in dict.fromkeys(edge_type[0] for edge_type in found):
                sampled = {
                    edge_type: neighbors for edge_type, (_, neighbors) in found.items() if edge_type[0] == source
                }
                nodes[source], columns = self._renumbered[source](nodes[source], torch.cat([*sampled.values()]))
                parts = torch.split(columns, [neighbors.numel() for neighbors in sampled.values()])
                for edge_type, own_columns in zip(sampled, parts, strict=True):
                    offsets, neighbors = found[edge_type]
                    relation = self._graph.relation(edge_type)
                    blocks[edge_type] = Block(relation, targets[edge_type[2]], offsets, neighbors, own_columns)
            hops.append(blocks)
        return HeteroSample(hops, nodes)

    def _sampled(
        self, edge_type: EdgeType, nodes: Tensor, hop: int, when: tuple[int, int], excluded: Mapping[EdgeType, Tensor]
    ) -> tuple[Tensor, Tensor]:
        key = stream(Purpose.SAMPLING, self._seed, *when, hop, self._numbers[edge_type])
        count = self._fan_out[edge_type][hop]
        relation, absent = self._graph.relation(edge_type), excluded.get(edge_type)
        return self._sample_neighbors(relation, nodes, count, key, absent, replace=self._replace)
