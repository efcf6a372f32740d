"""The differences between records of one kind, key by key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterctl.spec.overrides import Key


class Difference(NamedTuple):
    """A key with different values in two records; None if it is not set."""

    key: str
    first: Any
    second: Any


def differences(first: Iterable[tuple[Key, Any]], second: Iterable[tuple[Key, Any]]) -> tuple[Difference, ...]:
    """The differences between two sets of values, in the order of the keys."""
    return tuple(Difference(key, *values) for key, values in varying(first, second).items())


def varying(*records: Iterable[tuple[Key, Any]]) -> dict[str, tuple[Any, ...]]:
    """The keys that differ between the records, with all their values; None if not set.

    An empty table counts as not set.
    """
    tables = [{".".join(key): value for key, value in values if value != {}} for values in records]
    found = {key: tuple(table.get(key) for table in tables) for table in tables for key in table}
    return {key: values for key, values in found.items() if any(value != values[0] for value in values)}
