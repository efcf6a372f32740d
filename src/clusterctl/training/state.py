"""What a part of a training must remember to go on as if nothing had been: its state, as tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


class Sharded(NamedTuple):
    """Rows [start, start + len(rows)) of a tensor of `total` rows, of which every rank holds others.

    Together they are all of it. The ranges may be others at the next start: rows are found by their numbers.
    """

    rows: Tensor
    start: int
    total: int


class State(NamedTuple):
    """Tensors by name: those that are the same on every rank, and those of which each rank holds its rows.

    They may be views of the living ones: they are copied, or read into, at once.
    """

    same: Mapping[str, Tensor]
    sharded: Mapping[str, Sharded] = {}


@runtime_checkable
class Stateful(Protocol):
    """A part of a training that is in its checkpoints: model, optimiser, selection, an objective that has more."""

    def state(self) -> State:
        """What there is to keep now, with the same names, shapes and dtypes in every process of a run."""

    def load(self, state: State) -> None:
        """Go on from `state`, which has the names of `state()`, and this rank's present rows of what is sharded."""
