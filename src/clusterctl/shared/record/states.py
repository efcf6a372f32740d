"""The states of a run, with the names used by all commands and JSON output."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    QUEUED = "queued"
    STARTING = "starting"
    NODE_SETUP = "node-setup"  # the lines of `node_setup` run on the nodes
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


ENDED = frozenset({State.FINISHED, State.FAILED, State.PREEMPTED, State.TIMED_OUT, State.CANCELLED, State.LOST})
