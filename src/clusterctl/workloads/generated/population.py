"""Nodes with classes and weights, from which the ends of edges are drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


class Population:
    """Draws nodes in proportion to their weights: from all nodes, or from a class."""

    def __init__(self, weights: Tensor, classes: Tensor, num_classes: int) -> None:
        self._order = classes.argsort(stable=True)  # the nodes of a class are contiguous
        self._line = weights[self._order].cumsum(0)
        self._ends = self._line[classes.bincount(minlength=num_classes).cumsum(0) - 1]
        self._begins = torch.cat([self._ends.new_zeros(1), self._ends[:-1]])

    def drawn(self, classes: Tensor, homophily: float, random: torch.Generator) -> Tensor:
        """int64: a node for each of these classes, with probability `homophily` one of that class, else any.

        Draws a position in the cumulative weights of all nodes, or of the class.
        """
        position = torch.rand(classes.numel(), generator=random, dtype=torch.float64)
        alike = torch.rand(classes.numel(), generator=random) < homophily
        low = torch.where(alike, self._begins[classes], 0.0)
        high = torch.where(alike, self._ends[classes], self._ends[-1])
        places = torch.searchsorted(self._line, low + position * (high - low)).clamp_(max=self._order.numel() - 1)
        return self._order[places]
