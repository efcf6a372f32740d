"""The GPUs of a node: their activity, and whether one is broken.

NVIDIA's are read with NVML (package nvidia-ml-py, which may be missing), AMD's from its driver. After an error of a
rank, its GPU is broken only if CUDA's own error and the GPU's own count or the kernel's log agree (`gpu_defect`).
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.shared.errors import Cause, TaskError
from clusterctl.shared.node.processes import stat_of
from clusterctl.shared.record.place import node_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

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
# CUDA's errors that a program's mistake or a broken GPU may cause: cudaErrorDevicesUnavailable, cudaErrorLaunchFailure,
# cudaErrorUnknown. An illegal address (700) and a failed assertion (710) are the program's.
_DOUBTFUL = {
    46: "CUDA error: CUDA-capable device(s) is/are busy or unavailable",
    719: "CUDA error: unspecified launch failure",
    999: "CUDA error: unknown error",
}
# What the driver reports to the kernel's log about a broken GPU, which needs a reset or worse. Others, such as 13, 31,
# 43 and 45, follow from programs' mistakes. Source: https://docs.nvidia.com/deploy/xid-errors/
_BROKEN = {
    48: "an uncorrectable error in its memory",
    79: "it has fallen off the bus",
    94: "an uncorrectable error in its memory",
    95: "an uncorrectable error in its memory",
}
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9A-Fa-f]+):([0-9A-Fa-f]+):([0-9A-Fa-f]+)[^)]*\): (\d+),")
_DRIVERS_GPUS = Path("/proc/driver/nvidia/gpus")  # a folder for each, also after it has fallen off the bus
_CLOCK_DRIFT = 600.0  # seconds: the log's clock runs from the boot on, and nothing corrects it


def kernel_log(path: Path = Path("/dev/kmsg")) -> list[str]:
    """The kernel's messages since this process has started, and some before; empty where users may not read them."""
    lines: list[str] = []
    if (own := stat_of(os.getpid())) is None:
        return lines
    with suppress(OSError, ValueError, IndexError):
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - own.started / os.sysconf("SC_CLK_TCK")
        since = time.monotonic() - age - _CLOCK_DRIFT
        device = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            while record := _next_record(device):
                head, _, text = record.partition(";")
                if float(head.split(",")[2]) / 1e6 >= since:
                    lines.append(text.partition("\n")[0])
        finally:
            os.close(device)
    return lines


def _next_record(device: int) -> str:
    """One of kmsg's records, which begin with "PRIORITY,NUMBER,MICROSECONDS,"; empty if there is no further one."""
    while True:
        try:
            return os.read(device, 8192).decode(errors="replace")
        except BlockingIOError:
            return ""
        except BrokenPipeError:  # the record has been overwritten: the next call returns the next one
            continue


def gpu_defect(
    error: BaseException,
    environment: Mapping[str, str] = os.environ,
    find: Callable[..., object] = find_gpus,
    log: Callable[[], Iterable[str]] = kernel_log,
    drivers_gpus: Path = _DRIVERS_GPUS,
) -> TaskError | None:
    """An error that names the broken GPU, if torch raised `error` for one, and a second witness confirms it.

    The witness of an uncorrectable memory error is the GPU's own count since its driver was loaded (NVML's volatile
    counter, amdgpu's `ue`). That of any error which a broken NVIDIA GPU can cause is an Xid about one of this job's
    GPUs in the kernel's log, where users may read it (`kernel.dmesg_restrict = 0`). Without a witness nothing is
    certain, and the answer is None: GPUs without ECC, for example, and NVIDIA's counts without nvidia-ml-py.
    Source: https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html
    """
    of_memory = {_UNCORRECTABLE: _ITS_TEXT}
    gpus = find(environment) if _is_of(error, of_memory) else None
    counts = gpus.uncorrected() if isinstance(gpus, NodeGpus | AmdGpus) else {}
    index, count = max(counts.items(), key=lambda one: one[1], default=(0, 0))
    node, command = node_name(environment), "nvidia-smi -q -d ECC, and dmesg"
    if count:
        words = f"GPU {index} of {node} cannot correct an error in its memory (ECC): it counts {count}"
        command = "amd-smi metric --ecc" if isinstance(gpus, AmdGpus) else command
    elif _is_of(error, of_memory | _DOUBTFUL) and (found := _logged(log(), _addresses(environment, drivers_gpus))):
        index, number = found
        words = f"GPU {index} of {node} is broken: {_BROKEN[number]} (Xid {number} in the kernel's log)"
    else:
        return None
    defect = TaskError(words, f"show your administrator: {command}", cause=Cause.NODE)
    defect.__cause__ = error
    return defect


def _logged(lines: Iterable[str], own: Mapping[tuple[int, ...], int]) -> tuple[int, int] | None:
    """The last of these GPUs that the kernel's log reports as broken, and the number of its Xid."""
    found = None
    for xid in filter(None, map(_XID.search, lines)):
        address, number = tuple(int(part, 16) for part in xid.groups()[:3]), int(xid[4])
        if number in _BROKEN and address in own:
            found = own[address], number
    return found


def _is_of(error: BaseException, errors: Mapping[int, str]) -> bool:
    """Whether torch raised `error` for one of these errors of CUDA, by its code or, before torch 2.8, its text."""
    kind, texts = type(error), tuple(errors.values())
    if kind.__module__.startswith("torch") and kind.__name__ == "AcceleratorError":
        code = getattr(error, "error_code", None)
        return code in errors or (code is None and str(error).startswith(texts))
    return kind is RuntimeError and str(error).startswith(texts)


def _addresses(environment: Mapping[str, str], folder: Path) -> dict[tuple[int, ...], int]:
    """PCI domain, bus and device -> number, of the job's GPUs here: by Slurm's numbers, which are the node's."""
    found = {}
    words = environment.get("SLURM_STEP_GPUS") or environment.get("SLURM_JOB_GPUS") or ""
    for place in folder.glob("*:*:*.*"):
        minor = re.search(r"^Device Minor:\s*(\d+)$", _line(place / "information"), re.MULTILINE)
        if minor and minor[1] in words.split(","):
            found[tuple(int(part, 16) for part in place.name.split(".")[0].split(":"))] = int(minor[1])
    return found
