"""Asynchronous successive halving: a run of a sweep stops early if other runs did better at the same epoch.

    .sweeps/<sweep>/rungs/<epoch>/<place>.json     the validation score of a run at that epoch, and whether it continued

There is no controller. At epochs e, 2e, 4e, ... each run writes its score, reads the scores that other runs have
written so far, and continues if it is in the better half. The first run to arrive always continues, as in the
asynchronous form of the algorithm (Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020, with
eta = 2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.runs.fields import read_fields
from clusterctl.runs.files import write_json
from clusterctl.runs.layout import RunDir, SweepDir
from clusterctl.runs.ownership import make_private
from clusterctl.task.exchange import from_first

if TYPE_CHECKING:
    from pathlib import Path

    from clusterctl.task.task import Task


class Halving:
    """The decisions of one run; none if the run is not part of a sweep or has not enabled halving."""

    def __init__(self, first_epoch: int, task: Task) -> None:
        self._first, self._task = first_epoch, task
        run = RunDir(task.attempt.path.parents[1]) if task.attempt else None
        sweep, _, self._place = run.id.rpartition(".") if run else ("", "", "")
        self._rungs = SweepDir.of(run.path.parent, sweep).rungs if run and self._place.isdigit() else None

    def decides(self, epoch: int) -> bool:
        """Whether `epoch` is one of e, 2e, 4e, ..."""
        if self._rungs is None or not self._first or epoch % self._first:
            return False
        times = epoch // self._first
        return times & (times - 1) == 0

    def stops(self, epoch: int, score: float) -> bool:
        """Whether the run stops after `epoch`, with this validation score. A collective of all ranks.

        A restarted run repeats its earlier decision.
        """
        assert self._rungs is not None
        rung = self._rungs / str(epoch)
        better, others, stops = from_first(lambda: self._judge(rung, score), self._task.agreeing)
        if stops and self._task.place.rank == 0:
            print(f"stopped early: {better} of {others} other runs were better at epoch {epoch}", flush=True)
        return bool(stops)

    def _judge(self, rung: Path, score: float) -> tuple[int, int, bool]:
        """The number of better runs, the number of other runs, and whether this run stops."""
        own = make_private(rung) / f"{self._place}.json"
        known = read_fields(own)
        if not known.absent and not known.problem:
            return known.whole("better") or 0, known.whole("others") or 0, known.flag("stops")
        scores = [read_fields(path).number("score") for path in rung.glob("[0-9]*.json")]
        others = [other for other in scores if other is not None]
        better = sum(other > score for other in others)
        stops = better > len(others) / 2
        write_json(own, {"score": score, "better": better, "others": len(others), "stops": stops})
        return better, len(others), stops
