"""Where the time of a training step goes: sampling, gathering, compute, communication.

On a GPU, the marks are events in its stream, so that nothing waits for them: the parts then add up to the GPU's time,
including the time it waits for the host. A lap is read when the host has waited for the GPU anyway.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from clusterctl.shared.record.metrics import STEP_PARTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class StepClock:
    """The clock of one rank. It costs a few microseconds per step."""

    def __init__(self, device: torch.device | None = None) -> None:
        on_gpu = device is not None and device.type == "cuda"
        self._now: Callable[[], Any] = _recorded_event if on_gpu else time.perf_counter
        self._between: Callable[[Any, Any], float] = (
            (lambda start, end: float(start.elapsed_time(end)) / 1000) if on_gpu else lambda start, end: end - start
        )
        self._marks: list[tuple[str, Any]] = []
        self.listener: Callable[[str], None] | None = None  # called with each part that begins
        self.work = {"nodes": 0, "edges": 0}
        self._noted: dict[str, float] = {}
        self._is_paused = False

    def enter(self, part: str, piece: str = "") -> None:
        """End the current part and begin `part`; `piece` is a finer name for listeners."""
        if self._is_paused:
            return
        self._marks.append((part, self._now()))
        if self.listener:
            self.listener(piece or part)

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """The part that reads input rows; the forward begins afterwards."""
        self.enter("gathering")
        yield
        self.enter("compute", "forward")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Ignore `enter` within this context: no marks fit inside a CUDA graph."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def restart(self, part: str) -> None:
        """Begin a step with `part`; the time since the last lap belongs to no step."""
        self._marks.clear()
        self.enter(part)

    def count(self, nodes: int, edges: int) -> None:
        """What this step trains on: seed nodes (or nodes of graphs) of all ranks, and edges as far as rank 0 knows."""
        self.work = {"nodes": nodes, "edges": edges}

    def note(self, numbers: dict[str, float]) -> None:
        """Add other metrics of this step."""
        self._noted = numbers

    def lap(self, part: str, piece: str = "") -> Lap:
        """End a step; the next one begins with `part`."""
        marks = [*self._marks, (part, self._now())]
        self._marks = [marks[-1]]
        if self.listener:
            self.listener(piece or part)
        return Lap(marks, self._between, self.work, self._noted)


class Lap(NamedTuple):
    """The times and work of one step."""

    marks: list[tuple[str, Any]]
    between: Callable[[Any, Any], float]
    work: dict[str, int]
    noted: dict[str, float]

    def read(self) -> dict[str, float]:
        """Total seconds, seconds by part, and the counts per second. On a GPU, waits for the end of the step."""
        seconds = dict.fromkeys(STEP_PARTS, 0.0)
        last = self.marks[-1][1]
        if isinstance(last, torch.cuda.Event):
            last.synchronize()
        for (name, start), (_, end) in pairwise(self.marks):
            seconds[name] += self.between(start, end)
        whole = sum(seconds.values())
        rates = {f"{what}_per_second": round(count / whole) for what, count in self.work.items() if count and whole}
        parts = {name: round(value, 6) for name, value in seconds.items()}
        return {"seconds": round(whole, 6), **parts, **rates, **self.noted}


def _recorded_event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event
