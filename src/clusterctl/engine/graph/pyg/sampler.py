"""Our sampling behind PyG's loaders, which otherwise need pyg-lib or torch-sparse: neither has a wheel on PyPI.

    from torch_geometric.loader import LinkLoader, NodeLoader

    sampler = PygNeighborSampler(data, [25, 10])
    for batch in NodeLoader(data, sampler, input_nodes=data.train_mask, batch_size=1024, shuffle=True): ...

PyG's rules apply here: a hop samples only the nodes that the previous hop discovered (ours, in `sampling`, samples the
whole frontier again); randomness comes from torch's generator (`torch.manual_seed`); negatives of link loaders are
PyG's, which may be positives, and seed edges still carry messages. PyG's own code reads and validates the data. `pyg`
has loaders that create this sampler themselves.

PygBidirectionalSampler samples along edges in both directions, like PyG's BidirectionalNeighborSampler: homogeneous
graphs without times. Each hop is sampled forward and backward, and PyG's own code merges the two. PyG 2.8 merges
numbers of edges in two different orders, unless the edges are sorted both ways; here they are the numbers in the data.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch_geometric.typing
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import BidirectionalNeighborSampler, HeteroSamplerOutput, NumNeighbors, SamplerOutput
from torch_geometric.sampler import NeighborSampler as PygOwnSampler
from torch_geometric.sampler.base import SubgraphType
from torch_geometric.sampler.neighbor_sampler import edge_sample, node_sample
from torch_geometric.sampler.utils import remap_keys, reverse_edge_type

from clusterctl.engine.graph.hashing import EpochKey, Purpose, digest, draws, stream
from clusterctl.engine.graph.pyg.inputs import check_attribute, check_edges, check_times
from clusterctl.engine.graph.pyg.relation import Relation, Times, checked_weights, kernels, summed_levels
from clusterctl.engine.graph.pyg.walk import Trees, TypedGraph, induced, walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch_geometric.data import FeatureStore, GraphStore
    from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling, NodeSamplerInput

    from clusterctl.engine.graph.pyg.walk import Neighborhood
    from clusterctl.engine.graph.storage import EdgeType

    Source: TypeAlias = Data | HeteroData | tuple[FeatureStore, GraphStore]
    Counts: TypeAlias = list[int] | Mapping[EdgeType, list[int]]


Output: TypeAlias = SamplerOutput | HeteroSamplerOutput
_ONLY = ""  # the node type of a homogeneous graph
_HOMOGENEOUS: EdgeType = (_ONLY, _ONLY, _ONLY)


class PygNeighborSampler(PygOwnSampler):  # type: ignore[misc]
    """Samples neighbours in a PyG Data, a HeteroData, or a pair of stores; -1 takes all.

    The arguments are those of PyG's NeighborSampler. Where pyg-lib and torch-sparse differ, this follows pyg-lib.
    With `sample_direction="backward"` a hop goes from nodes to the targets of their edges.
    """

    def __init__(
        self,
        data: Source,
        num_neighbors: Counts,
        subgraph_type: SubgraphType | str = "directional",
        replace: bool = False,
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        is_sorted: bool = False,
        share_memory: bool = False,
        directed: bool = True,
        sample_direction: str = "forward",
    ) -> None:
        check_edges(data)
        check_attribute(data, time_attr, of_nodes=True)
        check_attribute(data, weight_attr, of_nodes=False)
        self._is_backward = sample_direction == "backward"
        if self._is_backward:  # PyG 2.8 takes the rows of an `adj_t` for its offsets then
            stores = data.edge_stores if isinstance(data, Data | HeteroData) else []
            if any("adj_t" in store for store in stores):
                raise ValueError("sample_direction='backward' needs graphs with edge_index, not adj_t")
        if self._is_backward and isinstance(data, HeteroData):  # PyG 2.8 sets this for stores only, but reads it
            self.to_backward_edge_type = {edge_type: reverse_edge_type(edge_type) for edge_type in data.edge_types}
        with _as_with_pyg_lib():
            super().__init__(
                data,
                num_neighbors,
                subgraph_type=subgraph_type,
                replace=replace,
                disjoint=disjoint,
                temporal_strategy=temporal_strategy,
                time_attr=time_attr,
                weight_attr=weight_attr,
                is_sorted=is_sorted,
                share_memory=share_memory,
                directed=directed,
                sample_direction=sample_direction,
            )
        for times in (self.node_time, self.edge_time):
            check_times(times, str(time_attr))
        if self._is_backward and isinstance(data, HeteroData) and weight_attr is not None:
            self.edge_weight = self._backward_weights(data.collect(weight_attr))
        if self.temporal_strategy not in ("uniform", "last"):
            raise RuntimeError("No valid temporal strategy found")
        if self.edge_weight is not None and self.is_temporal:
            by = "" if self.is_hetero else "edge " if self.node_time is None else "node "
            raise RuntimeError(f"Biased {by}temporal sampling not yet supported")
        self._epoch = EpochKey()
        self._graph = self._typed_graph()

    def begin_epoch(self) -> None:
        """Draw the key of all samples up to the next call, from torch's generator."""
        self._epoch.begin()

    def sample_from_nodes(self, inputs: NodeSamplerInput, **_: Any) -> Output:
        """The neighbourhood of the seed nodes."""
        examples = examples_of(inputs.input_id, inputs.node)
        return self.finished(node_sample(inputs, partial(self._sample, examples=examples, epoch=self._epoch.value())))

    def sample_from_edges(
        self, inputs: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None, **_: Any
    ) -> Output:
        """The neighbourhood of the ends of the seed edges, and of negatives if requested."""
        examples, epoch = examples_of(inputs.input_id, inputs.row), self._epoch.value()
        sample = partial(self._sample, examples=examples, epoch=epoch)
        with torch.random.fork_rng(devices=[]):  # PyG draws negatives from torch's generator
            torch.default_generator.manual_seed(stream(Purpose.NEGATIVES, epoch, digest(examples)))
            return self.finished(
                edge_sample(inputs, sample, self.num_nodes, self.disjoint, self.node_time, neg_sampling)
            )

    def finished(self, out: Output) -> Output:
        """The output with edges in both directions if the subgraph is bidirectional."""
        if self.subgraph_type == SubgraphType.bidirectional:
            return out.to_bidirectional(keep_orig_edges=self.keep_orig_edges)
        return out

    @property
    def edge_permutation(self) -> Tensor | dict[EdgeType, Tensor | None] | None:
        """The index in the data of each edge sampled from, per edge type of the data."""
        if self._is_backward and self.is_hetero:
            return remap_keys(self.perm, self.to_restored_edge_type)  # type: ignore[no-any-return]
        return self.perm  # type: ignore[no-any-return]

    def _backward_weights(self, weights: Mapping[EdgeType, Tensor]) -> dict[str, Tensor]:
        found = {}
        for edge_type, values in weights.items():
            backward = reverse_edge_type(edge_type)
            order = self.perm[backward]
            found[self.to_rel_type[backward]] = values if order is None else values[order]
        return found

    def _typed_graph(self) -> TypedGraph:
        if not self.is_hetero:
            times = None
            if self.is_temporal:
                times = self._times(self.edge_time if self.node_time is None else self.node_time)
            weights: Any = self.edge_weight
            relation = Relation(self.colptr, self.row, times, *self._weights(weights, self.colptr))
            return TypedGraph({_ONLY: int(self.num_nodes)}, {_HOMOGENEOUS: relation}, kernels(self.row.numel()))
        relations = {}
        for edge_type in self.edge_types:
            name = self.to_rel_type[edge_type]
            time = (self.edge_time or {}).get(name) if self.node_time is None else self.node_time.get(edge_type[0])
            indptr = self.colptr_dict[name]
            weights = self._weights((self.edge_weight or {}).get(name), indptr)
            relations[edge_type] = Relation(indptr, self.row_dict[name], self._times(time), *weights)
        edges = sum(relation.indices.numel() for relation in relations.values())
        return TypedGraph(self.num_nodes, relations, kernels(edges))

    def _times(self, values: Tensor | None) -> Times | None:
        return None if values is None else Times(values, self.node_time is not None, self.temporal_strategy == "last")

    def _weights(self, weights: Tensor | None, indptr: Tensor) -> tuple[Tensor | None, Tensor | None]:
        if weights is None:
            return None, None
        weights = checked_weights(weights)
        return weights, summed_levels(weights, indptr) if self.replace else None

    def _sample(
        self,
        seed: Tensor | dict[str, Tensor],
        seed_time: Tensor | dict[str, Tensor] | None = None,
        *,
        examples: Tensor,
        epoch: int,
    ) -> Output:
        """The sample function for PyG's loaders and `edge_sample`; `examples` are indices of the loader's inputs."""
        is_induced = self.subgraph_type == SubgraphType.induced
        if self.disjoint and is_induced:
            raise ValueError("'disjoint' sampling not supported for neighbor sampling with `subgraph_type='induced'`")
        seeds = {_ONLY: seed} if isinstance(seed, Tensor) else seed
        trees, key = None, stream(Purpose.SAMPLING, epoch, digest(examples))
        if self.disjoint:
            number = torch.arange(sum(nodes.numel() for nodes in seeds.values()))
            own_example = examples[number % examples.numel()] if number.numel() else number
            keys = draws(0, number // max(examples.numel(), 1)) + own_example
            trees = Trees(draws(0, keys), self._latest(seeds, seed_time) if self.is_temporal else None)
            key = epoch
        if self._is_backward:
            key = stream(Purpose.SAMPLING, key, 1)  # a bidirectional sampler also draws forward from the same nodes
        counts = self.num_neighbors.get_values(self.edge_types if self.is_hetero else None)
        counts = counts if self.is_hetero else {_HOMOGENEOUS: counts}
        sample = walk(self._graph, seeds, counts, key, replace=self.replace, trees=trees)
        return self._output(induced(self._graph, sample) if is_induced else sample)

    def _latest(self, seeds: dict[str, Tensor], seed_time: Tensor | dict[str, Tensor] | None) -> Tensor:
        if seed_time is not None:
            return seed_time if isinstance(seed_time, Tensor) else torch.cat([seed_time[name] for name in seeds])
        times = {_ONLY: self.node_time} if isinstance(self.node_time, Tensor) else self.node_time or {}
        if not times.keys() >= seeds.keys():
            raise RuntimeError("Seed time needs to be specified")
        return torch.cat([times[node_type][nodes] for node_type, nodes in seeds.items()])

    def _output(self, sample: Neighborhood) -> Output:
        dtype = next((relation.indptr.dtype for relation in self._graph.relations.values()), torch.int64)

        def narrow(by_type: Mapping[Any, Tensor]) -> dict[Any, Tensor]:
            return {name: values.to(dtype) for name, values in by_type.items()}

        found: dict[str, Any] = {
            "node": narrow(sample.nodes),
            "row": narrow({edge_type: edges.sources for edge_type, edges in sample.edges.items()}),
            "col": narrow({edge_type: edges.targets for edge_type, edges in sample.edges.items()}),
            "edge": narrow({edge_type: edges.places for edge_type, edges in sample.edges.items()}),
            "batch": None if sample.trees is None else narrow(sample.trees),
            "num_sampled_nodes": sample.num_nodes,
            "num_sampled_edges": sample.num_edges,
        }
        if self._is_backward:
            found["row"], found["col"] = found["col"], found["row"]
        if not self.is_hetero:
            return SamplerOutput(**{name: by_type and next(iter(by_type.values())) for name, by_type in found.items()})
        if self._is_backward:
            for name in ("row", "col", "edge", "num_sampled_edges"):
                found[name] = found[name] and remap_keys(found[name], self.to_restored_edge_type)
        return HeteroSamplerOutput(**found)


def examples_of(input_id: Tensor | None, seeds: Tensor) -> Tensor:
    """The indices of a batch's seeds among the inputs of the loader, or else their numbers."""
    return torch.arange(seeds.numel()) if input_id is None else input_id


@contextmanager
def _as_with_pyg_lib() -> Iterator[None]:
    """Disable the pyg-lib requirement for edges with times or weights, and the warning, in PyG's constructor."""
    flags = ("WITH_PYG_LIB", "WITH_EDGE_TIME_NEIGHBOR_SAMPLE", "WITH_WEIGHTED_NEIGHBOR_SAMPLE")
    before = {flag: getattr(torch_geometric.typing, flag) for flag in flags}
    try:
        for flag in flags:
            setattr(torch_geometric.typing, flag, True)
        yield
    finally:
        for flag, value in before.items():
            setattr(torch_geometric.typing, flag, value)


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
