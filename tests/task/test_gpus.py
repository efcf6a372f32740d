"""Reading GPUs with a fake NVML: this machine need not have any."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clusterctl.engine.task.node_telemetry import NodeGpus, chosen

UUIDS = ["GPU-aaaa", "GPU-bbbb", "GPU-cccc", "GPU-dddd"]


class NVMLError(Exception):
    pass


class Nvml:
    """Four GPUs; the first `hopper` of them report their activity; `unsupported` functions fail."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0
    NVML_GPM_METRICS_GET_VERSION = 1
    NVML_GPM_METRIC_SM_UTIL = 2

    def __init__(self, hopper: int = 0, unsupported: tuple[str, ...] = ()) -> None:
        self.hopper, self.unsupported = hopper, unsupported
        self.moment = 0

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name in object.__getattribute__(self, "unsupported"):

            def fail(*_: object) -> None:
                raise NVMLError(f"{name}: not supported")

            return fail
        return object.__getattribute__(self, name)

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802 - NVIDIA's names
        return 4

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> bytes:  # noqa: N802
        return UUIDS[handle].encode()

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
        return "NVIDIA H100"

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=90 + handle, memory=5)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(used=60, total=80)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:  # noqa: N802
        return 612_500

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:  # noqa: N802
        return 61

    def nvmlGpmQueryDeviceSupport(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(isSupportedDevice=int(handle < self.hopper))

    def nvmlGpmSampleAlloc(self) -> list[int]:  # noqa: N802
        return [0]

    def nvmlGpmSampleGet(self, handle: int, sample: list[int]) -> list[int]:  # noqa: N802
        self.moment += 1
        sample[0] = self.moment
        return sample

    def c_nvmlGpmMetricsGet_t(self) -> Any:  # noqa: N802
        return SimpleNamespace(metrics=[SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0)])

    def nvmlGpmMetricsGet(self, request: Any) -> Any:  # noqa: N802
        assert request.metrics[0].metricId == self.NVML_GPM_METRIC_SM_UTIL
        request.metrics[0].value = 10.0 * request.sample1[0] + request.sample2[0]
        return request


def test_gpu_readings_include_utilisation_memory_power_and_temperature() -> None:
    (gpu,) = NodeGpus(Nvml(), {"SLURM_STEP_GPUS": "2"}).read()
    assert gpu == {
        "index": 2, "name": "NVIDIA H100", "utilisation": 92, "memory": 60, "memory_total": 80, "power": 612.5,
        "temperature": 61, "sm_activity": None, "memory_activity": 5,
    }  # fmt: skip


def test_sm_activity_covers_the_time_since_the_last_sample() -> None:
    gpus = NodeGpus(Nvml(hopper=1), {"SLURM_STEP_GPUS": "0"})
    assert [gpus.read()[0]["sm_activity"] for _ in range(3)] == [12.0, 23.0, 34.0]


@pytest.mark.parametrize(
    "unsupported", [("nvmlDeviceGetPowerUsage", "nvmlDeviceGetMemoryInfo"), ("nvmlGpmQueryDeviceSupport",)]
)
def test_unsupported_gpu_readings_are_none(unsupported: tuple[str, ...]) -> None:
    (gpu,) = NodeGpus(Nvml(hopper=4, unsupported=unsupported), {"CUDA_VISIBLE_DEVICES": "1"}).read()
    assert gpu["utilisation"] == 91
    assert (gpu["power"] is None) == ("nvmlDeviceGetPowerUsage" in unsupported)
    assert (gpu["sm_activity"] is None) == ("nvmlGpmQueryDeviceSupport" in unsupported)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, [0, 1, 2, 3]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-cc,GPU-dddd"}, [2, 3]),
        (
            {"SLURM_STEP_GPUS": "0,1", "CUDA_VISIBLE_DEVICES": "0"},
            [0, 1],
        ),  # the task is bound to one GPU, the node has two
        ({"SLURM_JOB_GPUS": "4,5,6,7", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}, [0, 1, 2, 3]),  # a cgroup hides the others
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, [0, 1, 2, 3]),
    ],
)
def test_the_jobs_gpus_are_those_named_by_slurm(environment: dict[str, str], expected: list[int]) -> None:
    assert chosen(UUIDS, environment) == expected
