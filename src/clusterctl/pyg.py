"""PyG's loaders that need pyg-lib or torch-sparse, with our sampling, which needs neither.

    from clusterctl.pyg import HGTLoader, LinkNeighborLoader, NeighborLoader, ShaDowKHopSampler

The arguments and the batches are PyG's. Samples depend on torch's seed, the epoch and the loader's inputs, not on the
number of workers. The old NeighborSampler, the samplers alone, and ClusterData, partitioned by pymetis, are here too.
`dropout` and `Dropout` replace torch's in models of your own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch_geometric.loader import ClusterData as PygOwnClusterData
from torch_geometric.loader import ClusterLoader as ClusterLoader
from torch_geometric.loader import LinkLoader, NodeLoader

from clusterctl.engine.graph.dropout import Dropout as Dropout
from clusterctl.engine.graph.dropout import dropout as dropout
from clusterctl.engine.graph.pyg.adjacency import by_target, without_sparse
from clusterctl.engine.graph.pyg.hgt import PygHgtSampler as PygHgtSampler
from clusterctl.engine.graph.pyg.inputs import check_seed_edges, check_seeds
from clusterctl.engine.graph.pyg.older_loaders import NeighborSampler as NeighborSampler
from clusterctl.engine.graph.pyg.older_loaders import ShaDowKHopSampler as ShaDowKHopSampler
from clusterctl.engine.graph.pyg.sampler import PygBidirectionalSampler as PygBidirectionalSampler
from clusterctl.engine.graph.pyg.sampler import PygNeighborSampler as PygNeighborSampler
from clusterctl.engine.graph.subgraphs import parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor
    from torch_geometric.data import HeteroData
    from torch_geometric.sampler import BaseSampler, NegativeSampling
    from torch_geometric.sampler.base import SubgraphType
    from torch_geometric.typing import InputEdges, InputNodes

    from clusterctl.engine.graph.pyg.sampler import Counts, Source


class NeighborLoader(NodeLoader):  # type: ignore[misc]
    """Batches of seed nodes with sampled neighbourhoods, like torch_geometric.loader.NeighborLoader."""

    def __init__(
        self,
        data: Source,
        num_neighbors: Counts,
        input_nodes: InputNodes = None,
        input_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: SubgraphType | str = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable[..., Any] | None = None,
        transform_sampler_output: Callable[..., Any] | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: BaseSampler | None = None,
        directed: bool = True,
        **kwargs: Any,
    ) -> None:
        if input_time is not None and time_attr is None:
            raise ValueError(
                "Received conflicting 'input_time' and 'time_attr' arguments: 'input_time' is set while 'time_attr' "
                "is not set."
            )
        data, transform = without_sparse(data, transform)
        if neighbor_sampler is None:
            neighbor_sampler = PygNeighborSampler(
                data,
                num_neighbors=num_neighbors,
                replace=replace,
                subgraph_type=subgraph_type,
                disjoint=disjoint,
                temporal_strategy=temporal_strategy,
                time_attr=time_attr,
                weight_attr=weight_attr,
                is_sorted=is_sorted,
                share_memory=kwargs.get("num_workers", 0) > 0,
                directed=directed,
            )
        check_seeds(data, input_nodes, input_time)
        super().__init__(
            data=data,
            node_sampler=neighbor_sampler,
            input_nodes=input_nodes,
            input_time=input_time,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            filter_per_worker=filter_per_worker,
            **kwargs,
        )

    def __iter__(self) -> Iterator[Any]:
        _begin_epoch(self.node_sampler)
        return super().__iter__()  # type: ignore[no-any-return]


class LinkNeighborLoader(LinkLoader):  # type: ignore[misc]
    """Batches of edges with sampled neighbourhoods of their ends, like torch_geometric.loader.LinkNeighborLoader."""

    def __init__(
        self,
        data: Source,
        num_neighbors: Counts,
        edge_label_index: InputEdges = None,
        edge_label: Tensor | None = None,
        edge_label_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: SubgraphType | str = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        neg_sampling: NegativeSampling | None = None,
        neg_sampling_ratio: float | None = None,
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable[..., Any] | None = None,
        transform_sampler_output: Callable[..., Any] | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: BaseSampler | None = None,
        directed: bool = True,
        **kwargs: Any,
    ) -> None:
        if (edge_label_time is not None) != (time_attr is not None):
            given = {True: "set", False: "not set"}
            raise ValueError(
                "Received conflicting 'edge_label_time' and 'time_attr' arguments: 'edge_label_time' is "
                f"{given[edge_label_time is not None]} while 'time_attr' is {given[time_attr is not None]}. Both "
                "arguments must be provided for temporal sampling."
            )
        data, transform = without_sparse(data, transform)
        if neighbor_sampler is None:
            neighbor_sampler = PygNeighborSampler(
                data,
                num_neighbors=num_neighbors,
                replace=replace,
                subgraph_type=subgraph_type,
                disjoint=disjoint,
                temporal_strategy=temporal_strategy,
                time_attr=time_attr,
                weight_attr=weight_attr,
                is_sorted=is_sorted,
                share_memory=kwargs.get("num_workers", 0) > 0,
                directed=directed,
            )
        check_seed_edges(data, edge_label_index, edge_label, edge_label_time)
        super().__init__(
            data=data,
            link_sampler=neighbor_sampler,
            edge_label_index=edge_label_index,
            edge_label=edge_label,
            edge_label_time=edge_label_time,
            neg_sampling=neg_sampling,
            neg_sampling_ratio=neg_sampling_ratio,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            filter_per_worker=filter_per_worker,
            **kwargs,
        )

    def __iter__(self) -> Iterator[Any]:
        _begin_epoch(self.link_sampler)
        return super().__iter__()  # type: ignore[no-any-return]


class HGTLoader(NodeLoader):  # type: ignore[misc]
    """Batches of seed nodes with dense samples of all types, like torch_geometric.loader.HGTLoader."""

    def __init__(
        self,
        data: HeteroData,
        num_samples: Sequence[int] | Mapping[str, Sequence[int]],
        input_nodes: InputNodes,
        is_sorted: bool = False,
        transform: Callable[..., Any] | None = None,
        transform_sampler_output: Callable[..., Any] | None = None,
        filter_per_worker: bool | None = None,
        **kwargs: Any,
    ) -> None:
        data, transform = without_sparse(data, transform)
        sampler = PygHgtSampler(data, num_samples, is_sorted=is_sorted, share_memory=kwargs.get("num_workers", 0) > 0)
        check_seeds(data, input_nodes)
        super().__init__(
            data=data,
            node_sampler=sampler,
            input_nodes=input_nodes,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            filter_per_worker=filter_per_worker,
            **kwargs,
        )

    def __iter__(self) -> Iterator[Any]:
        _begin_epoch(self.node_sampler)
        return super().__iter__()  # type: ignore[no-any-return]


class ClusterData(PygOwnClusterData):  # type: ignore[misc]
    """A graph in parts for PyG's ClusterLoader, like torch_geometric.loader.ClusterData, partitioned by pymetis."""

    def _metis(self, edge_index: Tensor, num_nodes: int) -> Tensor:
        relation = by_target(edge_index, num_nodes).relation
        return parts(relation.indptr, relation.indices, self.num_parts, recursive=self.recursive).to(edge_index.device)


def _begin_epoch(sampler: BaseSampler) -> None:
    begin = getattr(sampler, "begin_epoch", None)  # a user's sampler may be PyG's
    if begin is not None:
        begin()
