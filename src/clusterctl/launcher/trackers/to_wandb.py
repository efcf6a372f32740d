"""Weights & Biases: one run with the same id. WANDB_MODE=offline only writes to the run directory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import wandb

from clusterctl.launcher.trackers.mirror import parameters
from clusterctl.shared.record.states import State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.launcher.observe.run_record import RunRecord
    from clusterctl.launcher.trackers.mirror import Bookmark, TrackedPoint


class Wandb:
    """One W&B run. W&B rejects steps before the newest one, so nothing is added twice."""

    def __init__(self, record: RunRecord, _: Bookmark) -> None:
        entity, _slash, project = (record.job.track.wandb or "").rpartition("/")
        folder = record.run.trackers
        folder.mkdir(mode=0o700, exist_ok=True)
        # Not W&B's 100 seconds: the mirror retries later, and has other trackers to serve.
        patience = float(os.environ.get("WANDB_INIT_TIMEOUT", 20))
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
                console="off", silent=True, save_code=False, disable_git=True, init_timeout=patience
            ),
        )

    def add(self, points: Sequence[TrackedPoint]) -> None:
        for point in points:
            self._run.log({**point.values, "_timestamp": point.time}, step=point.step)

    def finish(self, state: State) -> None:
        self._run.summary["clusterctl/state"] = state.value
        self._run.finish(exit_code=0 if state is State.FINISHED else 1)

    def close(self) -> None:
        self._run.finish(exit_code=0)


open_sink = Wandb
