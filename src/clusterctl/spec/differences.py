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
    """Where two sets of values differ, in the order of the keys."""
    return tuple(Difference(key, *values) for key, values in varying(first, second).items())


def varying(*records: Iterable[tuple[Key, Any]]) -> dict[str, tuple[Any, ...]]:
    """The keys that have not the same value in all records, with their values; None where there is none.

    An empty table is no value.
    """
    tables = [{".".join(key): value for key, value in values if value != {}} for values in records]
    found = {key: tuple(table.get(key) for table in tables) for table in tables for key in table}
    return {key: values for key, values in found.items() if any(value != values[0] for value in values)}
