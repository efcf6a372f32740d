"""What differs between two records of a kind, key by key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterctl.spec.overrides import Key


class Difference(NamedTuple):
    """A key that has another value in the second record than in the first; None where it has none."""

    key: str
    first: Any
    second: Any


def differences(first: Iterable[tuple[Key, Any]], second: Iterable[tuple[Key, Any]]) -> tuple[Difference, ...]:
    """Where two sets of values differ, in the order of the keys. An empty table is no value."""
    before, after = ({".".join(key): value for key, value in values if value != {}} for values in (first, second))
    found = (Difference(key, before.get(key), after.get(key)) for key in before | after)
    return tuple(one for one in found if one.first != one.second)
