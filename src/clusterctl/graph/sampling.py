"""Neighbour sampling, uniform: in plain torch (`neighbors`), on large graphs on a CPU by numba (`compiled`).

What is sampled for a node depends on (seed, epoch, step, hop, node) alone. Every node of a frontier is sampled at every
hop, the seeds too (as DGL does; PyG samples only nodes that are new to the hop, which makes a node's neighbours depend
on the rest of its batch).
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from clusterctl.graph.blocks import Block
from clusterctl.graph.hashing import Purpose, stream
from clusterctl.graph.neighbors import renumbered, sample_neighbors

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor

    from clusterctl.graph.storage import Graph


_WORTH_COMPILING = 2_000_000  # edges: the import of numba takes a second


class NeighborSampler:
    """Samples `fan_out` neighbours a node and hop, the seeds' hop first; -1 takes all.

    With `replace` every neighbour is drawn from all of them, so that one may come more than once.
    """

    def __init__(self, graph: Graph, fan_out: Sequence[int], seed: int, *, replace: bool = False) -> None:
        self._graph, self._fan_out, self._seed, self._replace = graph, fan_out, seed, replace
        self._sample_neighbors, self._renumbered = sample_neighbors, renumbered
        if worth_compiling(graph.indices.numel(), graph.indices.device):
            from clusterctl.graph.compiled import Renumbering, sample_neighbors_compiled  # numba is optional

            self._sample_neighbors, self._renumbered = sample_neighbors_compiled, Renumbering(graph.num_nodes)

    def sample(self, seeds: Tensor, epoch: int, step: int) -> list[Block]:
        """The blocks in the order of the layers: the outermost first, the last one's nodes are `seeds`."""
        blocks, nodes = [], seeds
        for hop, count in enumerate(self._fan_out):
            key = stream(Purpose.SAMPLING, self._seed, epoch, step, hop)
            offsets, neighbors = self._sample_neighbors(self._graph, nodes, count, key, replace=self._replace)
            if hop == len(self._fan_out) - 1:
                blocks.append(Block(self._graph, nodes, offsets, neighbors, columns=neighbors))
            else:
                sources, columns = self._renumbered(nodes, neighbors)
                blocks.append(Block(self._graph, nodes, offsets, neighbors, columns))
                nodes = sources
        return blocks[::-1]


def worth_compiling(edges: int, device: torch.device) -> bool:
    """Whether sampling from so many edges should be numba's work, and can be."""
    return device.type == "cpu" and edges >= _WORTH_COMPILING and find_spec("numba") is not None
