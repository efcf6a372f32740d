"""What a node does while the run goes on: one thread of its local rank 0 writes a sample every few seconds.

`attempts/<n>/telemetry/<node>.jsonl`, one JSON object a line:

    {"time": ..., "seconds": 5.0, "cpu": 3.7, "cpus": 8, "memory": ..., "memory_limit": ..., "disk_read": ...,
     "disk_write": ..., "net_in": ..., "net_out": ..., "gpus": [{"index": 0, "utilisation": 97, ...}],
     "ranks": {"2": {"step": 120, "phase": "training", "step_seconds": 0.031, "busy_seconds": 0.028}}}

`cpu` counts processors in use; memory is in bytes, the rates are in bytes a second, power in watts, temperature in
degrees Celsius, utilisation and sm_activity in percent. `seconds` says how long a sample lasted: old ones are averaged
(see `samples`).
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from clusterctl.runs.heartbeats import read_beat
from clusterctl.task.gpus import find_gpus
from clusterctl.task.samples import SampleFile
from clusterctl.task.usage import NodeUsage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clusterctl.runs.layout import Attempt
    from clusterctl.runs.place import Place
    from clusterctl.task.gpus import Gpu
    from clusterctl.task.usage import Usage

INTERVAL_SECONDS = 5.0
_FIRST_SECONDS = 1.0  # so that a short run has one too
_OF_BEATS = ("step", "phase", "step_seconds", "busy_seconds")


class NodeTelemetry:
    """Makes samples of one node. `ranks` are those whose heartbeats it shows."""

    def __init__(
        self,
        attempt: Attempt,
        node: str,
        usage: NodeUsage,
        gpus: Callable[[], list[Gpu]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.ranks: Sequence[int] = ()
        self._attempt, self._usage, self._gpus, self._clock = attempt, usage, gpus, clock
        self._file = SampleFile(attempt.telemetry(node))
        self._time, self._last = clock(), usage.read()

    def sample(self) -> None:
        """Write what happened since the last sample."""
        now, usage = self._clock(), self._usage.read()
        seconds = max(now - self._time, 1e-3)
        machine = rates(self._last, usage, seconds) | {"cpus": self._usage.cpus}
        self._time, self._last = now, usage
        self._file.append(
            {
                "time": round(now, 3),
                "seconds": round(seconds, 1),
                **machine,
                "gpus": self._gpus(),
                "ranks": self._beats(),
            }
        )

    def _beats(self) -> dict[str, dict[str, Any]]:
        beats = {rank: read_beat(self._attempt.heartbeat(rank)) for rank in self.ranks}
        return {str(rank): {name: getattr(beat, name) for name in _OF_BEATS} for rank, beat in beats.items() if beat}


def rates(before: Usage, now: Usage, seconds: float) -> dict[str, Any]:
    """The columns of a sample that this machine's counters give."""

    def rate(total: float, earlier: float) -> float:
        return max(0.0, (total - earlier) / seconds)

    return {
        "cpu": round(rate(now.cpu_seconds, before.cpu_seconds), 2),
        "memory": now.memory,
        "memory_limit": now.memory_limit,
        "disk_read": round(rate(now.disk_read, before.disk_read)),
        "disk_write": round(rate(now.disk_write, before.disk_write)),
        "net_in": round(rate(now.net_in, before.net_in)),
        "net_out": round(rate(now.net_out, before.net_out)),
    }


def start_telemetry(
    attempt: Attempt | None, place: Place, environment: Mapping[str, str] = os.environ
) -> NodeTelemetry | None:
    """Sample this node as long as this process lives, if it is the local rank 0 and has a run directory to write to."""
    if attempt is None or place.local_rank != 0:
        return None
    gpus = find_gpus(environment)
    node = environment.get("SLURMD_NODENAME") or socket.gethostname()
    telemetry = NodeTelemetry(attempt, node, NodeUsage(environment), gpus.read if gpus else list)
    threading.Thread(target=_sample_forever, args=(telemetry,), name="telemetry", daemon=True).start()
    return telemetry


def _sample_forever(telemetry: NodeTelemetry) -> None:
    pause = _FIRST_SECONDS
    while True:
        time.sleep(pause)
        pause = INTERVAL_SECONDS
        try:
            telemetry.sample()
        except Exception as error:  # whatever is odd about this machine: the training goes on
            print(f"no telemetry from here on: {type(error).__name__}: {error}", file=sys.stderr)
            return
