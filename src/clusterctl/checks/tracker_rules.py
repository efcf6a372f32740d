"""Checks whether the run's node can copy its metrics to the trackers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.checks.check import Check, warn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.checks.surroundings import Surroundings


def tracker_rules(found: Surroundings) -> Iterator[Check]:
    """The library of each tracker. The run itself does not need them."""
    if found.wanted is None:
        return
    for name in found.wanted.missing_trackers:
        hint = f"pip install 'clusterctl[{name}]', or set track.where=login and use: clusterctl track RUN"
        yield warn("track", f"track.{name}: {name} is not installed in the Python that copies the metrics", hint)
