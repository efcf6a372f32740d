"""The stages of a run, with the names used by all commands and JSON output."""

from __future__ import annotations

from enum import StrEnum


class Stage(StrEnum):
    QUEUED = "queued"
    STARTING = "starting"
    IMPORTING = "importing"
    RENDEZVOUS = "rendezvous"
    LOADING = "loading"
    TRAINING = "training"
    EVALUATING = "evaluating"
    CHECKPOINTING = "checkpointing"
    FINISHED = "finished"
    FAILED = "failed"
    PREEMPTED = "preempted"
    TIMED_OUT = "timed-out"
    CANCELLED = "cancelled"
    LOST = "lost"  # unknown to Slurm, with no record of how it ended

    @property
    def ended(self) -> bool:
        return self in ENDED


ENDED = frozenset({Stage.FINISHED, Stage.FAILED, Stage.PREEMPTED, Stage.TIMED_OUT, Stage.CANCELLED, Stage.LOST})
