"""Which node holds a row, and whom a rank asks for it. Fetches need ranks: tests/training."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from clusterctl.engine.graph.features.placement import Layout

nodes_of_ranks = st.lists(st.integers(0, 5), min_size=1, max_size=12).map(tuple)


@given(nodes_of_ranks, st.integers(1, 200))
def test_every_row_has_one_place_on_one_node(node_of: tuple[int, ...], total: int) -> None:
    layouts = [Layout(rank, node_of, total) for rank in range(len(node_of))]
    first_rows = layouts[0].first_rows()
    places = [
        (node_of[row // layouts[0].size], int(first_rows[row // layouts[0].size]) + row % layouts[0].size)
        for row in range(total)
    ]
    assert len(set(places)) == total
    for layout in layouts:
        assert layout.first_rows().tolist() == first_rows.tolist()
        held = [place for node, place in places if node == node_of[layout.rank]]
        assert max(held, default=0) < layout.size * len(layout.own_slices)


@given(nodes_of_ranks)
def test_a_rank_asks_a_rank_of_the_node_that_holds_the_slice(node_of: tuple[int, ...]) -> None:
    for rank, own in enumerate(node_of):
        peers = Layout(rank, node_of, 100).peers().tolist()
        assert [node_of[peer] for peer in peers] == list(node_of)
        assert all(peer == rank for peer, node in zip(peers, node_of, strict=True) if node == own)


def test_the_ranks_of_a_node_ask_different_ranks_of_another() -> None:
    node_of = (0, 1, 0, 1, 0, 1)  # as Slurm distributes cyclically
    asked = Counter(Layout(rank, node_of, 60).peers()[1].item() for rank in (0, 2, 4))
    assert asked == {1: 1, 3: 1, 5: 1}
