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
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from clusterctl.runs.idleness import GpuReading
from clusterctl.runs.place import node_name
from clusterctl.task.usage import NodeUsage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clusterctl.runs.fields import Fields
    from clusterctl.runs.node_link import NodeLink
    from clusterctl.runs.node_writer import Sample
    from clusterctl.runs.place import Place
    from clusterctl.task.usage import Usage


INTERVAL_SECONDS = 5.0
_FIRST_SECONDS = (1.0, 2.0)  # the first intervals, so that even a short run gets some
_SHORTEST_SECONDS = 0.5  # of a last sample, unless it is the only one
_LAST_SECONDS = 1.0  # how long the last sample may take: /proc may block
_RATES = ("disk_read", "disk_write", "net_in", "net_out")
_OLD_SECONDS = 6 * INTERVAL_SECONDS


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

    def sample(self, *, last: bool = False) -> None:
        """Send a sample of the time since the last one that was sent; the `last` one only if it is long enough."""
        now = self._clock()
        if last and self._sent and now - self._time < _SHORTEST_SECONDS:
            return
        usage = self._usage.read()
        seconds = max(now - self._time, 1e-3)
        machine = rates(self._last, usage, seconds) | {"cpus": self._usage.cpus}
        times = {"time": round(now, 3), "seconds": max(round(seconds, 1), 0.1)}
        if self._send(times | machine | {"gpus": self._gpus()}):
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

    def make() -> NodeTelemetry:
        gpus = find_gpus(environment)
        return NodeTelemetry(NodeUsage(environment), gpus.read if gpus else list, send)

    ended = threading.Event()
    thread = threading.Thread(target=_sample, args=(make, ended), name="telemetry", daemon=True)
    thread.start()

    def end() -> None:
        ended.set()
        thread.join(_LAST_SECONDS)

    return end


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


def _sample(make: Callable[[], NodeTelemetry], ended: threading.Event) -> None:
    try:
        telemetry = make()
        for pause in chain(_FIRST_SECONDS, repeat(INTERVAL_SECONDS)):
            last = ended.wait(pause)
            telemetry.sample(last=last)
            if last:
                return
    except Exception as error:  # a machine without telemetry can still train
        print(f"telemetry stopped: {type(error).__name__}: {error}", file=sys.stderr)


# The activity of a node's GPUs, read with NVML (package nvidia-ml-py, which may be missing).


Gpu = dict[str, Any]


class NodeGpus:
    """The job's GPUs on this node. `nvml` is the module pynvml, initialised, or a stand-in for it."""

    def __init__(self, nvml: Any, environment: Mapping[str, str]) -> None:
        self._nvml = nvml
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        uuids = [_text(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        own = chosen(uuids, environment)
        self._gpus = [(index, handles[index], self._activity_of(handles[index])) for index in own]

    def read(self) -> list[Gpu]:
        """One record per GPU; values that the GPU or its driver does not report are None."""
        return [self._read(*gpu) for gpu in self._gpus]

    def _read(self, index: int, handle: Any, activity: Any) -> Gpu:
        nvml, reported = self._nvml, self._reported
        power = reported(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        rates = reported(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        return {
            "index": index,
            "name": reported(lambda: _text(nvml.nvmlDeviceGetName(handle))),
            "utilisation": None if rates is None else rates.gpu,
            "memory_activity": None if rates is None else rates.memory,
            "memory": reported(lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used),
            "memory_total": reported(lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total),
            "power": None if power is None else power / 1000,
            "temperature": reported(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            "sm_activity": reported(activity) if activity else None,
        }

    def _reported(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except self._nvml.NVMLError:
            return None

    def _activity_of(self, handle: Any) -> Any:
        """A function that returns how busy the multiprocessors were since the last call, in %; None before Hopper.

        Utilisation counts a GPU as busy while any kernel runs; this counts how much of the GPU is in use.
        """
        nvml = self._nvml
        try:
            if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                return None
            samples = [nvml.nvmlGpmSampleGet(handle, nvml.nvmlGpmSampleAlloc()), nvml.nvmlGpmSampleAlloc()]
        except (nvml.NVMLError, AttributeError):  # an older nvidia-ml-py lacks these functions
            return None

        def since_last() -> float | None:
            samples[1] = nvml.nvmlGpmSampleGet(handle, samples[1])
            request = nvml.c_nvmlGpmMetricsGet_t()
            request.version, request.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 1
            request.sample1, request.sample2 = samples
            request.metrics[0].metricId = nvml.NVML_GPM_METRIC_SM_UTIL
            answer = nvml.nvmlGpmMetricsGet(request).metrics[0]
            samples.reverse()
            return None if answer.nvmlReturn else round(answer.value, 1)

        return since_last


def find_gpus(environment: Mapping[str, str]) -> NodeGpus | None:
    """The job's GPUs, or None on a node without any, without the driver, or without nvidia-ml-py."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        return NodeGpus(pynvml, environment)
    except pynvml.NVMLError:
        return None


def chosen(uuids: Sequence[str], environment: Mapping[str, str]) -> list[int]:
    """The indices of the job's GPUs among the node's GPUs, whose UUIDs are given.

    Slurm's list covers all the node's tasks, CUDA_VISIBLE_DEVICES possibly only one. If a cgroup hides the other jobs'
    GPUs, the visible ones are renumbered, and all of them belong to the job.
    """
    for name in ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES"):
        words = [word.strip() for word in environment.get(name, "").split(",") if word.strip()]
        if not words:
            continue
        if len(uuids) <= len(words):
            break
        numbers = [int(word) for word in words if word.isascii() and word.isdigit()]
        named = [index for index, uuid in enumerate(uuids) if any(uuid.startswith(word) for word in words)]
        if found := sorted({number for number in numbers if number < len(uuids)} | set(named)):
            return found
    return list(range(len(uuids)))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
