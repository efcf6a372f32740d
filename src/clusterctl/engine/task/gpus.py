"""The GPUs of a node: their activity, and whether one is broken.

NVIDIA's are read with NVML (package nvidia-ml-py, which may be missing), AMD's from its driver. After an error of a
rank, its GPU is broken only if CUDA's own error and the GPU's own count agree (`gpu_defect`).
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.shared.errors import Cause, TaskError
from clusterctl.shared.record.place import node_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Gpu = dict[str, Any]


class NodeGpus:
    """The job's GPUs on this node. `nvml` is the initialised pynvml module or a stand-in for it."""

    def __init__(self, nvml: Any, environment: Mapping[str, str]) -> None:
        self._nvml = nvml
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        uuids = [_text(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        own = chosen(uuids, environment)
        self._gpus = [(index, handles[index], self._activity_of(handles[index])) for index in own]

    def read(self) -> list[Gpu]:
        """One record per GPU; values that the GPU or its driver does not report are None."""
        return [self._read(*gpu) for gpu in self._gpus]

    def uncorrected(self) -> dict[int, int]:
        """How many memory errors each GPU could not correct since its driver was loaded, if it counts them."""
        nvml, counts = self._nvml, {}
        for index, handle, _ in self._gpus:
            with suppress(nvml.NVMLError):
                kinds = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
                counts[index] = int(nvml.nvmlDeviceGetTotalEccErrors(handle, *kinds))
        return counts

    def _read(self, index: int, handle: Any, activity: Any) -> Gpu:
        nvml = self._nvml

        def reported(ask: Callable[[], Any]) -> Any:
            try:
                return ask()
            except nvml.NVMLError:
                return None

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


_OF_MEMORY = "ras/umc_err_count"  # of the memory controller; cards of consumers have none


class AmdGpus:
    """The job's AMD GPUs on this node, from the files of the kernel's driver amdgpu; no package is needed.

    They are numbered as Slurm and ROCm do, by their PCI addresses. Tried only with copies of the files, not on a GPU.
    Sources: https://docs.kernel.org/gpu/amdgpu/thermal.html, https://docs.kernel.org/gpu/amdgpu/ras.html
    """

    def __init__(self, folders: Sequence[Path], environment: Mapping[str, str]) -> None:
        ordered = sorted((folder.resolve() for folder in folders), key=lambda folder: folder.name)
        ids = [f"GPU-{_line(folder / 'unique_id') or folder.name}" for folder in ordered]
        self._gpus = [(index, ordered[index]) for index in chosen(ids, environment)]

    def read(self) -> list[Gpu]:
        """One record per GPU; values that the GPU or its driver does not report are None."""
        return [self._read(*gpu) for gpu in self._gpus]

    def uncorrected(self) -> dict[int, int]:
        """As of `NodeGpus`."""
        texts = ((index, _line(folder / _OF_MEMORY)) for index, folder in self._gpus)
        found = ((index, re.search(r"^ue:\s*([0-9]+)$", text, re.MULTILINE)) for index, text in texts)
        return {index: int(count[1]) for index, count in found if count}

    def _read(self, index: int, folder: Path) -> Gpu:
        sensors = next(iter(sorted(folder.glob("hwmon/hwmon*"))), folder / "hwmon")
        power = _number(sensors / "power1_average", sensors / "power1_input")
        temperature = _number(sensors / "temp1_input")
        return {
            "index": index,
            "name": _line(folder / "product_name") or "AMD GPU",
            "utilisation": _number(folder / "gpu_busy_percent"),
            "memory_activity": _number(folder / "mem_busy_percent"),
            "memory": _number(folder / "mem_info_vram_used"),
            "memory_total": _number(folder / "mem_info_vram_total"),
            "power": None if power is None else power / 1e6,
            "temperature": None if temperature is None else temperature // 1000,
            "sm_activity": None,
        }


def _line(path: Path) -> str:
    """The content of a file of the kernel's; empty if it does not exist, or the GPU does not answer."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _number(*paths: Path) -> int | None:
    """The number in the first of these files that has one."""
    return next((int(text) for text in map(_line, paths) if text.isascii() and text.isdigit()), None)


def find_gpus(environment: Mapping[str, str], cards: Path = Path("/sys/class/drm")) -> NodeGpus | AmdGpus | None:
    """The job's GPUs, or None on a node without any, without nvidia-ml-py and NVIDIA's driver, and without AMD's.

    `cards` is the kernel's folder of graphics cards.
    """
    try:
        import pynvml

        pynvml.nvmlInit()
        return NodeGpus(pynvml, environment)
    except ImportError:
        pass
    except pynvml.NVMLError:
        pass
    # of cards with several connectors, or none (`renderD128`), `card0` is the only one with this name
    found = [card / "device" for card in cards.glob("card[0-9]*") if card.name[4:].isdigit()]
    amd = [
        folder for folder in found if _line(folder / "vendor") == "0x1002" and (folder / "gpu_busy_percent").exists()
    ]
    return AmdGpus(amd, environment) if amd else None


def chosen(uuids: Sequence[str], environment: Mapping[str, str]) -> list[int]:
    """The indices of the job's GPUs among the node's GPUs, whose UUIDs are given.

    Slurm's list covers all the node's tasks, the variables of CUDA and ROCm possibly only one. If a cgroup hides the
    other jobs' GPUs, the visible ones are renumbered, and all of them belong to the job.
    """
    for name in ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
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


_UNCORRECTABLE = 214  # cudaErrorECCUncorrectable and hipErrorECCNotCorrectable
_ITS_TEXT = "CUDA error: uncorrectable ECC error encountered"  # for torch before 2.8, whose errors have no code


def gpu_defect(
    error: BaseException, environment: Mapping[str, str] = os.environ, find: Callable[..., object] = find_gpus
) -> TaskError | None:
    """An error that names the broken GPU, if torch raised `error` for a memory error that this task's GPU counts, too.

    A GPU counts what it could not correct since its driver was loaded (NVML's volatile counter, amdgpu's `ue`). Without
    such a count nothing is certain, and the answer is None: GPUs without ECC, and NVIDIA's without nvidia-ml-py.
    Source: https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html
    """
    if not _is_of_memory(error):
        return None
    gpus = find(environment)
    counts = gpus.uncorrected() if isinstance(gpus, NodeGpus | AmdGpus) else {}
    broken = {index: count for index, count in counts.items() if count > 0}
    if not broken:
        return None
    index, count = max(broken.items(), key=lambda one: one[1])
    words = f"GPU {index} of {node_name(environment)} cannot correct an error in its memory (ECC): it counts {count}"
    command = "amd-smi metric --ecc" if isinstance(gpus, AmdGpus) else "nvidia-smi -q -d ECC"
    found = TaskError(words, f"show your administrator: {command}", cause=Cause.NODE)
    found.__cause__ = error
    return found


def _is_of_memory(error: BaseException) -> bool:
    kind = type(error)
    if kind.__module__.startswith("torch") and kind.__name__ == "AcceleratorError":
        code = getattr(error, "error_code", None)
        return code == _UNCORRECTABLE or (code is None and str(error).startswith(_ITS_TEXT))
    return kind is RuntimeError and str(error).startswith(_ITS_TEXT)
