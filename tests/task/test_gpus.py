"""Reading GPUs with a fake NVML: this machine need not have any."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterctl.engine.task.gpus import AmdGpus, NodeGpus, chosen, find_gpus, gpu_defect, kernel_log
from clusterctl.shared.errors import Cause

UUIDS = ["GPU-aaaa", "GPU-bbbb", "GPU-cccc", "GPU-dddd"]


class NVMLError(Exception):
    pass


class Nvml:
    """Four GPUs; the first `hopper` of them report their activity; `unsupported` functions fail."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0
    NVML_GPM_METRICS_GET_VERSION = 1
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_GPM_METRIC_SM_UTIL = 2

    def __init__(self, hopper: int = 0, unsupported: tuple[str, ...] = (), uncorrected: int = 0) -> None:
        self.hopper, self.unsupported, self.uncorrected = hopper, unsupported, uncorrected
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

    def nvmlDeviceGetTotalEccErrors(self, handle: int, kind: int, counter: int) -> int:  # noqa: N802
        assert (kind, counter) == (1, 0), "those since the driver was loaded that could not be corrected"
        return self.uncorrected if handle == 2 else 0

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


# AMD's GPUs, with a copy of the kernel's files. Their numbers follow the PCI addresses, not the names of the cards.
ADDRESSES = {"card3": "0000:03:00.0", "card1": "0000:83:00.0", "card2": "0000:43:00.0", "card0": "0000:00:02.0"}


@pytest.fixture
def cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three GPUs of AMD, and the processor's own of another vendor as `card0`."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    for number, (card, address) in enumerate(sorted(ADDRESSES.items(), key=lambda item: item[1])):
        device = tmp_path / "pci" / address
        sensors = device / "hwmon" / f"hwmon{number + 4}"
        sensors.mkdir(parents=True)
        files = {
            "vendor": "0x8086" if card == "card0" else "0x1002",
            "gpu_busy_percent": f"{10 * number}",
            "mem_busy_percent": "7",
            "mem_info_vram_used": "60",
            "mem_info_vram_total": "80",
            "unique_id": f"{number}aaa",
            f"hwmon/{sensors.name}/power1_average": "301500000",
            f"hwmon/{sensors.name}/temp1_input": "61999",
        }
        for name, text in files.items():
            (device / name).write_text(f"{text}\n")
        folder = tmp_path / "drm" / card
        folder.mkdir(parents=True)
        (folder / "device").symlink_to(device)
        (tmp_path / "drm" / f"{card}-DP-1").mkdir()
    return tmp_path / "drm"


def busy(cards: Path, **environment: str) -> dict[int, Any]:
    gpus = find_gpus(environment, cards)
    assert isinstance(gpus, AmdGpus)
    return {gpu["index"]: gpu["utilisation"] for gpu in gpus.read()}


def test_amd_gpus_are_read_from_the_kernel_and_numbered_by_their_addresses(cards: Path) -> None:
    assert busy(cards) == {0: 10, 1: 20, 2: 30}
    gpus = find_gpus({}, cards)
    assert gpus
    assert gpus.read()[0] == {
        "index": 0,
        "name": "AMD GPU",
        "utilisation": 10,
        "memory_activity": 7,
        "memory": 60,
        "memory_total": 80,
        "power": 301.5,
        "temperature": 61,
        "sm_activity": None,
    }


def test_only_the_jobs_amd_gpus_are_read(cards: Path) -> None:
    assert busy(cards, SLURM_STEP_GPUS="2") == {2: 30}
    assert busy(cards, ROCR_VISIBLE_DEVICES="0,1") == {0: 10, 1: 20}
    assert busy(cards, ROCR_VISIBLE_DEVICES="GPU-2aaa") == {1: 20}
    assert busy(cards, SLURM_JOB_GPUS="1", ROCR_VISIBLE_DEVICES="0") == {1: 20}


def test_values_that_an_amd_gpu_does_not_report_are_none(cards: Path) -> None:
    device = (cards / "card3" / "device").resolve()
    for name in ("mem_busy_percent", "hwmon/hwmon5/power1_average", "hwmon/hwmon5/temp1_input"):
        (device / name).unlink()
    (device / "mem_info_vram_used").write_text("unknown\n")
    (device / "hwmon/hwmon5/power1_input").write_text("99000000\n")
    gpus = find_gpus({}, cards)
    assert gpus
    first = gpus.read()[0]
    assert (first["memory_activity"], first["temperature"], first["memory"], first["power"]) == (None, None, None, 99)


def write_errors(cards: Path, card: str, text: str) -> None:
    """The counts of errors in a GPU's memory, as the driver writes them."""
    folder = (cards / card / "device").resolve() / "ras"
    folder.mkdir()
    (folder / "umc_err_count").write_text(text)


def test_an_amd_gpu_is_broken_if_hip_and_its_drivers_count_agree(cards: Path) -> None:
    write_errors(cards, "card2", "ue: 2\nce: 7\n")
    write_errors(cards, "card1", "ue: 0\nce: 1\n")
    environment = {"ROCR_VISIBLE_DEVICES": "1", "SLURMD_NODENAME": "node7"}
    error = of_torch("HIP error: uncorrectable ECC error encountered", 214)
    found = gpu_defect(error, environment, lambda given: find_gpus(given, cards))
    assert found is not None
    assert found.message == "GPU 1 of node7 cannot correct an error in its memory (ECC): it counts 2"
    assert (found.hint, found.cause) == ("show your administrator: amd-smi metric --ecc", Cause.NODE)


@pytest.mark.parametrize("text", [None, "", "ue: 0\nce: 9\n", "ue: x\nce: 9\n", "ce: 9\nvalue: 3\n"])
def test_an_amd_gpu_without_such_a_count_is_not_called_broken(cards: Path, text: str | None) -> None:
    if text is not None:
        write_errors(cards, "card2", text)
    environment = {"ROCR_VISIBLE_DEVICES": "1", "SLURMD_NODENAME": "node7"}
    assert gpu_defect(of_torch("HIP error: x", 214), environment, lambda given: find_gpus(given, cards)) is None


def test_without_a_gpu_there_is_nothing_to_read(cards: Path, tmp_path: Path) -> None:
    for card in ("card1", "card2", "card3"):
        (cards / card / "device" / "gpu_busy_percent").unlink()  # an old driver
    assert find_gpus({}, cards) is None
    assert find_gpus({}, tmp_path / "none") is None


ECC = "CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be asynchronously reported"


def of_torch(message: str, code: int | None = None, name: str = "AcceleratorError") -> RuntimeError:
    """As torch raises it: since 2.8 with CUDA's code."""
    error: RuntimeError = type(name, (RuntimeError,), {"__module__": "torch"})(message)
    if code is not None:
        error.error_code = code  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    "error", [of_torch(ECC, 214), of_torch("CUDA error: other words", 214), of_torch(ECC), RuntimeError(ECC)]
)
def test_a_gpu_is_broken_if_cuda_and_its_own_count_agree(error: RuntimeError) -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "2", "SLURMD_NODENAME": "node7"}
    found = gpu_defect(error, environment, lambda _: NodeGpus(Nvml(uncorrected=3), environment))
    assert found is not None
    assert found.message == "GPU 2 of node7 cannot correct an error in its memory (ECC): it counts 3"
    assert (found.cause, found.__cause__) == (Cause.NODE, error)


@pytest.mark.parametrize(
    ("error", "nvml", "gpu"),
    [
        (of_torch(ECC, 214), Nvml(), "2"),  # it counts none
        (of_torch(ECC, 214), Nvml(uncorrected=3), "1"),  # another task's GPU
        (of_torch(ECC, 214), Nvml(uncorrected=3, unsupported=("nvmlDeviceGetTotalEccErrors",)), "2"),
        (of_torch(ECC, 214), None, "2"),  # no driver, or another maker's
        (of_torch(ECC, 700), Nvml(uncorrected=3), "2"),  # an illegal address, of a program's mistake
        (of_torch("CUDA error: an illegal memory access was encountered", 700), Nvml(uncorrected=3), "2"),
        (of_torch("device-side assert triggered", 710), Nvml(uncorrected=3), "2"),
        (RuntimeError(f"my job failed with: {ECC}"), Nvml(uncorrected=3), "2"),  # quoted
        (type("AcceleratorError", (RuntimeError,), {})(ECC), Nvml(uncorrected=3), "2"),  # the user's own class
        (ValueError(ECC), Nvml(uncorrected=3), "2"),
    ],
)
def test_nothing_less_makes_a_gpu_a_broken_one(error: Exception, nvml: Any, gpu: str) -> None:
    environment = {"CUDA_VISIBLE_DEVICES": gpu, "SLURMD_NODENAME": "node7"}
    assert gpu_defect(error, environment, lambda _: nvml and NodeGpus(nvml, environment)) is None


LAUNCH = "CUDA error: unspecified launch failure"
XID = "NVRM: Xid (PCI:0000:%s): %d, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    """Four GPUs of a node, as NVIDIA's driver lists them."""
    for minor, bus in enumerate(("18", "3b", "af", "d8")):
        (tmp_path / f"0000:{bus}:00.0").mkdir()
        (tmp_path / f"0000:{bus}:00.0" / "information").write_text(f"Model: \t\t H100\nDevice Minor: \t {minor}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("error", "message", "broken"),
    [
        (of_torch(LAUNCH, 719), XID % ("3b:00", 79), True),
        (RuntimeError(LAUNCH), XID % ("AF:00", 79), True),
        (of_torch(ECC, 214), XID % ("3b:00", 95), True),  # which NVML does not count
        (of_torch("CUDA error: unknown error", 999), XID % ("3b:00", 48), True),
        (of_torch(LAUNCH, 719), XID % ("3b:00.0", 94), True),
        (of_torch(LAUNCH, 719), XID % ("18:00", 79), False),  # another job's
        (of_torch(LAUNCH, 719), XID % ("3b:00", 31), False),  # a page fault, of a program's mistake
        (of_torch(LAUNCH, 719), "", False),
        (of_torch("CUDA error: an illegal memory access was encountered", 700), XID % ("3b:00", 79), False),
        (RuntimeError(f"it failed: {LAUNCH}"), XID % ("3b:00", 79), False),
        (ValueError(LAUNCH), XID % ("3b:00", 79), False),
    ],
)
def test_a_gpu_is_broken_if_cuda_and_the_kernels_log_agree(
    driver: Path, error: Exception, message: str, broken: bool
) -> None:
    environment = {"SLURM_STEP_GPUS": "1,2", "CUDA_VISIBLE_DEVICES": "0", "SLURMD_NODENAME": "node7"}
    log = ["usb 1-1: new device", XID % ("d8:00", 79), message]
    found = gpu_defect(error, environment, lambda _: None, lambda: log, driver)
    assert (found is not None) == broken
    if found:
        assert re.match(r"GPU [12] of node7 is broken: .* \(Xid \d+ in the kernel's log\)$", found.message)
        assert (found.cause, found.__cause__) == (Cause.NODE, error)


def test_without_slurms_numbers_of_gpus_the_kernels_log_proves_nothing(driver: Path) -> None:
    """In a cgroup, CUDA's number 0 may be any of the node's."""
    environment = {"CUDA_VISIBLE_DEVICES": "0"}
    log = [XID % ("18:00", 79)]
    assert gpu_defect(of_torch(LAUNCH, 719), environment, lambda _: None, lambda: log, driver) is None
    assert gpu_defect(of_torch(LAUNCH, 719), {"SLURM_JOB_GPUS": "0"}, lambda _: None, lambda: log, driver) is not None


def test_the_kernels_log_is_read_from_the_start_of_the_process_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record at a time; one that has been overwritten meanwhile is skipped."""
    now = int(time.monotonic() * 1e6)
    month = 30 * 86_400_000_000
    records: list[bytes | Exception] = [
        b"6,1,%d,-;long ago\n" % (now - month),
        BrokenPipeError(),
        b"3,9,%d,-;NVRM: Xid\n SUBSYSTEM=pci\n" % now,
        BlockingIOError(),
    ]

    def read(_: int, __: int) -> bytes:
        record = records.pop(0)
        if isinstance(record, Exception):
            raise record
        return record

    monkeypatch.setattr(os, "read", read)
    assert kernel_log(Path("/dev/null")) == ["NVRM: Xid"]
    assert records == []


def test_where_users_may_not_read_the_kernels_log_it_is_empty(tmp_path: Path) -> None:
    assert kernel_log(tmp_path / "kmsg") == []
