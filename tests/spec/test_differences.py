"""Differences between records, key by key."""

from __future__ import annotations

from clusterctl.shared.spec.keys import Difference, differences, varying


def test_only_differing_keys_are_reported() -> None:
    records = [[(("a",), 1), (("b", "c"), value), (("d",), {})] for value in (1, 2, 1)]
    assert varying(*records) == {"b.c": (1, 2, 1)}
    assert varying(*records, [(("e",), 0)]) == {"a": (1, 1, 1, None), "b.c": (1, 2, 1, None), "e": (None,) * 3 + (0,)}
    assert varying(records[0]) == varying() == {}


def test_a_difference_has_a_first_and_a_second_value() -> None:
    assert differences([(("x",), 1)], [(("y",), 2)]) == (Difference("x", 1, None), Difference("y", None, 2))
