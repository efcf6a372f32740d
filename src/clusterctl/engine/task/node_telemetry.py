"""Telemetry of a node during a run: a thread of its local rank 0 takes a sample every few seconds.

It reads the GPUs (`gpus`), and the rest from /proc and the job's cgroup (`node_usage`). The node's writer adds the
heartbeats of its ranks and writes the sample.

`attempts/<n>/telemetry/<node>.jsonl`, one JSON object per line:

    {"time": ..., "seconds": 5.0, "cpu": 3.7, "cpus": 8, "memory": ..., "memory_limit": ..., "disk_read": ...,
     "disk_write": ..., "net_in": ..., "net_out": ..., "gpus": [{"index": 0, "utilisation": 97, ...}],
     "peak": {"memory": ..., "cpu": 3.9, "gpu_memory": ..., "cgroup": true},
     "ranks": {"2": {"step": 120, "phase": "training", "step_seconds": 0.031, "busy_seconds": 0.028}}}

`cpu` is the number of processors in use; memory is in bytes, rates are in bytes per second, power in watts, temperature
in degrees Celsius; utilisation, sm_activity and memory_activity (the share of time in which a GPU's memory was read or
written) in percent. `peak` is the most of the attempt so far: the memory that it needed (`MemoryNeed`), and whether a
cgroup counted it, the processors in use, and the memory in use on the fullest GPU. `seconds` is the length of the
sample; old samples are averaged (`node_writer.SampleFile`).
"""

from __future__ import annotations

import os
import sys
import threading
import time
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from clusterctl.engine.task.gpus import Gpu, find_gpus
from clusterctl.engine.task.node_usage import NodeUsage, Usage
from clusterctl.shared.node.idleness import GpuReading
from clusterctl.shared.record.place import node_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from clusterctl.shared.node.node_link import NodeLink
    from clusterctl.shared.node.node_writer import Sample
    from clusterctl.shared.record.fields import Fields
    from clusterctl.shared.record.place import Place


INTERVAL_SECONDS = 5.0
_FIRST_SECONDS = (1.0, 2.0)  # the first intervals, so that even a short run gets some
_SHORTEST_SECONDS = 0.5  # of a last sample, unless it is the only one
_LOOK_SECONDS = 0.5  # between two looks at the memory
_PEAK_SECONDS = 1.0  # the processors in use during less time say little
_LAST_SECONDS = 1.0  # how long the last sample may take: /proc may block
_RATES = ("disk_read", "disk_write", "net_in", "net_out")
_OLD_SECONDS = 6 * INTERVAL_SECONDS


def start_telemetry(
    link: NodeLink | None, place: Place, environment: Mapping[str, str] = os.environ
) -> Callable[[], None]:
    """Sample this node as long as this process lives, if it is local rank 0 and there is a writer to send to.

    Returns a function that takes a last sample; call it while everything that should count is still alive.
    All samples are taken in the thread: reading /proc of a process that waits for a dead file system blocks.
    """
    if link is None or place.local_rank != 0:
        return lambda: None
    node = node_name(environment)

    def send(sample: Sample) -> bool:
        return link.send({"kind": "sample", "node": node, "sample": sample})

    ended = threading.Event()

    def sample() -> None:
        try:
            gpus = find_gpus(environment)
            usage = NodeUsage(environment)
            telemetry = NodeTelemetry(usage, gpus.read if gpus else list, send)
            for pause in chain(_FIRST_SECONDS, repeat(INTERVAL_SECONDS)):
                for _ in range(round(pause / _LOOK_SECONDS)):
                    if last := ended.wait(_LOOK_SECONDS):
                        break
                    usage.look_at_memory()
                telemetry.sample(last=last)
                if last:
                    return
        except Exception as error:  # a machine without telemetry can still train
            print(f"telemetry stopped: {type(error).__name__}: {error}", file=sys.stderr)

    thread = threading.Thread(target=sample, name="telemetry", daemon=True)
    thread.start()

    def end() -> None:
        ended.set()
        thread.join(_LAST_SECONDS)

    return end


class NodeTelemetry:
    """Takes samples of one node and passes them to `send`, which returns whether the sample will be written."""

    def __init__(
        self,
        usage: NodeUsage,
        gpus: Callable[[], list[Gpu]],
        send: Callable[[Sample], bool],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._usage, self._gpus, self._send, self._clock = usage, gpus, send, clock
        self._time, self._last = clock(), usage.read()
        self._sent = False
        self._peak_cpu = 0.0
        self._peak_gpu_memory: int | None = None

    def sample(self, *, last: bool = False) -> None:
        """Send a sample of the time since the last one that was sent; the `last` one only if it is long enough."""
        now, needed = self._clock(), self._usage.need.bytes
        usage = self._usage.read()
        if last and self._sent and now - self._time < _SHORTEST_SECONDS and self._usage.need.bytes == needed:
            return
        seconds = max(now - self._time, 1e-3)
        machine = rates(self._last, usage, seconds) | {"cpus": self._usage.cpus}
        times = {"time": round(now, 3), "seconds": max(round(seconds, 1), 0.1)}
        gpus = self._gpus()
        used = [memory for gpu in gpus if (memory := gpu.get("memory")) is not None]
        self._peak_cpu = max(machine["cpu"] if seconds >= _PEAK_SECONDS else 0.0, self._peak_cpu)
        self._peak_gpu_memory = max([*used, *filter(None, [self._peak_gpu_memory])], default=None)
        peak = {
            "memory": self._usage.need.bytes,
            "cpu": self._peak_cpu or None,
            "gpu_memory": self._peak_gpu_memory,
            "cgroup": self._usage.in_cgroup,
        }
        if self._send(times | machine | {"gpus": gpus, "peak": peak}):
            self._time, self._last, self._sent = now, usage, True


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
