"""Sampling along edges in both directions, like PyG's BidirectionalNeighborSampler: homogeneous graphs without times.

Each hop is sampled forward and backward, and PyG's own code merges the two. PyG 2.8 merges numbers of edges in two
different orders, unless the edges are sorted both ways; here they are the numbers in the data.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from torch_geometric.sampler import BidirectionalNeighborSampler, NumNeighbors
from torch_geometric.sampler.base import SubgraphType
from torch_geometric.sampler.neighbor_sampler import edge_sample, node_sample

from clusterctl.engine.graph.pyg.epoch_key import EpochKey
from clusterctl.engine.graph.pyg.sampler import PygNeighborSampler, examples_of

if TYPE_CHECKING:
    from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling, NodeSamplerInput

    from clusterctl.engine.graph.pyg.sampler import Output, Source


class _OneWay(PygNeighborSampler):
    """A sampler that numbers edges as in the data."""

    def _sample(self, *arguments: Any, **keywords: Any) -> Output:
        out = super()._sample(*arguments, **keywords)
        if self.perm is not None:
            out.edge = self.perm[out.edge]
        return out


class PygBidirectionalSampler(BidirectionalNeighborSampler):  # type: ignore[misc]
    """PyG's own merging of hops, over two of our samplers. The arguments are those of PygNeighborSampler."""

    def __init__(
        self,
        data: Source,
        num_neighbors: list[int] | NumNeighbors,
        subgraph_type: SubgraphType | str = "directional",
        replace: bool = False,
        disjoint: bool = False,
        **settings: Any,
    ) -> None:
        counts = num_neighbors.values if isinstance(num_neighbors, NumNeighbors) else num_neighbors
        if isinstance(counts, dict):
            raise RuntimeError("BidirectionalNeighborSampler does not yet support edge delimited sampling.")
        self.forward_sampler, self.backward_sampler = (
            _OneWay(data, num_neighbors, subgraph_type, replace, disjoint, sample_direction=direction, **settings)
            for direction in ("forward", "backward")
        )
        self.num_neighbors = num_neighbors
        self.subgraph_type = SubgraphType(subgraph_type)
        self.keep_orig_edges = False
        self._epoch = EpochKey()

    def begin_epoch(self) -> None:
        """Like `PygNeighborSampler.begin_epoch`."""
        self._epoch.begin()

    @property
    def edge_permutation(self) -> None:
        """None: edges are numbered as in the data."""

    def sample_from_nodes(self, inputs: NodeSamplerInput, **_: Any) -> Output:
        """The neighbourhood of the seed nodes, in both directions."""
        sample = partial(self._sample, examples=examples_of(inputs.input_id, inputs.node), epoch=self._epoch.value())
        return self.forward_sampler.finished(node_sample(inputs, sample))

    def sample_from_edges(
        self, inputs: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None, **_: Any
    ) -> Output:
        """The neighbourhood of the ends of the seed edges, in both directions."""
        if neg_sampling is not None:
            raise RuntimeError("BidirectionalNeighborSampler does not yet support negative sampling.")
        sample = partial(self._sample, examples=examples_of(inputs.input_id, inputs.row), epoch=self._epoch.value())
        number = self.forward_sampler.num_nodes
        return self.forward_sampler.finished(edge_sample(inputs, sample, number, self.disjoint))
