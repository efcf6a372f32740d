"""Telemetry of a node during a run: a thread of its local rank 0 takes a sample every few seconds.

The node's writer adds the heartbeats of its ranks and writes the sample.

`attempts/<n>/telemetry/<node>.jsonl`, one JSON object per line:

    {"time": ..., "seconds": 5.0, "cpu": 3.7, "cpus": 8, "memory": ..., "memory_limit": ..., "disk_read": ...,
     "disk_write": ..., "net_in": ..., "net_out": ..., "gpus": [{"index": 0, "utilisation": 97, ...}],
     "ranks": {"2": {"step": 120, "phase": "training", "step_seconds": 0.031, "busy_seconds": 0.028}}}

`cpu` is the number of processors in use; memory is in bytes, rates are in bytes per second, power in watts, temperature
in degrees Celsius; utilisation, sm_activity and memory_activity (the share of time in which a GPU's memory was read or
written) in percent. `seconds` is the length of the sample; old samples are averaged (`runs.samples`).
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from clusterctl.runs.idleness import GpuReading
from clusterctl.runs.place import node_name
from clusterctl.task.gpus import find_gpus
from clusterctl.task.usage import NodeUsage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from clusterctl.runs.fields import Fields
    from clusterctl.runs.node_link import NodeLink
    from clusterctl.runs.place import Place
    from clusterctl.runs.samples import Sample
    from clusterctl.task.gpus import Gpu
    from clusterctl.task.usage import Usage

INTERVAL_SECONDS = 5.0
_FIRST_SECONDS = 1.0  # so that even a short run gets one
_RATES = ("disk_read", "disk_write", "net_in", "net_out")
_OLD_SECONDS = 6 * INTERVAL_SECONDS


class NodeTelemetry:
    """Takes samples of one node and passes them to `send`."""

    def __init__(
        self,
        usage: NodeUsage,
        gpus: Callable[[], list[Gpu]],
        send: Callable[[Sample], object],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._usage, self._gpus, self._send, self._clock = usage, gpus, send, clock
        self._time, self._last = clock(), usage.read()

    def sample(self) -> None:
        """Send a sample of the time since the last one."""
        now, usage = self._clock(), self._usage.read()
        seconds = max(now - self._time, 1e-3)
        machine = rates(self._last, usage, seconds) | {"cpus": self._usage.cpus}
        self._time, self._last = now, usage
        times = {"time": round(now, 3), "seconds": round(seconds, 1)}
        self._send(times | machine | {"gpus": self._gpus()})


def rates(before: Usage, now: Usage, seconds: float) -> dict[str, Any]:
    """The columns of a sample that are computed from the machine's counters."""

    def rate(total: float, earlier: float) -> float:
        return max(0.0, (total - earlier) / seconds)

    return {
        "cpu": round(rate(now.cpu_seconds, before.cpu_seconds), 2),
        "memory": now.memory,
        "memory_limit": now.memory_limit,
        **{name: round(rate(getattr(now, name), getattr(before, name))) for name in _RATES},
    }


def start_telemetry(link: NodeLink | None, place: Place, environment: Mapping[str, str] = os.environ) -> None:
    """Sample this node as long as this process lives, if it is local rank 0 and there is a writer to send to.

    Even the first sample is taken in the thread: reading /proc of a process that waits for a dead file system blocks.
    """
    if link is None or place.local_rank != 0:
        return
    node = node_name(environment)

    def send(sample: Sample) -> None:
        link.send({"kind": "sample", "node": node, "sample": sample})

    def make() -> NodeTelemetry:
        gpus = find_gpus(environment)
        return NodeTelemetry(NodeUsage(environment), gpus.read if gpus else list, send)

    threading.Thread(target=_sample_forever, args=(make,), name="telemetry", daemon=True).start()


class GpuReadings:
    """The activity of this node's GPUs, for any of its ranks: from the latest sample, which the node's writer sends.

    Empty if there is no sample, or if it is old or incomplete.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: tuple[GpuReading, ...] = ()
        self._time = 0.0

    def take(self, message: Fields) -> None:
        """Handle the writer's message "gpus"."""
        gpus = message.tables("gpus")
        uses = [(gpu.number("utilisation"), gpu.number("memory_activity")) for gpu in gpus]
        known = tuple(GpuReading(busy, memory) for busy, memory in uses if busy is not None and memory is not None)
        self._known, self._time = known if len(known) == len(uses) else (), self._clock()

    def __call__(self) -> tuple[GpuReading, ...]:
        return self._known if self._clock() - self._time <= _OLD_SECONDS else ()


def _sample_forever(make: Callable[[], NodeTelemetry]) -> None:
    try:
        telemetry, pause = make(), _FIRST_SECONDS
        while True:
            time.sleep(pause)
            pause = INTERVAL_SECONDS
            telemetry.sample()
    except Exception as error:  # a machine without telemetry can still train
        print(f"telemetry stopped: {type(error).__name__}: {error}", file=sys.stderr)
