"""Exact outputs of models with `forward(x, edge_index)`: on the whole graph at once, or in pieces with all neighbours.

A piece has the nodes around some seeds, with all their edges. How many hops it needs is a matter of the model: a few
nodes are computed with more and more of them, until their outputs no longer change.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist

from clusterctl.engine.graph.neighbors import sample_positions
from clusterctl.engine.graph.subgraphs import SubgraphSampler, neighbourhood, whole
from clusterctl.engine.task.exchange import from_first
from clusterctl.engine.training.own.forward_memory import Need, free_memory, measured
from clusterctl.engine.training.own.model import undisturbed
from clusterctl.engine.training.own.pyg_model import differs, kept, other_weights
from clusterctl.engine.training.state import untrained
from clusterctl.shared.errors import Cause, TaskError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.engine.graph.features.sources import Features
    from clusterctl.engine.graph.storage import FeatureGraph
    from clusterctl.engine.graph.subgraphs import Subgraph
    from clusterctl.engine.task.task import Task
    from clusterctl.engine.training.own.pyg_model import PygModel

_SEEDS_AT_ONCE = 128
_TRIED_NODES, _TRIED_AMONG, _MOST_HOPS = 4, 4096, 16
_TRIED_FAN_OUT = 4


class Plan(NamedTuple):
    """How to evaluate: on the whole graph (0 hops), or in pieces; and what a forward needs."""

    hops: int
    per_row: float
    per_edge: float


class PygInference:
    """The outputs of `own` for the nodes of `graph`. Construction is a collective.

    `layers` is the least number of hops of a piece; `hops` is `train.hops`. Unless `quiet`, prints how it evaluates.
    Raises TaskError if neither the whole graph nor pieces are possible.
    """

    def __init__(
        self,
        own: PygModel,
        graph: FeatureGraph,
        features: Features,
        task: Task,
        layers: int,
        hops: int = 0,
        *,
        quiet: bool = False,
    ) -> None:
        self._own, self._graph, self._features, self._task = own, graph, features, task
        self._layers, self._quiet = layers, quiet
        self._hops, *need = Plan(*from_first(lambda: self._planned(hops), task.agreeing))
        self._need = Need(*need)

    def rows_at_once(self, nodes: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """These nodes in chunks, int64, with their outputs. Every rank must iterate to the end, each over its own."""
        if not self._hops:
            yield nodes, self._of_whole().index_select(0, nodes)
            return
        free = free_memory(self._task.device)
        for seeds in torch.split(nodes, _SEEDS_AT_ONCE):
            for piece in self._fitting(seeds, free):
                x = self._features.fetch(piece.places).rows()
                yield piece.places[: piece.seeds], self._own.outputs([piece], x)
        self._features.settle()

    def _of_whole(self) -> Tensor:
        """The outputs of all nodes, computed by rank 0. A collective."""
        dtype, device = next(self._own.model.parameters()).dtype, self._task.device
        rows = torch.empty(0, 0, dtype=dtype, device=device)
        if dist.get_rank() == 0:
            subgraph = whole(self._graph)
            x = self._features.fetch(subgraph.places).rows()
            rows = self._own.outputs([subgraph], x).to(dtype).contiguous()
        self._features.settle()
        if dist.get_world_size() > 1:
            width = torch.tensor([rows.size(1)], device=device)
            dist.broadcast(width, 0)
            if dist.get_rank():
                rows = rows.new_empty(self._graph.num_nodes, int(width))
            dist.broadcast(rows, 0)
        return rows

    def _fitting(self, seeds: Tensor, free: int) -> Iterator[Subgraph]:
        """Pieces of these seeds, of fewer at once if all do not fit into `free` bytes."""
        piece = neighbourhood(self._graph, seeds, self._hops)
        needed = self._need.of(len(piece.places), piece.edge_index.size(1))
        if len(seeds) > 1 and needed > free:
            for half in seeds.tensor_split(2):
                yield from self._fitting(half, free)
        else:
            yield piece

    # What rank 0 finds out at the start.

    @torch.no_grad()
    def _planned(self, wanted: int) -> Plan:
        """How to evaluate, from a few forwards on small inputs."""
        name, nodes, edges = self._own.name, self._graph.num_nodes, self._graph.indices.numel()
        with undisturbed(self._own.model, self._task.device):
            need = need_of(self._own, self._graph, self._layers)
            needed, free = need.of(nodes, edges), free_memory(self._task.device)
            fits = f"the whole graph needs about {size_text(needed)}, of {size_text(free)} that are free"
            if wanted:
                if needed <= free:
                    self._compare(wanted)
                self._print(f"{name} is evaluated in pieces of {wanted} hops")
                return Plan(wanted, *need)
            if needed <= free:
                self._print(f"{name} is evaluated on the whole graph at once: {fits}")
                return Plan(0, *need)
            hops, why = self._settled(need, free)
        if not hops:
            hint = "request more memory, or set train.hops to the number of hops that evaluation should read"
            raise TaskError(f"{name} cannot be evaluated exactly: {why}, and {fits}", hint, Cause.USER)
        self._print(f"{name} is evaluated in pieces of {hops} hops, which its outputs depend on: {fits}")
        return Plan(hops, *need)

    def _print(self, line: str) -> None:
        if not self._quiet:
            print(line)

    def _settled(self, need: Need, free: int) -> tuple[int, str]:
        """The hops on which the outputs depend; 0, and the reason, if that is unknown or without a bound."""
        if not self._graph.indices.numel():
            return self._layers, ""
        # The hops are the model's, so a graph with few edges into a node shows them, too, and in small pieces.
        nodes = _far_from_an_end(self._graph, self._layers + _MOST_HOPS)[:_TRIED_NODES]
        found = [self._settled_with(most, nodes, need, free) for most in (2, 1)]
        return max(found, key=lambda one: one[0])

    def _settled_with(self, most: int, nodes: Tensor, need: Need, free: int) -> tuple[int, str]:
        """`_settled`, as if there were at most so many edges into a node."""
        outputs: list[Tensor] = []
        edges = -1
        with other_weights(self._own.model):
            for hops in range(self._layers, self._layers + _MOST_HOPS):
                piece = neighbourhood(self._graph, nodes, hops, most)
                # Where there is nothing more around the nodes, equal outputs would prove nothing.
                if piece.edge_index.size(1) == edges or need.of(len(piece.places), piece.edge_index.size(1)) > free:
                    break
                edges = piece.edge_index.size(1)
                outputs.append(self._outputs(piece))
            same = [not differs(one, outputs[-1]) for one in outputs]
            settled = next((number for number in range(len(same) - 1) if all(same[number:])), None)
            if settled is None:
                return 0, f"its outputs still change with {self._layers + len(outputs) - 1} hops around a node"
            hops = self._layers + settled
            alone = self._outputs(neighbourhood(self._graph, nodes[:1], hops, most))
        if differs(alone, outputs[settled][:1]):
            return 0, "the outputs of a node depend on nodes that no edges connect with it"
        return hops, ""

    def _outputs(self, piece: Subgraph) -> Tensor:
        return self._own.outputs([piece], self._own.stored(self._graph, piece.places))

    def _compare(self, hops: int) -> None:
        """Print a line if a piece of this many hops gives other outputs than the whole graph."""
        nodes = torch.arange(min(_SEEDS_AT_ONCE, self._graph.num_nodes), device=self._graph.indptr.device)
        with other_weights(self._own.model):
            everything = self._outputs(whole(self._graph))
            piece = self._outputs(neighbourhood(self._graph, nodes, hops))
        if difference := differs(everything[: len(nodes)], piece):
            print(
                f"{self._own.name}: outputs from {hops} hops differ from those on the whole graph by "
                f"{difference:.1%}: raise train.hops, or leave it out"
            )


def need_of(own: PygModel, graph: FeatureGraph, layers: int, *, trains: bool = False) -> Need:
    """What a forward needs for each row and edge of the graph; if it `trains`, with the backward pass."""
    seeds = torch.arange(min(_TRIED_NODES * 8, graph.num_nodes), device=graph.indptr.device)
    sampler = SubgraphSampler(graph, [_TRIED_FAN_OUT] * layers, 0, places=True)
    sample = replace(sampler.sample(seeds, 0, 0), rows_by_depth=(), edges_by_depth=(), randomness=None)
    assert sample.edges is not None
    x, edges = own.stored(graph, sample.places), sample.edges

    def forward(times: int) -> None:
        repeated = replace(sample, edge_index=sample.edge_index.repeat(1, times), edges=edges.repeat(times))
        rows = own.outputs([repeated], x.clone())
        if trains:
            torch.autograd.grad(
                rows.sum(), [one for one in own.model.parameters() if one.requires_grad], allow_unused=True
            )

    need = measured(forward, len(x), edges.numel())
    return Need(need.per_row + 16, need.per_edge + 16 + 8)  # and edge_index, with what makes it


def check_step_fits(own: PygModel, graph: FeatureGraph, layers: int, device: torch.device) -> None:
    """Raise TaskError, with both sizes, if a step on the whole graph needs more memory than there is.

    The model is then as before.
    """
    with undisturbed(own.model, device), torch.enable_grad(), kept(untrained(own.model)):
        own.model.train()
        need = need_of(own, graph, layers, trains=True)
    nodes, edges, free = graph.num_nodes, graph.indices.numel(), free_memory(device)
    sizes = f"{size_text(need.bare(nodes, edges))}, of {size_text(free)} that are free"
    if need.bare(nodes, edges) > free:
        hint = "request more memory, or leave train.batch out: then a step trains on samples of the graph"
        raise TaskError(f'{own.name}: a step with train.batch = "graph" needs about {sizes}', hint, Cause.USER)
    print(f"{own.name} trains on the whole graph: a step needs about {sizes}")


def _far_from_an_end(graph: FeatureGraph, steps: int) -> Tensor:
    """Nodes (int64) that begin the longest ways along one edge into each node, without a node twice, up to `steps`."""
    begin = torch.arange(min(_TRIED_AMONG, graph.num_nodes), device=graph.indptr.device)
    seen, going = begin[:, None], torch.ones_like(begin, dtype=torch.bool)
    length = torch.zeros_like(begin)
    for _ in range(steps):
        offsets, edges = sample_positions(graph, seen[:, -1], 1, 0)
        has_edge = offsets.diff() > 0
        step = torch.full_like(begin, -1)
        step[has_edge] = graph.indices[edges].to(torch.int64)
        going &= has_edge & (seen != step[:, None]).all(1)
        length += going
        seen = torch.cat([seen, torch.where(going, step, seen[:, -1])[:, None]], 1)
    return length.argsort(descending=True, stable=True)


def size_text(size: float) -> str:
    """A number of bytes for a person."""
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{max(1, round(size / 1e6))} MB"
