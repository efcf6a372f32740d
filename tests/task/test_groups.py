from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clusterctl.task.rendezvous import Member, ranks_by_node


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30))
def test_every_rank_is_in_the_group_of_its_node_and_in_no_other(nodes: list[int]) -> None:
    groups = ranks_by_node([Member(node) for node in nodes])
    assert sorted(rank for ranks in groups for rank in ranks) == list(range(len(nodes)))
    assert [[nodes[rank] for rank in ranks] for ranks in groups] == [
        [node] * nodes.count(node) for node in sorted(set(nodes))
    ]
