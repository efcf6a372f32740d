"""Sampling as in the Heterogeneous Graph Transformer (Hu et al., WWW 2020), for PyG's HGTLoader.

A node that the sample may grow to has a budget: the sum, over its edges to sampled nodes, of 1 / degree of the target.
Each iteration draws a number of nodes per type without replacement, by the squares of their budgets. As in
torch-sparse, at most 50 random edges of each target count, for the budgets and in the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.sampler import BaseSampler, HeteroSamplerOutput
from torch_geometric.sampler.utils import to_hetero_csc

from clusterctl.engine.graph.blocks import rows_of
from clusterctl.engine.graph.hashing import EpochKey, Purpose, digest, stream
from clusterctl.engine.graph.neighbors import Draw
from clusterctl.engine.graph.pyg.inputs import check_edges
from clusterctl.engine.graph.pyg.relation import Relation, kernels, sample_edges, sample_weighted
from clusterctl.engine.graph.pyg.sampler import examples_of
from clusterctl.engine.graph.pyg.walk import Edges, TypedGraph

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_geometric.sampler import NodeSamplerInput

    from clusterctl.engine.graph.storage import EdgeType

_MOST_EDGES = 50


class PygHgtSampler(BaseSampler):  # type: ignore[misc]
    """Samples `num_samples` nodes of each type in each iteration, like PyG's HGTSampler."""

    def __init__(
        self,
        data: HeteroData,
        num_samples: Sequence[int] | Mapping[str, Sequence[int]],
        is_sorted: bool = False,
        share_memory: bool = False,
    ) -> None:
        if not isinstance(data, HeteroData):
            raise NotImplementedError(f"HGTSampler does not support a data object of type {type(data)}.")
        check_edges(data)
        self.node_types, self.edge_types = data.metadata()
        by_type: dict[str, Any] = dict(
            num_samples if isinstance(num_samples, Mapping) else dict.fromkeys(self.node_types, num_samples)
        )
        missing = sorted(set(self.node_types) - set(by_type))
        if missing:
            raise ValueError(f"num_samples has no entry for these node types: {', '.join(missing)}")
        if unknown := sorted(set(by_type) - set(self.node_types)):
            known = ", ".join(self.node_types)
            raise ValueError(f"num_samples has {', '.join(unknown)}, and the node types are {known}")
        self.num_samples = by_type
        self.num_hops = max(map(len, by_type.values()))
        offsets, sources, self.perm = to_hetero_csc(data, device="cpu", share_memory=share_memory, is_sorted=is_sorted)
        relations = {edge_type: Relation(offsets[edge_type], sources[edge_type]) for edge_type in self.edge_types}
        self._graph = TypedGraph(
            {node_type: int(data[node_type].num_nodes) for node_type in self.node_types},
            relations,
            kernels(sum(relation.indices.numel() for relation in relations.values())),
        )
        self._epoch = EpochKey()

    def begin_epoch(self) -> None:
        """Like `PygNeighborSampler.begin_epoch`."""
        self._epoch.begin()

    def sample_from_nodes(self, inputs: NodeSamplerInput, **_: Any) -> HeteroSamplerOutput:
        """The sample around the seed nodes, which come first among the nodes of their type."""
        key = stream(Purpose.SAMPLING, self._epoch.value(), digest(examples_of(inputs.input_id, inputs.node)))
        sample = _Growing(self._graph, key)
        sample.add(0, {inputs.input_type: inputs.node.to(torch.int64)})
        for hop in range(self.num_hops):
            drawn = {
                node_type: sample.drawn(node_type, counts[hop] if hop < len(counts) else 0, hop)
                for node_type, counts in self.num_samples.items()
            }
            sample.add(hop + 1, drawn)
        edges = {edge_type: sample.edges(edge_type) for edge_type in self.edge_types}
        return HeteroSamplerOutput(
            node={node_type: found.ids for node_type, found in sample.found.items()},
            row={edge_type: own.sources for edge_type, own in edges.items()},
            col={edge_type: own.targets for edge_type, own in edges.items()},
            edge={edge_type: own.places for edge_type, own in edges.items()},
            batch=None,
            metadata=(inputs.input_id, inputs.time),
        )

    def sample_from_edges(self, *_: Any, **__: Any) -> NoReturn:
        """Raise NotImplementedError, as PyG's HGTSampler cannot sample from edges either."""
        raise NotImplementedError("HGTSampler does not sample from edges")

    @property
    def edge_permutation(self) -> dict[EdgeType, Tensor | None]:
        """The index in the data of each edge sampled from."""
        return self.perm  # type: ignore[no-any-return]


@dataclass
class _Budget:
    nodes: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))  # ascending
    values: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.float64))

    def add(self, nodes: Tensor, shares: Tensor) -> None:
        self.nodes, rows = torch.unique(torch.cat([self.nodes, nodes]), return_inverse=True)
        summed = torch.zeros(self.nodes.numel(), dtype=torch.float64)
        self.values = summed.index_add_(0, rows, torch.cat([self.values, shares]))

    def keep(self, kept: Tensor) -> None:
        self.nodes, self.values = self.nodes[kept], self.values[kept]


class _Growing:
    """The sample under construction."""

    def __init__(self, graph: TypedGraph, key: int) -> None:
        self._graph, self._key = graph, key
        self.found = {name: graph.by.numbering(torch.empty(0, dtype=torch.int64)) for name in graph.num_nodes}
        self._budgets = {name: _Budget() for name in graph.num_nodes}

    def drawn(self, node_type: str, count: int, hop: int) -> Tensor:
        """Nodes drawn by their budgets, in the order of the draw."""
        budget = self._budgets[node_type]
        start, size = torch.zeros(1, dtype=torch.int64), torch.tensor([budget.nodes.numel()])
        key = stream(Purpose.SAMPLING, self._key, hop, list(self._budgets).index(node_type), 1)
        _, places = sample_weighted(budget.values**2, start, size, start, count, key, self._graph.by.first)
        return budget.nodes[places]

    def add(self, hop: int, nodes: Mapping[str, Tensor]) -> None:
        """Add nodes to the sample, and what their edges contribute to the budgets."""
        for node_type, new in nodes.items():
            known = len(self.found[node_type])
            if known:
                self.found[node_type].add(new)
            else:
                self.found[node_type] = self._graph.by.numbering(new)  # seeds may repeat
            self._budgets[node_type].keep(self.found[node_type].find(self._budgets[node_type].nodes) < 0)
        for number, (edge_type, relation) in enumerate(self._graph.relations.items()):
            source, _, target = edge_type
            if target in nodes:
                offsets, places = self._edges_of(relation, nodes[target], hop, number)
                degree = offsets.diff()
                sources = relation.indices[places].to(torch.int64)
                shares = (1 / degree.to(torch.float64)).repeat_interleave(degree, output_size=places.numel())
                unseen = self.found[source].find(sources) < 0
                self._budgets[source].add(sources[unseen], shares[unseen])

    def edges(self, edge_type: EdgeType) -> Edges:
        """Edges among the nodes of the sample, by target."""
        source, _, target = edge_type
        relation, nodes = self._graph.relations[edge_type], self.found[target].ids
        offsets, places = self._edges_of(relation, nodes, -1, list(self._graph.relations).index(edge_type))
        rows = self.found[source].find(relation.indices[places].to(torch.int64))
        targets = rows_of(offsets, places.numel())
        inside = rows >= 0
        return Edges(rows[inside], targets[inside], places[inside])

    def _edges_of(self, relation: Relation, nodes: Tensor, hop: int, number: int) -> tuple[Tensor, Tensor]:
        draw = Draw(_MOST_EDGES, stream(Purpose.SAMPLING, self._key, hop, number), replace=False)
        return sample_edges(relation, nodes, nodes, None, draw, self._graph.by)
