"""LinkNeighborLoader without pyg-lib: seed edges, negatives and times as PyG documents them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.made_graphs import BOUGHT, KNOWS, one_type, shop
from torch_geometric.sampler import NegativeSampling

from clusterctl.pyg import LinkNeighborLoader

WANTED = slice(0, 24)


def batches(data: Any, num_neighbors: Any = (3, 2), **options: Any) -> list[Any]:
    torch.manual_seed(0)
    return list(LinkNeighborLoader(data, list(num_neighbors), **{"batch_size": 10, **options}))


def test_batches_contain_the_seed_edges_and_their_labels() -> None:
    graph = one_type()
    ends = graph.edge_index[:, WANTED]
    found = batches(graph, edge_label_index=ends, edge_label=torch.arange(24))
    assert [batch.edge_label_index.size(1) for batch in found] == [10, 10, 4]
    assert torch.equal(torch.cat([batch.n_id[batch.edge_label_index] for batch in found], dim=1), ends)
    assert torch.cat([batch.edge_label for batch in found]).tolist() == list(range(24))
    for batch in found:
        assert torch.equal(batch.n_id[batch.edge_index], graph.edge_index[:, batch.e_id])
        assert sum(batch.num_sampled_nodes) == batch.num_nodes


def test_all_edges_are_seeds_by_default() -> None:
    graph = one_type()
    found = batches(graph, batch_size=100)
    assert sum(batch.edge_label_index.size(1) for batch in found) == 600


@pytest.mark.parametrize("amount", [1, 2.5])
def test_binary_negatives_follow_the_edges_and_shift_their_labels(amount: float) -> None:
    graph = one_type()
    options = {"neg_sampling": NegativeSampling("binary", amount), "edge_label": torch.arange(24) % 3}
    first, *_ = batches(graph, edge_label_index=graph.edge_index[:, WANTED], **options)
    extra = round(10 * amount)
    assert first.edge_label.tolist() == [1 + number % 3 for number in range(10)] + [0] * extra
    assert torch.equal(first.n_id[first.edge_label_index[:, :10]], graph.edge_index[:, :10])


@pytest.mark.parametrize("disjoint", [False, True])
def test_triplets_have_a_source_its_target_and_negative_targets(disjoint: bool) -> None:
    graph = one_type()
    ends = graph.edge_index[:, WANTED]
    first, *_ = batches(graph, edge_label_index=ends, neg_sampling=NegativeSampling("triplet", 2), disjoint=disjoint)
    assert torch.equal(first.n_id[first.src_index], ends[0, :10])
    assert torch.equal(first.n_id[first.dst_pos_index], ends[1, :10])
    assert first.dst_neg_index.shape == (10, 2)
    if disjoint:
        for index in (first.src_index, first.dst_pos_index, *first.dst_neg_index.t()):
            assert first.batch[index].tolist() == list(range(10))


def test_negatives_are_drawn_by_node_weight() -> None:
    graph = one_type()
    weight = torch.zeros(50)
    weight[[4, 9]] = 1.0
    sampling = NegativeSampling("triplet", 3, dst_weight=weight)
    first, *_ = batches(graph, edge_label_index=graph.edge_index[:, WANTED], neg_sampling=sampling)
    assert set(first.n_id[first.dst_neg_index].flatten().tolist()) == {4, 9}


def test_the_deprecated_neg_sampling_ratio_still_works() -> None:
    first, *_ = batches(one_type(), neg_sampling_ratio=1.0)
    assert first.edge_label.tolist() == [1.0] * 10 + [0.0] * 10


def test_samples_and_negatives_do_not_depend_on_the_number_of_workers() -> None:
    graph = one_type()
    options = {"edge_label_index": graph.edge_index[:, WANTED], "neg_sampling": "binary"}
    for one, other in zip(batches(graph, **options), batches(graph, num_workers=2, **options), strict=True):
        assert torch.equal(one.n_id[one.edge_label_index], other.n_id[other.edge_label_index])
        assert torch.equal(one.e_id, other.e_id)


def test_every_batch_draws_its_own_negatives() -> None:
    graph = one_type()
    ends = graph.edge_index[:, :1].expand(2, 20)
    one, other = batches(graph, edge_label_index=ends, neg_sampling="triplet")
    assert one.n_id[one.dst_neg_index].tolist() != other.n_id[other.dst_neg_index].tolist()


def test_drawing_negatives_does_not_advance_torchs_generator() -> None:
    graph = one_type()

    def after(**options: Any) -> float:
        batches(graph, batch_size=600, **options)
        return float(torch.rand(()))

    assert after() == after(neg_sampling="binary")


@pytest.mark.parametrize("sampling", [None, "binary", "triplet"])
def test_neighbours_and_negatives_are_not_newer_than_the_seed_edge(sampling: str | None) -> None:
    graph = one_type()
    ends, limits = graph.edge_index[:, WANTED], torch.arange(24) % 12 + 8
    found = batches(
        graph, edge_label_index=ends, edge_label_time=limits, time_attr="time", neg_sampling=sampling, shuffle=True
    )
    for batch in found:
        own = limits[batch.input_id][batch.batch]
        assert batch.num_edges > 0
        assert (graph.time[batch.n_id[batch.edge_index[0]]] <= own[batch.edge_index[0]]).all()
        assert (batch.batch[batch.edge_index[0]] == batch.batch[batch.edge_index[1]]).all()
    if sampling == "triplet":
        for batch in found:
            own = limits[batch.input_id]
            assert (graph.time[batch.n_id[batch.dst_neg_index]] <= own).all()
            assert torch.equal(batch.seed_time, own)
    elif sampling is None:
        assert all(torch.equal(batch.edge_label_time, limits[batch.input_id]) for batch in found)


@pytest.mark.parametrize("attribute", ["time", "edge_time"])
@pytest.mark.parametrize("sampling", [None, "binary", "triplet"])
@pytest.mark.parametrize("edge_type", [BOUGHT, KNOWS])
def test_typed_neighbours_and_negatives_are_not_newer_than_the_seed_edge(
    attribute: str, sampling: str | None, edge_type: tuple[str, str, str]
) -> None:
    graph = shop()
    source, _, target = edge_type
    ends, limits = graph[edge_type].edge_index[:, WANTED], torch.arange(24) % 12 + 8
    found = batches(
        graph,
        edge_label_index=(edge_type, ends),
        edge_label_time=limits,
        time_attr=attribute,
        neg_sampling=sampling,
    )
    for batch in found:
        own_limits = limits[batch[edge_type].input_id]
        for sampled in graph.edge_types:
            store = batch[sampled]
            sources, targets = store.edge_index
            tree = batch[sampled[0]].batch[sources]
            assert torch.equal(tree, batch[sampled[2]].batch[targets])
            seen = graph[sampled].edge_time[store.e_id]
            if attribute == "time":
                seen = graph[sampled[0]].time[batch[sampled[0]].n_id[sources]]
            assert (seen <= own_limits[tree]).all()
    first = found[0]
    if sampling == "triplet":
        found_ends = first[source].n_id[first[source].src_index], first[target].n_id[first[target].dst_pos_index]
    else:
        rows, columns = first[edge_type].edge_label_index[:, :10]
        found_ends = first[source].n_id[rows], first[target].n_id[columns]
    assert torch.equal(torch.stack(found_ends), ends[:, :10])


def test_an_induced_subgraph_includes_the_seed_edges() -> None:
    graph = one_type()
    first, *_ = batches(graph, edge_label_index=graph.edge_index[:, WANTED], subgraph_type="induced")
    assert set(range(10)) <= set(first.e_id.tolist())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time_attr": "time"}, "'edge_label_time' is not set while 'time_attr' is set"),
        ({"edge_label_time": torch.zeros(600)}, "'edge_label_time' is set while 'time_attr' is not set"),
        (
            {"neg_sampling": "triplet", "edge_label": torch.zeros(600)},
            "'edge_label' needs to be undefined for 'triplet'-based negative sampling",
        ),
    ],
)
def test_conflicting_arguments_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        batches(one_type(), **options)
