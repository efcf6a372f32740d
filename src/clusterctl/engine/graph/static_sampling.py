"""The same samples in tensors of sizes known in advance, so that sampling never synchronizes with the GPU.

Every target has as many slots as the fan-out; slots without a neighbour are padding. A node that is reached twice is
computed twice, with the same neighbours and dropout, because both are keyed by the node. So the result equals that of
the blocks of `sampling`, at the cost of some extra rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clusterctl.engine.graph.blocks import Block
from clusterctl.engine.graph.hashing import Purpose, draws, stream
from clusterctl.engine.graph.labor import choose_labor, max_duplicates
from clusterctl.engine.graph.neighbors import choose, remaining, sizes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.engine.graph.storage import Graph


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
    """Like `sampling.NeighborSampler`, but a fan-out cannot be -1."""

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
