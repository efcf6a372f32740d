"""Layout of the panes: one below the runs on a small terminal, all side by side on a large one."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

_WIDE_COLUMNS, _WIDE_LINES = 150, 40
_RUNS_LINES = 7  # including the frame, on a small terminal


class Pane(StrEnum):
    RUNS = "runs"
    TRAINING = "training"
    DEVICES = "devices"
    STEPS = "steps"
    LOG = "log"
    EVENTS = "events"
    QUEUE = "queue"
    WHY = "why"


PAGES = tuple(pane for pane in Pane if pane is not Pane.RUNS)
"""The panes that can be maximized, in the order of their keys, from 1."""


class Region(NamedTuple):
    """The position and size of a pane including its frame, in characters."""

    pane: Pane
    x: int
    y: int
    width: int
    height: int


def arrange(width: int, height: int, page: Pane | None = None) -> list[Region]:
    """The non-overlapping regions of a `width` x `height` terminal, between its first and last line.

    `page` is the maximized pane; by default, a small terminal shows the training.
    """
    lines = height - 2  # the title and the keys
    wide = width >= _WIDE_COLUMNS and height >= _WIDE_LINES
    if not wide or page is not None:
        runs = max(4, min(14 if wide else _RUNS_LINES, lines // 3))
        alone = Region(page or Pane.TRAINING, 0, 1 + runs, width, max(3, lines - runs))
        return [Region(Pane.RUNS, 0, 1, width, runs), alone]
    left = max(60, width * 2 // 5)
    right = width - left
    upper = lines * 3 // 5
    lower = lines - upper
    runs, events = upper // 2, upper - upper // 2
    devices = upper // 3
    queue, log = lower // 2, width - left - right // 3
    return [
        Region(Pane.RUNS, 0, 1, left, runs),
        Region(Pane.EVENTS, 0, 1 + runs, left, events),
        Region(Pane.TRAINING, left, 1, right, upper - devices),
        Region(Pane.DEVICES, left, 1 + upper - devices, right, devices),
        Region(Pane.QUEUE, 0, 1 + upper, left, queue),
        Region(Pane.WHY, 0, 1 + upper + queue, left, lower - queue),
        Region(Pane.STEPS, left, 1 + upper, right - log, lower),
        Region(Pane.LOG, width - log, 1 + upper, log, lower),
    ]
