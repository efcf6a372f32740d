"""The activity of a node's GPUs, read with NVML (package nvidia-ml-py, which may be missing)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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
