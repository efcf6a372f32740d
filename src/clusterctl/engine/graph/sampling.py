"""Neighbour sampling, uniform or LABOR (`neighbors`): in plain torch, or by numba for large graphs on a CPU.

The sample of a node depends only on (seed, epoch, step, hop, node). Every hop samples every node of the frontier,
including the seeds (as in DGL; PyG samples only nodes that are new to the hop, so a node's neighbours depend on the
rest of its batch).

`StaticSampler` has the same samples in tensors of sizes known in advance, so that sampling never synchronizes with the
GPU. Every target has as many slots as the fan-out; slots without a neighbour are padding. A node that is reached twice
is computed twice, with the same neighbours and dropout, because both are keyed by the node. So the result equals that
of the blocks of `NeighborSampler`, at the cost of some extra rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from clusterctl.engine.graph.blocks import Block, has_numba, transposed, uses_loops
from clusterctl.engine.graph.hashing import Purpose, draws, stream
from clusterctl.engine.graph.hops import HeteroSample
from clusterctl.engine.graph.neighbors import (
    choose,
    choose_labor,
    max_duplicates,
    remaining,
    renumbered,
    sample_labor,
    sample_neighbors,
    sizes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clusterctl.engine.graph.storage import EdgeType, FeatureGraph, Graph, HeteroGraph


WORTH_COMPILING = 2_000_000  # edges: importing numba takes a second
Sampled = tuple[Tensor, Tensor]


class NeighborSampler:
    """Samples `fan_out` neighbours per node and hop, the seeds' hop first; -1 takes all.

    With `replace`, neighbours are drawn with replacement and may repeat. `labor` samples as `sample_labor` does,
    without replacement.
    """

    def __init__(
        self, graph: FeatureGraph, fan_out: Sequence[int], seed: int, *, replace: bool = False, labor: bool = False
    ) -> None:
        self._given, self._fan_out, self._seed = graph, fan_out, seed
        self._graph = graph.beside_edges
        self._replace, self._duplicates = replace, max_duplicates(self._graph) if labor else None
        self._engine: Engine | None = None

    def sample(self, seeds: Tensor, epoch: int, step: int, excluded: Tensor | None = None) -> list[Block]:
        """The blocks in the order of the layers: the outermost first, the one with the nodes `seeds` last.

        `excluded` is passed to `neighbors.sample_neighbors`; LABOR does not support it.
        """
        device = self._graph.indices.device
        self._use(engine_for(self._graph.indices.numel(), device))
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

    def _use(self, engine: Engine) -> None:
        if engine == self._engine:
            return
        self._engine, self._transpose = engine, engine.transpose
        self._renumbered = engine.renumbering(self._graph.num_nodes)
        if self._duplicates is None:
            self._sample_neighbors = partial(engine.sample_neighbors, replace=self._replace)
        else:
            self._sample_neighbors = partial(engine.sample_labor, duplicates=self._duplicates)


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
        self._edges, self._device = sum(map(len, edges)), edges[0].device
        self._engine: Engine | None = None

    def sample(
        self, seeds: Mapping[str, Tensor], epoch: int, step: int, excluded: Mapping[EdgeType, Tensor] | None = None
    ) -> HeteroSample:
        """The neighbourhood of these nodes (int64, by type).

        The `excluded` edges of each type are passed to `neighbors.sample_neighbors`.
        """
        engine = engine_for(self._edges, self._device)
        if engine != self._engine:
            self._engine, sizes = engine, self._graph.num_nodes
            self._renumbered = {node_type: engine.renumbering(count) for node_type, count in sizes.items()}
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
                    found[edge_type] = engine.sample_neighbors(
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
                    blocks[edge_type] = Block(
                        relation, own, offsets, neighbors, own_columns, transpose=engine.transpose
                    )
            hops.append(blocks)
        return HeteroSample(hops, nodes, known)


class Engine(NamedTuple):
    """The sampling functions, a factory of `neighbors.renumbered` for a number of nodes, and `blocks.transposed`."""

    sample_neighbors: Callable[..., Sampled]
    sample_labor: Callable[..., Sampled]
    renumbering: Callable[[int], Callable[[Tensor, Tensor], Sampled]]
    transpose: Callable[[Tensor, Tensor, int], Sampled]


def engine_for(edges: int, device: torch.device) -> Engine:
    """The numba engine if it pays off and is installed, otherwise plain torch.

    It may begin to pay off when other loops are compiled; both give the same samples.
    """
    if device.type == "cpu" and (uses_loops() or (edges >= WORTH_COMPILING and has_numba())):
        from clusterctl.engine.graph import compiled

        return Engine(
            compiled.sample_neighbors_compiled,
            compiled.sample_labor_compiled,
            compiled.Renumbering,
            compiled.transposed_compiled,
        )
    return Engine(sample_neighbors, sample_labor, _plain_renumbering, transposed)


def _plain_renumbering(nodes: int) -> Callable[[Tensor, Tensor], Sampled]:  # noqa: ARG001 - of an `Engine`
    return renumbered


_MOST_ROWS = 1 << 20  # per layer: beyond this, duplicate work costs more than synchronization


def worth_static(device: torch.device, fan_out: Sequence[int], batch_size: int) -> bool:
    """Whether blocks of known sizes pay off for batches of `batch_size` seeds."""
    rows = batch_size
    for count in fan_out[:-1]:
        rows *= 1 + count
    return device.type == "cuda" and min(fan_out) >= 0 and rows <= _MOST_ROWS


@dataclass(frozen=True)
class StaticBlock(Block):
    """A block with a fixed number of slots per target: the first `filled` are edges, the others refer to the target.

    In an inner block, slot `j` of target `i` has its own row `targets + i * fan_out + j` of the source table.
    """

    filled: Tensor  # int32 [targets]: slots with an edge
    inner: bool

    @property
    def sampled(self) -> Tensor:
        return self.filled

    @property
    def edge_mask(self) -> Tensor:
        places = torch.arange(self._fan_out, device=self.filled.device)
        return (places < self.filled[:, None]).flatten()

    @property
    def rows(self) -> Tensor:
        """Self loops refer to the target's own row; in an inner block `columns` would refer to an equal copy of it."""
        targets = torch.arange(self.nodes.numel(), dtype=torch.int32, device=self.nodes.device)[:, None]
        loops = self.neighbors.view(-1, self._fan_out) == self.nodes[:, None]
        return torch.where(loops, targets, self.columns.view(-1, self._fan_out)).flatten()

    def padded(self) -> StaticBlock:
        return self

    def mean(self, table: Tensor) -> Tensor:
        sums = self.weighted_sum(table, table.new_ones(self.columns.numel()))
        return sums / self.filled.clamp(min=1)[:, None].to(table.dtype)

    def weighted_sum(self, table: Tensor, weights: Tensor) -> Tensor:
        weights = weights * self.edge_mask
        if not self.inner:
            return super().weighted_sum(table, weights)
        targets = self.nodes.numel()
        rows = table[targets:].view(targets, self._fan_out, table.size(1))
        return torch.bmm(weights.view(targets, 1, self._fan_out), rows).squeeze(1)

    @property
    def _fan_out(self) -> int:
        return self.neighbors.numel() // max(1, self.nodes.numel())


class StaticSampler:
    """Like `NeighborSampler`, but a fan-out cannot be -1."""

    def __init__(
        self, graph: Graph, fan_out: Sequence[int], seed: int, *, replace: bool = False, labor: bool = False
    ) -> None:
        self._graph, self._fan_out, self._seed, self._replace = graph, fan_out, seed, replace
        self._duplicates = max_duplicates(graph) if labor else None

    def sample(self, seeds: Tensor, epoch: int, step: int) -> list[StaticBlock]:
        """The blocks in the order of the layers, as in `NeighborSampler`."""
        blocks, nodes = [], seeds
        for hop, count in enumerate(self._fan_out):
            key = stream(Purpose.SAMPLING, self._seed, epoch, step, hop)
            sampled, neighbors = self._neighbors(nodes, count, key)
            inner = hop < len(self._fan_out) - 1
            targets = nodes.numel()
            offsets = torch.arange(targets + 1, dtype=torch.int32, device=nodes.device) * count
            own = torch.arange(targets, targets + neighbors.numel(), dtype=torch.int32, device=nodes.device)
            columns = own if inner else neighbors
            blocks.append(StaticBlock(self._graph, nodes, offsets, neighbors, columns, sampled, inner))
            nodes = torch.cat([nodes, neighbors.to(torch.int64)])
        return blocks[::-1]

    def _neighbors(self, nodes: Tensor, count: int, key: int) -> tuple[Tensor, Tensor]:
        """How many of `count` slots each node fills, and the node in every slot [nodes * count], both int32."""
        start, degree = remaining(self._graph, nodes, None)
        sampled = sizes(degree, count, self._replace).to(torch.int32)
        if count == 0 or self._graph.indices.numel() == 0:
            return sampled, nodes.to(torch.int32).repeat_interleave(count, output_size=nodes.numel() * count)
        places = torch.arange(count, device=nodes.device)[:, None]
        # Every node draws, also one that takes all of its neighbours: to leave it out would need its size on the host.
        enough = degree.clamp(min=1 if self._replace else count + 1)
        if self._duplicates is None:
            drawn = choose(enough, count, draws(key, nodes), replace=self._replace)
        else:
            drawn = choose_labor(self._graph, start, degree, count, key, self._duplicates)
        picks = drawn if self._replace else torch.where(degree > count, drawn, places)
        is_edge = places < sampled
        found = self._graph.indices.index_select(0, ((start + picks) * is_edge).T.flatten())
        return sampled, torch.where(is_edge.T, found.view(-1, count), nodes.to(torch.int32)[:, None]).flatten()
