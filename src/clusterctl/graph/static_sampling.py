"""The same samples in tensors whose sizes are known beforehand: a GPU's host asks it for nothing.

Every target has as many places as the fan-out, and those without a neighbour count for nothing. Nodes that are reached
twice are computed twice, from the same neighbours and with the same dropout, as both are keyed by the node: the result
is that of the blocks of `sampling`, at the cost of some more rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clusterctl.graph.blocks import Block
from clusterctl.graph.hashing import Purpose, draws, stream
from clusterctl.graph.labor import choose_labor, most_copies
from clusterctl.graph.neighbors import choose, remaining, sizes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.graph.storage import Graph


_MOST_ROWS = 1 << 20  # of a layer: beyond, what is computed twice weighs more than waiting


def worth_static(device: torch.device, fan_out: Sequence[int], batch_size: int) -> bool:
    """Whether blocks of known sizes suit batches of so many seeds."""
    rows = batch_size
    for count in fan_out[:-1]:
        rows *= 1 + count
    return device.type == "cuda" and min(fan_out) >= 0 and rows <= _MOST_ROWS


@dataclass(frozen=True)
class StaticBlock(Block):
    """A block of equally many places a target, of which the first `filled` are edges; the others name the target.

    In an inner block place `j` of target `i` has row `targets + i * fan_out + j` of the source table to itself.
    """

    filled: Tensor  # int32 [targets]: places with an edge
    inner: bool

    @property
    def sampled(self) -> Tensor:
        return self.filled

    @property
    def counted(self) -> Tensor:
        places = torch.arange(self._fan_out, device=self.filled.device)
        return (places < self.filled[:, None]).flatten()

    @property
    def rows(self) -> Tensor:
        """Inner blocks compute the target's own row again for such an edge, to the same values."""
        targets = torch.arange(self.nodes.numel(), dtype=torch.int32, device=self.nodes.device)[:, None]
        loops = self.neighbors.view(-1, self._fan_out) == self.nodes[:, None]
        return torch.where(loops, targets, self.columns.view(-1, self._fan_out)).flatten()

    def padded(self) -> StaticBlock:
        return self

    def mean(self, table: Tensor) -> Tensor:
        sums = self.weighted_sum(table, table.new_ones(self.columns.numel()))
        return sums / self.filled.clamp(min=1)[:, None].to(table.dtype)

    def weighted_sum(self, table: Tensor, weights: Tensor) -> Tensor:
        weights = weights * self.counted
        if not self.inner:
            return super().weighted_sum(table, weights)
        targets = self.nodes.numel()
        rows = table[targets:].view(targets, self._fan_out, table.size(1))
        return torch.bmm(weights.view(targets, 1, self._fan_out), rows).squeeze(1)

    @property
    def _fan_out(self) -> int:
        return self.neighbors.numel() // max(1, self.nodes.numel())


class StaticSampler:
    """As `sampling.NeighborSampler`, for fan-outs that are not -1."""

    def __init__(
        self, graph: Graph, fan_out: Sequence[int], seed: int, *, replace: bool = False, labor: bool = False
    ) -> None:
        self._graph, self._fan_out, self._seed, self._replace = graph, fan_out, seed, replace
        self._copies = most_copies(graph) if labor else None

    def sample(self, seeds: Tensor, epoch: int, step: int) -> list[StaticBlock]:
        """The blocks in the order of the layers, as from `NeighborSampler`."""
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
        """How many of `count` places each node fills, and the node in every place [nodes * count], both int32."""
        start, degree = remaining(self._graph, nodes, None)
        sampled = sizes(degree, count, self._replace).to(torch.int32)
        if count == 0 or self._graph.indices.numel() == 0:
            return sampled, nodes.to(torch.int32).repeat_interleave(count, output_size=nodes.numel() * count)
        places = torch.arange(count, device=nodes.device)[:, None]
        enough = degree.clamp(min=1 if self._replace else count + 1)
        if self._copies is None:
            drawn = choose(enough, count, draws(key, nodes), replace=self._replace)
        else:
            drawn = choose_labor(self._graph, start, degree, count, key, self._copies)
        picks = drawn if self._replace else torch.where(degree > count, drawn, places)
        is_edge = places < sampled
        found = self._graph.indices.index_select(0, ((start + picks) * is_edge).T.flatten())
        return sampled, torch.where(is_edge.T, found.view(-1, count), nodes.to(torch.int32)[:, None]).flatten()
