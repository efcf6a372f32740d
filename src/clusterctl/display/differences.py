"""Differences between two runs, as text for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterctl.display.plain import plain
from clusterctl.spec.keys import as_toml

if TYPE_CHECKING:
    from clusterctl.spec.differences import Difference


def value_text(value: Any) -> str:
    """A value in TOML."""
    return plain(as_toml(value)) or "not set"


def change_line(change: Difference) -> str:
    """A line such as `train.lr: 0.01 -> 0.003`."""
    return f"{plain(change.key)}: {value_text(change.first)} -> {value_text(change.second)}"
