"""Our sampling behind PyG's own loaders, which else need pyg-lib or torch-sparse: neither has a wheel on PyPI.

    from torch_geometric.loader import LinkLoader, NodeLoader

    sampler = PygNeighborSampler(data, [25, 10])
    for batch in NodeLoader(data, sampler, input_nodes=data.train_mask, batch_size=1024, shuffle=True): ...

PyG's rules hold here: a hop samples only nodes that the hop before found first (ours, in `sampling`, samples all of the
frontier again); randomness comes from torch's generator (`torch.manual_seed`; loader workers have their own); negatives
of link loaders are PyG's, which may be positives, and seed edges are not left out of the messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.sampler import BaseSampler, HeteroSamplerOutput, NumNeighbors, SamplerOutput
from torch_geometric.sampler.neighbor_sampler import edge_sample, node_sample

from clusterctl.graph.blocks import Adjacency
from clusterctl.graph.neighbors import renumbered, sample_positions
from clusterctl.graph.storage import row_offsets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch_geometric.data import HeteroData
    from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling, NodeSamplerInput

    from clusterctl.graph.storage import EdgeType

Counts = list[int]  # a hop
_ONLY = ""  # the node type of a graph that has one
_HOMOGENEOUS: EdgeType = (_ONLY, _ONLY, _ONLY)


class PygNeighborSampler(BaseSampler):  # type: ignore[misc]
    """Samples neighbours in a PyG Data or HeteroData, uniformly; -1 takes all.

    `num_neighbors` and `replace` as for PyG's NeighborLoader: counts a hop, or those of each edge type; with `replace`
    as many of every node that has a neighbour, each drawn from all of them.
    """

    def __init__(
        self, data: Data | HeteroData, num_neighbors: Counts | Mapping[EdgeType, Counts], replace: bool = False
    ) -> None:
        counts = NumNeighbors(num_neighbors)
        self._replace = replace
        self._homogeneous = isinstance(data, Data)
        if self._homogeneous:
            self._num_nodes = {_ONLY: int(data.num_nodes)}
            edges = {_HOMOGENEOUS: data.edge_index}
            self._counts = {_HOMOGENEOUS: counts.get_values()}
        else:
            self._num_nodes = {node_type: int(data[node_type].num_nodes) for node_type in data.node_types}
            edges = {edge_type: data[edge_type].edge_index for edge_type in data.edge_types}
            self._counts = counts.get_values(data.edge_types)
        self._hops = counts.num_hops
        self._relations, self._order = {}, {}
        for edge_type, (sources, targets) in edges.items():
            order = (targets * self._num_nodes[edge_type[0]] + sources).argsort(stable=True)
            indptr = row_offsets(targets, self._num_nodes[edge_type[2]])
            self._relations[edge_type] = Adjacency(indptr, sources[order].to(torch.int32))
            self._order[edge_type] = order

    def sample_from_nodes(self, index: NodeSamplerInput, **_: Any) -> SamplerOutput | HeteroSamplerOutput:
        """The neighbourhood of the seed nodes."""
        return node_sample(index, self._sample)

    def sample_from_edges(
        self, index: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None, **_: Any
    ) -> SamplerOutput | HeteroSamplerOutput:
        """The neighbourhood of the seed edges' ends, and of negatives if asked for."""
        num_nodes = self._num_nodes[_ONLY] if self._homogeneous else self._num_nodes
        return edge_sample(index, self._sample, num_nodes, False, None, neg_sampling)

    @property
    def edge_permutation(self) -> Tensor | dict[EdgeType, Tensor]:
        """From the places of the edges here to those in `edge_index`."""
        return self._order[_HOMOGENEOUS] if self._homogeneous else self._order

    def _sample(self, seed: Tensor | dict[str, Tensor], seed_time: Any = None) -> SamplerOutput | HeteroSamplerOutput:
        if seed_time is not None and seed_time != {}:
            raise ValueError("sampling by time is not supported: leave input_time and edge_label_time out")
        found = self._walk({_ONLY: seed} if isinstance(seed, Tensor) else seed)
        if not self._homogeneous:
            return HeteroSamplerOutput(**found)
        return SamplerOutput(**{name: next(iter(by_type.values())) for name, by_type in found.items()})

    def _walk(self, seeds: dict[str, Tensor]) -> dict[str, dict[Any, Any]]:
        """What was sampled, by PyG's names for it and by type: sources are `row` and targets `col`."""
        none = torch.empty(0, dtype=torch.int64)
        nodes = {node_type: seeds.get(node_type, none) for node_type in self._num_nodes}
        new = dict(nodes)
        nodes_by_hop = {node_type: [found.numel()] for node_type, found in nodes.items()}
        parts: dict[EdgeType, list[tuple[Tensor, Tensor, Tensor]]] = {edge_type: [] for edge_type in self._relations}
        for hop in range(self._hops):
            key = int(torch.randint(torch.iinfo(torch.int64).max, ()))
            first = {node_type: nodes[node_type].numel() - new[node_type].numel() for node_type in nodes}
            before = {node_type: known.numel() for node_type, known in nodes.items()}
            for number, (edge_type, relation) in enumerate(self._relations.items()):
                source, _, target = edge_type
                count = self._counts[edge_type][hop]
                offsets, places = sample_positions(relation, new[target], count, key + number, replace=self._replace)
                rows = torch.arange(new[target].numel()) + first[target]
                nodes[source], columns = renumbered(nodes[source], relation.indices[places])
                reached = rows.repeat_interleave(offsets.diff(), output_size=places.numel())
                parts[edge_type].append((columns.to(torch.int64), reached, places))
            new = {node_type: known[before[node_type] :] for node_type, known in nodes.items()}
            for node_type, fresh in new.items():
                nodes_by_hop[node_type].append(fresh.numel())
        return {
            "node": nodes,
            "row": {edge_type: torch.cat([columns for columns, _, _ in hops]) for edge_type, hops in parts.items()},
            "col": {edge_type: torch.cat([reached for _, reached, _ in hops]) for edge_type, hops in parts.items()},
            "edge": {edge_type: torch.cat([places for _, _, places in hops]) for edge_type, hops in parts.items()},
            "num_sampled_nodes": nodes_by_hop,
            "num_sampled_edges": {
                edge_type: [len(places) for _, _, places in hops] for edge_type, hops in parts.items()
            },
        }
