"""Events of each rank, with their times.

`attempts/<n>/nodes/00002.events.jsonl`, one JSON object per line, `time` in seconds since the epoch:

    {"rank": 3, "time": ..., "event": "stage", "stage": "training", "epoch": 3}
    {"time": ..., "event": "exception", "type": "ValueError", "message": "...", "traceback": "..."}
    {"time": ..., "event": "exception", "type": "ProgramEnded", ..., "cause": "killed", "code": 137, "signal": 9}
    {"time": ..., "event": "ready"}                                 the program of a role
    {"time": ..., "event": "again", "why": "..."}                   it has failed, and was started again alone
    {"time": ..., "event": "hang", "stacks": "..."}
    {"time": ..., "event": "exit", "code": 143, "signal": 15}

and from the writer itself

    {"rank": 3, "time": ..., "event": "frozen", "stacks": "..."}    from faulthandler, because Python did not answer
    {"rank": 3, "time": ..., "event": "writer"}                     the writer had ended; with `error`, for good

A rank without a writer appends to its own file, `events/rank_00003.jsonl`, in the same format. Our own exceptions have
their `cause` (`errors.Cause`) and `hint`; `signal` is present if a signal ended the rank.
"""

from __future__ import annotations

import os
import socket
import time
import traceback
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from clusterctl.shared.errors import ClusterctlError, ProgramEnded
from clusterctl.shared.node.signals import StopRequest
from clusterctl.shared.record.files import Lines
from clusterctl.shared.record.heartbeats import Heart
from clusterctl.shared.record.marks import RankMark
from clusterctl.shared.record.place import Place, node_name
from clusterctl.shared.record.states import State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.shared.node.node_link import NodeLink
    from clusterctl.shared.record.layout import Attempt
    from clusterctl.shared.spec import Job, Train


_URGENT = frozenset({"exception", "exit", "superseded"})  # must be on disk before the rank continues


class Events:
    """One rank's events and mark; does nothing without an attempt. Each state is a phase of its `heart`.

    Events go to the node's writer through `link`; those it does not accept go to the rank's own file.
    """

    def __init__(self, attempt: Attempt | None, rank: int, link: NodeLink | None = None) -> None:
        self.heart = Heart()
        self.link = link
        self._attempt, self._rank = attempt, rank
        self._lines: Lines | None = None
        self._lock = Lock()
        if link is not None:
            link.left = self._write
        self._mark = RankMark(attempt, rank) if attempt else None
        self._failed = self._trained = False

    def state(self, state: State, **details: Any) -> None:
        self._trained = self._trained or state is State.TRAINING
        self.heart.enter(state.value)
        self.record("stage", stage=state.value, **details)

    def began(self, local_rank: int, node_rank: int) -> None:
        """The first event: the rank's process and node."""
        host = socket.gethostname()
        self.record("began", host=host, node=node_name(), pid=os.getpid(), local_rank=local_rank, node_rank=node_rank)
        if self._mark:
            self._mark.begin()

    def exception(self, error: BaseException) -> None:
        """Record the first exception of this rank; later ones are only consequences."""
        if not self._failed:
            self._failed = True
            shown, ours = traceback.TracebackException.from_exception(error), dict[str, Any]()
            if isinstance(error, ClusterctlError):
                shown.__notes__ = []  # the hint is recorded beside it
                ours = {"cause": error.cause.value} | ({"hint": error.hint} if error.hint else {})
            if isinstance(error, ProgramEnded):
                ours |= {"code": error.code, "signal": error.signal}
            self.record(
                "exception", type=type(error).__name__, message=str(error), traceback="".join(shown.format()), **ours
            )

    def exit(self, code: int, signal: int | None = None, *, cut: bool = False, broken: bool = False) -> None:
        """Record the exit. `signal` is the one that asked this rank to exit; `cut`: it has lost its connections;
        `broken`: its GPU is.

        Before the training, a lost connection is more often a wrong setting, which would only fail again.
        """
        self.record("exit", code=code, **({} if signal is None else {"signal": signal}))
        if self._mark:
            self._mark.end(code, cut=cut and self._trained, broken=node_name() if broken else "")

    def killed(self, signal: int) -> None:
        """The rank's program was killed: leave the mark as if this process had been killed."""
        self.record("exit", code=128 + signal, signal=signal)

    def record(self, event: str, **details: Any) -> None:
        """Record any event, in the format above."""
        record = {"time": time.time(), "event": event, **details}
        if self.link is not None:
            self.link.record(record, urgent=event in _URGENT)
        else:
            self._write([record])

    def _write(self, records: list[dict[str, Any]]) -> None:
        if self._attempt is None:
            return
        with self._lock:
            self._lines = self._lines or Lines(self._attempt.events(self._rank), self._attempt.path.parents[1])
            for record in records:
                self._lines.append(record)


# The single argument of a workload's `main`.


T = TypeVar("T", bound="Train")


@dataclass(frozen=True)
class Context:
    """One rank before it has connected to the others; `record` is its job from run.json.

    Without an attempt (under torchrun, in tests) nothing is recorded.
    """

    record: Mapping[str, Any]
    place: Place = field(default_factory=Place.from_environment)
    attempt: Attempt | None = None
    events: Events = field(default_factory=lambda: Events(None, 0))
    stop: StopRequest = field(default_factory=StopRequest)

    @cached_property
    def job(self) -> Job:
        """The validated job. Raises InvalidRecord."""
        # late: not needed by workload "command" (docs/decisions/programs-and-their-environment.md)
        from clusterctl.shared.spec import Job, from_record

        return from_record(Job, dict(self.record))

    def train(self, kind: type[T]) -> T:
        """The job's `[train]` table as `kind`, the class that this workload is registered with."""
        assert isinstance(self.job.train, kind), f"{self.job.workload} is registered with another class"
        return self.job.train
