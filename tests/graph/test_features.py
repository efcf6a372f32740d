"""Features on disk: the same rows as in memory, bit for bit, for any cache."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.made_graphs import random_academy
from torch import Tensor

from clusterctl.engine.graph.blocks import Adjacency
from clusterctl.engine.graph.features.row_file import RowFile, mapped_from
from clusterctl.engine.graph.features.sources import (
    FeaturesOnDisk,
    expected_visits,
    expected_visits_by_type,
    hottest,
    rows_within,
)
from clusterctl.engine.graph.sampling import NeighborSampler
from clusterctl.engine.graph.storage import Graph, load, save
from clusterctl.engine.task.task import Task

MakeGraph = Callable[..., Graph]


@pytest.fixture
def mapped(tmp_path: Path) -> Callable[[Tensor], Tensor]:
    """A function that maps a table from a file at an offset that is not page-aligned."""

    def make(table: Tensor) -> Tensor:
        path = tmp_path / "table"
        path.write_bytes(bytes(192) + table.contiguous().view(torch.uint8).numpy().tobytes())
        whole = torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8)
        return whole[192:].view(table.dtype).view(table.shape)

    return make


def read(file: RowFile, ids: Tensor, like: Tensor) -> Tensor:
    """The rows `ids`, read into reversed places."""
    rows = like.new_empty(len(ids), like.size(1))
    file.begin(ids, rows, torch.arange(len(ids)).flip(0)).wait()
    return rows.flip(0)


@pytest.mark.parametrize("width", [1, 7, 602, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("direct", "compiled"), [(True, False), (True, True), (False, False)])
def test_rows_are_read_from_any_place_in_the_file(
    mapped: Callable[[Tensor], Tensor], width: int, dtype: torch.dtype, direct: bool, compiled: bool
) -> None:
    table = torch.randn(300_000 // width, width).to(dtype)
    file = RowFile(mapped(table), direct=direct, compiled=compiled)
    some = torch.randint(len(table), (40,)).sort().values
    for ids in (torch.arange(len(table)), some, torch.tensor([0, 0]), torch.tensor([len(table) - 1]), some[:0]):
        assert torch.equal(read(file, ids, table), table[ids])
    file.close()


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("wanted", [torch.float32, torch.bfloat16, torch.float64])
def test_compiled_reads_convert_as_torch_does(
    mapped: Callable[[Tensor], Tensor], stored: torch.dtype, wanted: torch.dtype
) -> None:
    bits = torch.randint(-(1 << 31), 1 << 31, (20_000, 8), dtype=torch.int32)  # infinities and NaNs among them
    bits[:4] = torch.tensor([0x7F800000, -0x800000, 0x7F800001, 0x3F808000], dtype=torch.int32)[:, None]
    table = bits.view(torch.float32).to(stored)
    ids = torch.arange(len(table))
    found = read(RowFile(mapped(table), compiled=True), ids, table.to(wanted))
    torch.testing.assert_close(found, table.to(wanted), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_truncated_file_is_an_error(mapped: Callable[[Tensor], Tensor], tmp_path: Path, compiled: bool) -> None:
    table = torch.zeros(5000, 8)
    file = RowFile(mapped(table), compiled=compiled)
    os.truncate(tmp_path / "table", 100_000)
    for lost in ([4999], [3100, 3130]):  # the second pair is in the same request as the end of the file
        with pytest.raises(OSError, match="ends before byte"):
            read(file, torch.tensor(lost), table)


def test_adjacent_rows_are_read_in_one_request(mapped: Callable[[Tensor], Tensor]) -> None:
    file = RowFile(mapped(torch.zeros(40_000, 8)))
    rows, places = torch.empty(3, 8), torch.arange(3)
    near, far = torch.tensor([10, 500, 900]), torch.tensor([10, 20_000, 39_000])
    assert len(file.begin(near, rows, places).parts) == 1
    apart = file.begin(far, rows, places)
    assert len(apart.parts) == 3
    assert apart.size == 3 * 4096


def test_memory_that_is_not_mapped_from_a_file_is_rejected() -> None:
    with pytest.raises(ValueError, match="not mapped from a file"):
        mapped_from(torch.zeros(4))


@pytest.mark.parametrize("budget", [0, 4 * 60 + 9 * 7 * 8, 1 << 20])  # nothing, nine rows, everything
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_fetched_rows_match_the_table(
    random_graph: MakeGraph, lone_task: Task, tmp_path: Path, budget: int, dtype: torch.dtype
) -> None:
    save(random_graph(), tmp_path / "graph.pt")
    graph = load(Graph, tmp_path / "graph.pt")
    visits = torch.arange(60.0)
    features = FeaturesOnDisk(graph.x, lone_task, dtype, budget, lambda: visits)
    nodes = torch.tensor([59, 3, 3, 0, 41, 58])
    later, fetch = features.fetch(nodes[:2]), features.fetch(nodes)  # used in a different order
    assert torch.equal(fetch.rows(), graph.x[nodes].to(dtype))
    assert torch.equal(later.rows(), graph.x[nodes[:2]].to(dtype))
    assert torch.equal(features.piece(7, 31), graph.x[7:31].to(dtype))
    if budget == 4 * 60 + 9 * 7 * 8 and dtype == torch.float64:
        assert fetch.numbers["cache_hit_rate"] == pytest.approx(2 / 6, abs=1e-4)


def test_expected_visits_match_the_average_of_many_samples(random_graph: MakeGraph) -> None:
    graph = random_graph(nodes=40, edges=300)
    seeds = graph.train[:2]  # one at a time: in a batch, two seeds would share a visit
    start = torch.zeros(40).index_fill_(0, seeds, 0.5)
    found = expected_visits(graph, start, (3, -1))
    counts = torch.zeros(40)
    sampler = NeighborSampler(graph, (3,), seed=4)
    rounds = 3000
    for step in range(rounds):
        (block,) = sampler.sample(seeds[step % 2 : step % 2 + 1], 0, step)
        reached = torch.cat([block.nodes, block.neighbors.long()])
        for node in reached.tolist():
            counts[node] += 1 / rounds
            counts[graph.indices[graph.indptr[node] : graph.indptr[node + 1]].long()] += 1 / rounds
    torch.testing.assert_close(found, counts, rtol=0.1, atol=0.03)


def test_visits_of_large_graphs_are_summed_in_pieces(random_graph: MakeGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph()
    start = torch.rand(60)
    whole = expected_visits(graph, start, (3, 2))
    monkeypatch.setattr("clusterctl.engine.graph.features.sources._EDGES_AT_ONCE", 7)
    torch.testing.assert_close(expected_visits(graph, start, (3, 2)), whole)
    without_edges = Adjacency(torch.zeros(61, dtype=torch.int64), torch.zeros(0, dtype=torch.int32))
    assert torch.equal(expected_visits(without_edges, start, (3,)), start)


def test_visits_by_type_are_those_of_one_graph_with_all_nodes() -> None:
    graph = random_academy()
    first, nodes = {}, 0  # the first of each type's nodes, when all are numbered
    for kind, count in graph.num_nodes.items():
        first[kind], nodes = nodes, nodes + count
    start = {"paper": torch.rand(60)}
    expected = torch.zeros(nodes)
    expected[:60] = start["paper"]
    fan_outs = {relation: (2, -1) if relation[1] == "cites" else (1, 3) for relation in graph.indptr}
    for hop in range(2):
        reached = expected.clone()
        for (source, name, target), counts in fan_outs.items():
            edges = graph.relation((source, name, target))
            for number in range(graph.num_nodes[target]):
                own = edges.indices[edges.indptr[number] : edges.indptr[number + 1]].long()
                share = 1.0 if counts[hop] < 0 else min(1.0, counts[hop] / max(1, len(own)))
                expected.index_add_(0, first[source] + own, reached[first[target] + number].expand(len(own)) * share)
    found = expected_visits_by_type(graph, start, fan_outs)
    torch.testing.assert_close(torch.cat([*found.values()]), expected)


def test_a_cache_holds_the_rows_with_the_most_visits_per_byte() -> None:
    visits = [torch.tensor([8.0, 4.0, 0.0]), torch.tensor([9.0, 3.0, 3.0, 3.0])]
    assert rows_within(1000, visits, [10, 20]) == [2, 4]  # all that are visited at all
    assert rows_within(10, visits, [10, 20]) == [1, 0]
    assert rows_within(40, visits, [10, 20]) == [2, 1]
    assert rows_within(60, visits, [10, 20]) == [2, 2]  # some of those that are visited equally often
    assert rows_within(0, visits, [10, 20]) == rows_within(-5, visits, [10, 20]) == [0, 0]
    assert rows_within(20, [torch.ones(5), torch.zeros(0)], [10, 10]) == [2, 0]


def test_the_hottest_rows_are_the_most_visited_and_exclude_unvisited_ones() -> None:
    assert hottest(torch.tensor([0.0, 3.0, 1.0, 2.0]), 2).tolist() == [1, 3]
    assert hottest(torch.tensor([0.0, 3.0, 1.0, 2.0]), 4).tolist() == [1, 2, 3]
