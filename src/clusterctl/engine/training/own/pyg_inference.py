"""Exact outputs of models with `forward(x, edge_index)`: on the whole graph at once, or in pieces with all neighbours.

A piece has the nodes around some seeds, with all their edges. How many hops it needs is a matter of the model: a few
nodes are computed with more and more of them, until their outputs no longer change. `Surroundings` are what that needs
of a graph: those of `OneType` here, so graphs with several types of nodes are evaluated in the same way (`typed_node`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from clusterctl.engine.graph.neighbors import sample_positions
from clusterctl.engine.graph.subgraphs import SubgraphSampler, neighbourhood, whole
from clusterctl.engine.task.task import from_first
from clusterctl.engine.training.own.forward_memory import Need, free_memory, measured
from clusterctl.engine.training.own.model import undisturbed
from clusterctl.engine.training.own.pyg_model import differs, kept, other_weights
from clusterctl.engine.training.state import untrained
from clusterctl.shared.errors import Cause, TaskError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from clusterctl.engine.graph.features.sources import Features
    from clusterctl.engine.graph.storage import FeatureGraph
    from clusterctl.engine.graph.subgraphs import Subgraph
    from clusterctl.engine.task.task import Task
    from clusterctl.engine.training.own.model import OwnModel
    from clusterctl.engine.training.own.pyg_model import PygModel

_SEEDS_AT_ONCE = 128
_TRIED_NODES, _TRIED_AMONG, _MOST_HOPS = 4, 4096, 16
_TRIED_FAN_OUT = 4


class Piece(Protocol):
    """A `Subgraph` or a `TypedSubgraph`."""

    @property
    def places(self) -> Any:
        """The nodes of the rows: int64, by type if there are several."""

    @property
    def num_rows(self) -> int:
        """The rows of all types."""

    @property
    def num_edges(self) -> int:
        """The edges of all types."""

    def repeated(self, times: int) -> Self:
        """The same rows with `times` copies of all edges."""


P = TypeVar("P", bound=Piece)
P_co = TypeVar("P_co", bound=Piece, covariant=True)


class Surroundings(Protocol[P_co]):
    """A graph and the features of its nodes: what is around some of the nodes whose outputs are wanted."""

    nodes: int
    """The number of nodes whose outputs may be wanted."""
    rows: int
    """The nodes of all types."""
    edges: int

    def whole(self) -> P_co:
        """All nodes in their order, and all edges."""

    def around(self, seeds: Tensor, hops: int, most: int = -1) -> P_co:
        """As `subgraphs.neighbourhood`."""

    def sampled(self, seeds: Tensor, fan_out: Sequence[int]) -> P_co:
        """A sample without randomness, whose rows are not known to be by depth."""

    def stored(self, places: Any) -> Any:
        """The rows of a piece's `places`, read by one rank."""

    def fetched(self, places: Any) -> Any:
        """These rows, fetched while all ranks evaluate."""

    def settle(self) -> None:
        """As `Features.settle`. A collective."""

    def far_from_an_end(self, steps: int) -> Tensor:
        """Nodes (int64) around which there is most within so many steps, the best first."""


class OneType:
    """The surroundings in a graph of one type."""

    def __init__(self, own: PygModel, graph: FeatureGraph, features: Features) -> None:
        self._own, self._graph, self._features = own, graph, features
        self.nodes = self.rows = graph.num_nodes
        self.edges = graph.indices.numel()

    def whole(self) -> Subgraph:
        return whole(self._graph)

    def around(self, seeds: Tensor, hops: int, most: int = -1) -> Subgraph:
        return neighbourhood(self._graph, seeds, hops, most)

    def sampled(self, seeds: Tensor, fan_out: Sequence[int]) -> Subgraph:
        sample = SubgraphSampler(self._graph, fan_out, 0, places=True).sample(seeds, 0, 0)
        return replace(sample, rows_by_depth=(), edges_by_depth=(), randomness=None)

    def stored(self, places: Tensor) -> Tensor:
        return self._own.stored(self._graph, places)

    def fetched(self, places: Tensor) -> Tensor:
        return self._features.fetch(places).rows()

    def settle(self) -> None:
        self._features.settle()

    def far_from_an_end(self, steps: int) -> Tensor:
        # They begin the longest ways along one edge into each node, without a node twice.
        begin = torch.arange(min(_TRIED_AMONG, self._graph.num_nodes), device=self._graph.indptr.device)
        seen, going = begin[:, None], torch.ones_like(begin, dtype=torch.bool)
        length = torch.zeros_like(begin)
        for _ in range(steps):
            offsets, edges = sample_positions(self._graph, seen[:, -1], 1, 0)
            has_edge = offsets.diff() > 0
            step = torch.full_like(begin, -1)
            step[has_edge] = self._graph.sources(edges).to(torch.int64)
            going &= has_edge & (seen != step[:, None]).all(1)
            length += going
            seen = torch.cat([seen, torch.where(going, step, seen[:, -1])[:, None]], 1)
        return length.argsort(descending=True, stable=True)


class PygInference(Generic[P]):
    """The outputs of `own` for nodes, by their `surroundings`. Construction is a collective.

    `layers` is the least number of hops of a piece; `hops` is `train.hops`. Unless `quiet`, prints how it evaluates.
    Raises TaskError if neither the whole graph nor pieces are possible.
    """

    def __init__(
        self,
        own: OwnModel,
        surroundings: Surroundings[P],
        task: Task,
        layers: int,
        hops: int = 0,
        *,
        quiet: bool = False,
    ) -> None:
        self._own: Any = own  # whose `outputs` takes pieces of this kind
        self._around, self._task = surroundings, task
        self._device = task.device
        self._layers, self._quiet = layers, quiet
        self._hops, *need = from_first(lambda: self._planned(hops), task.agreeing)
        self._need = Need(*need)

    def rows_at_once(self, nodes: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """These nodes in chunks, int64, with their outputs. Every rank must iterate to the end, each over its own."""
        if not self._hops:
            yield nodes, self._of_whole().index_select(0, nodes)
            return
        free = free_memory(self._task.device)
        if self._device.type == "cpu":  # the ranks of a node evaluate at the same time
            free //= self._task.node.size()
        for seeds in torch.split(nodes, _SEEDS_AT_ONCE):
            for some, piece in self._fitting(seeds, free) if len(seeds) else ():
                yield some, self._own.outputs([piece], self._around.fetched(piece.places))
        self._around.settle()

    def _of_whole(self) -> Tensor:
        """The outputs of all nodes, computed by rank 0. A collective."""
        dtype, device = next(self._own.model.parameters()).dtype, self._task.device
        rows = torch.empty(0, 0, dtype=dtype, device=device)
        if dist.get_rank() == 0:
            everything = self._around.whole()
            x = self._around.fetched(everything.places)
            rows = self._own.outputs([everything], x).to(dtype).contiguous()
        self._around.settle()
        if dist.get_world_size() > 1:
            width = torch.tensor([rows.size(1)], device=device)
            dist.broadcast(width, 0)
            if dist.get_rank():
                rows = rows.new_empty(self._around.nodes, int(width))
            dist.broadcast(rows, 0)
        return rows

    def _fitting(self, seeds: Tensor, free: int) -> Iterator[tuple[Tensor, P]]:
        """These seeds in pieces, of fewer at once if all do not fit into `free` bytes."""
        piece = self._around.around(seeds, self._hops)
        needed = self._need.of(piece.num_rows, piece.num_edges)
        if len(seeds) > 1 and needed > free:
            for half in seeds.tensor_split(2):
                yield from self._fitting(half, free)
        else:
            yield seeds, piece

    # What rank 0 finds out at the start.

    @torch.no_grad()
    def _planned(self, wanted: int) -> tuple[int, float, float]:
        """The hops of a piece, 0 for the whole graph at once, and what a forward needs: from a few on small inputs."""
        name = self._own.name
        with undisturbed(self._own.model, self._task.device):
            need = need_of(self._own, self._around, self._layers, self._device)
            needed, free = need.of(self._around.rows, self._around.edges), free_memory(self._task.device)
            fits = f"the whole graph needs about {size_text(needed)}, of {size_text(free)} that are free"
            if wanted:
                if needed <= free:
                    self._compare(wanted)
                self._print(f"{name} is evaluated in pieces of {wanted} hops")
                return wanted, *need
            if needed <= free:
                self._print(f"{name} is evaluated on the whole graph at once: {fits}")
                return 0, *need
            hops, why = self._settled(need, free)
        if not hops:
            hint = "request more memory, or set train.hops to the number of hops that evaluation should read"
            raise TaskError(f"{name} cannot be evaluated exactly: {why}, and {fits}", hint, Cause.USER)
        self._print(f"{name} is evaluated in pieces of {hops} hops, which its outputs depend on: {fits}")
        return hops, *need

    def _print(self, line: str) -> None:
        if not self._quiet:
            print(line)

    def _settled(self, need: Need, free: int) -> tuple[int, str]:
        """The hops on which the outputs depend; 0, and the reason, if that is unknown or without a bound."""
        if not self._around.edges:
            return self._layers, ""
        # The hops are the model's, so a graph with few edges into a node shows them, too, and in small pieces.
        nodes = self._around.far_from_an_end(self._layers + _MOST_HOPS)[:_TRIED_NODES]
        found = [self._settled_with(most, nodes, need, free) for most in (2, 1)]
        return max(found, key=lambda one: one[0])

    def _settled_with(self, most: int, nodes: Tensor, need: Need, free: int) -> tuple[int, str]:
        """`_settled`, as if there were at most so many edges into a node."""
        outputs: list[Tensor] = []
        edges = -1
        with other_weights(self._own.model):
            for hops in range(self._layers, self._layers + _MOST_HOPS):
                piece = self._around.around(nodes, hops, most)
                # Where there is nothing more around the nodes, equal outputs would prove nothing.
                if piece.num_edges == edges or need.of(piece.num_rows, piece.num_edges) > free:
                    break
                edges = piece.num_edges
                outputs.append(self._outputs(piece))
            same = [not differs(one, outputs[-1]) for one in outputs]
            settled = next((number for number in range(len(same) - 1) if all(same[number:])), None)
            if settled is None:
                return 0, f"its outputs still change with {self._layers + len(outputs) - 1} hops around a node"
            hops = self._layers + settled
            alone = self._outputs(self._around.around(nodes[:1], hops, most))
        if differs(alone, outputs[settled][:1]):
            return 0, "the outputs of a node depend on nodes that no edges connect with it"
        return hops, ""

    def _outputs(self, piece: P) -> Tensor:
        return self._own.outputs([piece], self._around.stored(piece.places))  # type: ignore[no-any-return]

    def _compare(self, hops: int) -> None:
        """Print a line if a piece of this many hops gives other outputs than the whole graph."""
        nodes = torch.arange(min(_SEEDS_AT_ONCE, self._around.nodes), device=self._device)
        with other_weights(self._own.model):
            everything = self._outputs(self._around.whole())
            piece = self._outputs(self._around.around(nodes, hops))
        if difference := differs(everything[: len(nodes)], piece):
            print(
                f"{self._own.name}: outputs from {hops} hops differ from those on the whole graph by "
                f"{difference:.1%}: raise train.hops, or leave it out"
            )


def need_of(own: Any, around: Surroundings[P], layers: int, device: torch.device, *, trains: bool = False) -> Need:
    """What a forward needs for each row and edge of the graph; if it `trains`, with the backward pass."""
    seeds = torch.arange(min(_TRIED_NODES * 8, around.nodes), device=device)
    sample = around.sampled(seeds, [_TRIED_FAN_OUT] * layers)

    def forward(times: int) -> None:
        rows = own.outputs([sample.repeated(times)], around.stored(sample.places))
        if trains:
            torch.autograd.grad(
                rows.sum(), [one for one in own.model.parameters() if one.requires_grad], allow_unused=True
            )

    need = measured(forward, sample.num_rows, sample.num_edges)
    return Need(need.per_row + 16, need.per_edge + 16 + 8)  # and edge_index, with what makes it


def check_step_fits(own: Any, around: Surroundings[P], layers: int, device: torch.device) -> None:
    """Raise TaskError, with both sizes, if a step on the whole graph needs more memory than there is.

    The model is then as before.
    """
    with undisturbed(own.model, device), torch.enable_grad(), kept(untrained(own.model)):
        own.model.train()
        need = need_of(own, around, layers, device, trains=True)
    needed, free = need.bare(around.rows, around.edges), free_memory(device)
    sizes = f"{size_text(needed)}, of {size_text(free)} that are free"
    if needed > free:
        hint = "request more memory, or leave train.batch out: then a step trains on samples of the graph"
        raise TaskError(f'{own.name}: a step with train.batch = "graph" needs about {sizes}', hint, Cause.USER)
    print(f"{own.name} trains on the whole graph: a step needs about {sizes}")


def size_text(size: float) -> str:
    """A number of bytes for a person."""
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{max(1, round(size / 1e6))} MB"
