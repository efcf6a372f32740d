"""The key of an epoch's samples, drawn from torch's generator: samples do not depend on the worker that draws them."""

from __future__ import annotations

import torch
from torch import Tensor

from clusterctl.engine.graph.hashing import draws

_HIGHEST = torch.iinfo(torch.int64).max


class EpochKey:
    """A loader begins an epoch in its own process, and its workers share the key."""

    def __init__(self) -> None:
        self._shared: Tensor | None = None

    def begin(self) -> None:
        """Draw the key of all samples up to the next call."""
        if self._shared is None:
            self._shared = torch.zeros(1, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._shared.random_(_HIGHEST)

    def value(self) -> int:
        """The epoch's key; a new one each time for a sampler that is used without a loader of ours."""
        return int(torch.randint(_HIGHEST, ()) if self._shared is None else self._shared)


def digest(examples: Tensor) -> int:
    """A number for a set of int64 examples, the same in any order."""
    return int(draws(0, examples).sum())
