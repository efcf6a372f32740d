"""What happened to each rank, and when: stage changes, exceptions with their traceback, the exit.

`attempts/<n>/events/rank_00003.jsonl`, one JSON object a line, `time` in seconds since the epoch:

    {"time": ..., "event": "stage", "stage": "training", "epoch": 3}
    {"time": ..., "event": "exception", "type": "ValueError", "message": "...", "traceback": "...", "hint": "..."}
    {"time": ..., "event": "hang", "stacks": "..."}
    {"time": ..., "event": "checkpoint", "name": "0-40", "seconds": 0.2}
    {"time": ..., "event": "exit", "code": 1}
"""

from __future__ import annotations

import os
import socket
import time
import traceback
from typing import TYPE_CHECKING, Any

from clusterctl.errors import ClusterctlError
from clusterctl.runs.files import Lines
from clusterctl.runs.heartbeats import Heart

if TYPE_CHECKING:
    from clusterctl.runs.layout import Attempt
    from clusterctl.runs.stages import Stage


class Events:
    """The writer of one rank's events. Without an attempt (under torchrun alone) it keeps silent.

    `heart` is the rank's pulse: each stage is a phase of it.
    """

    def __init__(self, attempt: Attempt | None, rank: int, heart: Heart | None = None) -> None:
        self.heart = heart or Heart()
        self._lines = Lines(attempt.events(rank)) if attempt else None
        self._failed = False

    def stage(self, stage: Stage, **details: Any) -> None:
        self.heart.enter(stage.value)
        self._write("stage", stage=stage.value, **details)

    def began(self, local_rank: int, node_rank: int) -> None:
        """The first event: which process on which node this rank is."""
        host = socket.gethostname()
        node = os.environ.get("SLURMD_NODENAME", host)  # as Slurm calls it, which need not be its host name
        self._write("began", host=host, node=node, pid=os.getpid(), local_rank=local_rank, node_rank=node_rank)

    def exception(self, error: BaseException) -> None:
        """Record the first exception of this rank, the innermost cause first to be told; later ones are its echo."""
        if not self._failed:
            self._failed = True
            text = "".join(traceback.format_exception(error))
            hint = {"hint": error.hint} if isinstance(error, ClusterctlError) and error.hint else {}
            self._write("exception", type=type(error).__name__, message=str(error), traceback=text, **hint)

    def hang(self, stacks: str) -> None:
        """The watchdog raised an alarm; `stacks` is where each thread of this rank stands."""
        self._write("hang", stacks=stacks)

    def record(self, event: str, **details: Any) -> None:
        """Record anything else that happened."""
        self._write(event, **details)

    def exit(self, code: int) -> None:
        self._write("exit", code=code)

    def _write(self, event: str, **details: Any) -> None:
        if self._lines:
            self._lines.append({"time": time.time(), "event": event, **details})
