"""The points of a run for a tracker, each once despite restarts, and the tracker's position in them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.observe.lines import Growing
from clusterctl.observe.measurements import measurements_in
from clusterctl.runs.fields import read_fields
from clusterctl.runs.files import write_json
from clusterctl.runs.vocabulary import Role, metric_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from clusterctl.observe.measurements import Measurement
    from clusterctl.runs.layout import RunDir
    from clusterctl.runs.vocabulary import Number


class TrackedPoint(NamedTuple):
    """The values measured at one step; time in seconds since the epoch."""

    step: int
    time: float
    values: dict[str, Number]


@dataclass
class Bookmark:
    """A tracker's position in a run: the next byte of an attempt's metrics, and the newest step of each name."""

    attempt: int = 0
    offset: int = 0
    step: int = 0
    steps: dict[str, int] = field(default_factory=dict)
    ended: str = ""  # the final stage sent to the tracker

    def take(self, measured: Measurement) -> TrackedPoint | None:
        """The point in a line, without values the tracker has: a restart repeats the steps after its checkpoint."""
        if measured.step is not None:
            self.step = int(measured.step)
        elif "loss" in measured.values:  # a program that logs no steps
            self.step += 1
        new = {
            name: value
            for name, value in measured.values.items()
            if metric_of(name).role is not Role.COUNT and self.step > self.steps.get(name, -1)
        }
        self.steps |= dict.fromkeys(new, self.step)
        return TrackedPoint(self.step, measured.time or 0.0, new) if new else None


def read_bookmark(path: Path) -> Bookmark:
    """The bookmark in a file; the beginning if there is none."""
    fields = read_fields(path)
    steps = {name: int(step) for name, step in fields.table("steps").numbers().items() if type(step) is int}
    numbers = {name: fields.whole(name) or 0 for name in ("attempt", "offset", "step")}
    return Bookmark(**numbers, steps=steps, ended=fields.text("ended"))


def write_bookmark(path: Path, bookmark: Bookmark) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    write_json(path, asdict(bookmark))


def new_points(run: RunDir, bookmark: Bookmark) -> Iterator[list[TrackedPoint]]:
    """The points from `bookmark` on, in batches; `bookmark` is moved behind each batch."""
    for attempt in run.attempts():
        if attempt.number < bookmark.attempt:
            continue
        if attempt.number > bookmark.attempt:
            bookmark.attempt, bookmark.offset = attempt.number, 0
        for offset, block in Growing(attempt.metrics, bookmark.offset).placed_blocks():
            points = [point for one in measurements_in(block.split(b"\n")) if (point := bookmark.take(one))]
            bookmark.offset = offset + len(block) + 1
            if points:
                yield points
