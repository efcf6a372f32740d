"""What happened to each rank, and when: stage changes, exceptions with their traceback, the exit.

`attempts/<n>/events/rank_00003.jsonl`, one JSON object a line, `time` in seconds since the epoch:

    {"time": ..., "event": "stage", "stage": "training", "epoch": 3}
    {"time": ..., "event": "exception", "type": "ValueError", "message": "...", "traceback": "..."}
    {"time": ..., "event": "exception", "type": "TaskError", ..., "hint": "...", "cause": "data"}
    {"time": ..., "event": "exception", "type": "ProgramEnded", ..., "cause": "killed", "code": 137, "signal": 9}
    {"time": ..., "event": "hang", "stacks": "..."}
    {"time": ..., "event": "checkpoint", "name": "0-40", "seconds": 0.2}
    {"time": ..., "event": "exit", "code": 143, "signal": 15}

An exception that is one of ours carries its `cause` (`errors.Cause`); `signal` is there where one ended the rank.
"""

from __future__ import annotations

import os
import socket
import time
import traceback
from typing import TYPE_CHECKING, Any

from clusterctl.errors import ClusterctlError, ProgramEnded
from clusterctl.runs.files import Lines
from clusterctl.runs.heartbeats import Heart
from clusterctl.runs.marks import RankMark

if TYPE_CHECKING:
    from clusterctl.runs.layout import Attempt
    from clusterctl.runs.stages import Stage


class Events:
    """The writer of one rank's events. Without an attempt (under torchrun alone) it keeps silent.

    `heart` is the rank's pulse: each stage is a phase of it. Its mark for the batch script follows its first event and
    its last.
    """

    def __init__(self, attempt: Attempt | None, rank: int, heart: Heart | None = None) -> None:
        self.heart = heart or Heart()
        self._lines = Lines(attempt.events(rank)) if attempt else None
        self._mark = RankMark(attempt, rank) if attempt else None
        self._failed = False

    def stage(self, stage: Stage, **details: Any) -> None:
        self.heart.enter(stage.value)
        self._write("stage", stage=stage.value, **details)

    def began(self, local_rank: int, node_rank: int) -> None:
        """The first event: which process on which node this rank is."""
        host = socket.gethostname()
        node = os.environ.get("SLURMD_NODENAME", host)  # as Slurm calls it, which need not be its host name
        self._write("began", host=host, node=node, pid=os.getpid(), local_rank=local_rank, node_rank=node_rank)
        if self._mark:
            self._mark.begin()

    def exception(self, error: BaseException) -> None:
        """Record the first exception of this rank, the innermost cause first to be told; later ones are its echo."""
        if not self._failed:
            self._failed = True
            text = "".join(traceback.format_exception(error))
            ours: dict[str, Any] = {}
            if isinstance(error, ClusterctlError):
                ours = {"cause": error.cause.value} | ({"hint": error.hint} if error.hint else {})
            if isinstance(error, ProgramEnded):
                ours |= {"code": error.code, "signal": error.signal}
            self._write("exception", type=type(error).__name__, message=str(error), traceback=text, **ours)

    def hang(self, stacks: str) -> None:
        """The watchdog raised an alarm; `stacks` is where each thread of this rank stands."""
        self._write("hang", stacks=stacks)

    def record(self, event: str, **details: Any) -> None:
        """Record anything else that happened."""
        self._write(event, **details)

    def exit(self, code: int, signal: int | None = None) -> None:
        """`signal` is the one that ended this rank, or the program that it ran."""
        self._write("exit", code=code, **({} if signal is None else {"signal": signal}))
        if self._mark:
            self._mark.end(code)

    def _write(self, event: str, **details: Any) -> None:
        if self._lines:
            self._lines.append({"time": time.time(), "event": event, **details})
