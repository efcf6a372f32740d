"""Weights & Biases: one run whose id is that of the run. WANDB_MODE=offline writes to the run directory alone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import wandb

from clusterctl.runs.stages import Stage
from clusterctl.trackers.sink import parameters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.observe.run_record import RunRecord
    from clusterctl.trackers.points import Bookmark, TrackedPoint


class Wandb:
    """One run of W&B. It takes no step that is behind its newest one, so that nothing is there twice."""

    def __init__(self, record: RunRecord, _: Bookmark) -> None:
        entity, _slash, project = (record.job.track.wandb or "").rpartition("/")
        folder = record.run.trackers
        folder.mkdir(mode=0o700, exist_ok=True)
        self._run = wandb.init(
            project=project,
            entity=entity or None,
            id=record.run.id,
            name=record.run.id,
            group=record.job.name,
            dir=str(folder),
            config=parameters(record),
            resume="allow",
            settings=wandb.Settings(
                console="off", silent=True, save_code=False, disable_git=True, init_timeout=_seconds_to_open()
            ),
        )

    def add(self, points: Sequence[TrackedPoint]) -> None:
        for point in points:
            self._run.log({**point.values, "_timestamp": point.time}, step=point.step)

    def finish(self, stage: Stage) -> None:
        self._run.summary["clusterctl/stage"] = stage.value
        self._run.finish(exit_code=0 if stage is Stage.FINISHED else 1)

    def close(self) -> None:
        self._run.finish(exit_code=0)


def _seconds_to_open() -> float:
    """The mirror comes again where a server is down, and has other trackers. By itself W&B tries for 100 seconds."""
    return float(os.environ.get("WANDB_INIT_TIMEOUT", 20))


open_sink = Wandb
