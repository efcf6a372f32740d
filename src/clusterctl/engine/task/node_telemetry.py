"""Telemetry of a node during a run: a thread of its local rank 0 takes a sample every few seconds.

It reads the GPUs with NVML (`NodeGpus`) or from AMD's driver (`AmdGpus`), the rest from /proc and the job's cgroup
(`NodeUsage`). The node's writer adds the heartbeats of its ranks and writes the sample.

`attempts/<n>/telemetry/<node>.jsonl`, one JSON object per line:

    {"time": ..., "seconds": 5.0, "cpu": 3.7, "cpus": 8, "memory": ..., "memory_limit": ..., "disk_read": ...,
     "disk_write": ..., "net_in": ..., "net_out": ..., "gpus": [{"index": 0, "utilisation": 97, ...}],
     "peak": {"memory": ..., "cpu": 3.9, "gpu_memory": ..., "cgroup": true},
     "ranks": {"2": {"step": 120, "phase": "training", "step_seconds": 0.031, "busy_seconds": 0.028}}}

`cpu` is the number of processors in use; memory is in bytes, rates are in bytes per second, power in watts, temperature
in degrees Celsius; utilisation, sm_activity and memory_activity (the share of time in which a GPU's memory was read or
written) in percent. `peak` is the most of the attempt so far: the memory that it needed (`memory_need`), and whether a
cgroup counted it, the processors in use, and the memory in use on the fullest GPU. `seconds` is the length of the
sample; old samples are averaged (`node_writer.SampleFile`).
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.engine.task.memory_need import MemoryNeed
from clusterctl.shared.node.idleness import GpuReading
from clusterctl.shared.record.place import node_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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
            telemetry = NodeTelemetry(NodeUsage(environment), gpus.read if gpus else list, send)
            for pause in chain(_FIRST_SECONDS, repeat(INTERVAL_SECONDS)):
                for _ in range(round(pause / _LOOK_SECONDS)):
                    if last := ended.wait(_LOOK_SECONDS):
                        break
                    telemetry.look()
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
        peak = self._peak(machine["cpu"] if seconds >= _PEAK_SECONDS else 0.0, gpus)
        if self._send(times | machine | {"gpus": gpus, "peak": peak}):
            self._time, self._last, self._sent = now, usage, True

    def look(self) -> None:
        """Update the peak of the memory between two samples."""
        self._usage.look_at_memory()

    def _peak(self, cpu: float, gpus: list[Gpu]) -> dict[str, Any]:
        used = [memory for gpu in gpus if (memory := gpu.get("memory")) is not None]
        self._peak_cpu = max(cpu, self._peak_cpu)
        self._peak_gpu_memory = max([*used, *filter(None, [self._peak_gpu_memory])], default=None)
        return {
            "memory": self._usage.need.bytes,
            "cpu": self._peak_cpu or None,
            "gpu_memory": self._peak_gpu_memory,
            "cgroup": self._usage.in_cgroup,
        }


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


# The activity of a node's GPUs: NVIDIA's with NVML (package nvidia-ml-py, which may be missing), or AMD's.


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


class AmdGpus:
    """The job's AMD GPUs on this node, from the files of the kernel's driver amdgpu; no package is needed.

    They are numbered as Slurm and ROCm do, by their PCI addresses. Not tried on a real one.
    Source: https://docs.kernel.org/gpu/amdgpu/thermal.html
    """

    def __init__(self, folders: Sequence[Path], environment: Mapping[str, str]) -> None:
        ordered = sorted((folder.resolve() for folder in folders), key=lambda folder: folder.name)
        ids = [f"GPU-{_line(folder / 'unique_id') or folder.name}" for folder in ordered]
        self._gpus = [(index, ordered[index]) for index in chosen(ids, environment)]

    def read(self) -> list[Gpu]:
        """One record per GPU; values that the GPU or its driver does not report are None."""
        return [self._read(*gpu) for gpu in self._gpus]

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


# What a run's tasks use on their node: processors, memory, disk and network, from /proc and the job's cgroup.


_MARKS = ("CLUSTERCTL_RUN_DIR", "CLUSTERCTL_ATTEMPT", "SLURM_NODEID")
_OF_ATTEMPT = b"CLUSTERCTL_ATTEMPT="
_NO_LIMIT = 2**60  # cgroup v1 has a number near 2^63 for no limit
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_GONE = (OSError, ValueError, IndexError)  # the process has just ended, or this kernel lacks the counter


@dataclass(frozen=True)
class Usage:
    """Totals since an arbitrary start, but current memory. In bytes, and in seconds of one processor."""

    cpu_seconds: float
    memory: int
    memory_limit: int | None
    disk_read: int
    disk_write: int
    net_in: int
    net_out: int


@dataclass
class Counters:
    """One process: its start time, whether it belongs to the run, and its totals."""

    started: int
    ours: bool
    cpu: int = 0  # ticks
    read: int = 0
    written: int = 0


@dataclass
class NodeUsage:
    """Reads what the run in `environment` uses on this node. `root` is `/`, or a partial copy in tests."""

    environment: Mapping[str, str]
    root: Path = Path("/")
    _seen: dict[int, Counters] = field(default_factory=dict, init=False)
    _totals: list[int] = field(default_factory=lambda: [0, 0, 0], init=False)  # ticks, bytes read, bytes written

    def __post_init__(self) -> None:
        self._marks = [f"{name}={self.environment[name]}".encode() for name in _MARKS if name in self.environment]
        self._processors = self._cgroup("cpuacct", "cpu.stat")
        self._memory = self._cgroup("memory", "memory.current")
        self.need = MemoryNeed(None)
        with suppress(*_GONE):
            self.need = MemoryNeed(self._memory)

    def read(self) -> Usage:
        """The current usage."""
        memory = self._add_up_processes()
        ticks, read, written = self._totals
        cpu_seconds = ticks / _TICKS
        if folder := self._processors:
            usage = folder / "cpuacct.usage"
            in_v1 = usage.exists()
            cpu_seconds = int(usage.read_text()) / 1e9 if in_v1 else _named(folder / "cpu.stat", "usage_usec") / 1e6
        if folder := self._memory:  # without cached files, which the kernel would reclaim first
            first = folder / "memory.usage_in_bytes"
            if first.exists():
                memory = int(first.read_text()) - _named(folder / "memory.stat", "total_inactive_file")
            else:
                memory = int((folder / "memory.current").read_text()) - _named(folder / "memory.stat", "inactive_file")
        self.look_at_memory()
        return Usage(cpu_seconds, memory, self._memory_limit(), read, written, *self._network())

    def look_at_memory(self) -> None:
        """Update `need`, from the processes of the last `read` if there is no cgroup."""
        ours = (self.root / "proc" / str(pid) for pid, counters in self._seen.items() if counters.ours)
        with suppress(*_GONE):
            self.need.look(ours)

    @property
    def in_cgroup(self) -> bool:
        """Whether the kernel counts the job's memory."""
        return self._memory is not None

    @property
    def cpus(self) -> int:
        """How many processors the job was given on this node."""
        given = self.environment.get("SLURM_CPUS_ON_NODE", "")
        return int(given) if given.isascii() and given.isdigit() else len(os.sched_getaffinity(0))

    # --- processes

    def _add_up_processes(self) -> int:
        """Update the totals; returns the memory of the run's processes, with shared pages counted once."""
        alone = shared = 0
        seen: dict[int, Counters] = {}
        with os.scandir(self.root / "proc") as entries:
            for entry in entries:
                if not entry.name.isdigit():
                    continue
                with suppress(*_GONE):
                    if entry.stat().st_uid != os.geteuid():
                        continue
                    counters = seen[int(entry.name)] = self._look_at(Path(entry.path), self._seen.get(int(entry.name)))
                    if counters.ours:
                        pages, of_files = map(int, (Path(entry.path) / "statm").read_text().split()[1:3])
                        alone += pages - of_files
                        shared = max(shared, of_files)
        self._seen = seen
        return (alone + shared) * _PAGE

    def _look_at(self, process: Path, before: Counters | None) -> Counters:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        started = int(fields[19])
        if before is None or before.started != started:
            environment = (process / "environ").read_bytes().split(b"\0")
            before = Counters(started, self._is_ours(environment))
        if not before.ours:
            return before
        now = Counters(started, True, int(fields[11]) + int(fields[12]), before.read, before.written)
        with suppress(*_GONE):  # may be hidden from us
            numbers = dict(line.split(": ") for line in (process / "io").read_text().splitlines())
            now.read, now.written = int(numbers["read_bytes"]), int(numbers["write_bytes"])
        for place, added in enumerate((now.cpu - before.cpu, now.read - before.read, now.written - before.written)):
            self._totals[place] += added
        return now

    def _is_ours(self, environment: list[bytes]) -> bool:
        """Whether a process is of this run and node: of this attempt, or of none, like a standby and its pages."""
        if not self._marks:
            return False
        of_attempt = any(word.startswith(_OF_ATTEMPT) for word in environment)
        return all(mark in environment or (mark.startswith(_OF_ATTEMPT) and not of_attempt) for mark in self._marks)

    # --- cgroups

    def _cgroup(self, controller: str, proof: str) -> Path | None:
        """The folder of the job's cgroup (version 1 or 2), if Slurm created one and it is visible from here."""
        with suppress(OSError):
            for line in (self.root / "proc/self/cgroup").read_text().splitlines():
                _, controllers, path = line.split(":", 2)
                job = re.match(r".*?/job_[0-9]+(?=/|$)", path)
                mounted = self.root / "sys/fs/cgroup"
                if job and controller in controllers.split(","):
                    folders = (mounted / name / job[0][1:] for name in (controllers, controller))
                    return next(filter(Path.is_dir, folders), None)
                if job and not controllers and (mounted / job[0][1:] / proof).exists():
                    return mounted / job[0][1:]
        return None

    def _memory_limit(self) -> int | None:
        for name in ("memory.limit_in_bytes", "memory.max") if self._memory else ():
            with suppress(OSError, ValueError):  # "max"
                limit = int((self._memory / name).read_text())  # type: ignore[operator]
                return limit if limit < _NO_LIMIT else None
        megabytes = self.environment.get("SLURM_MEM_PER_NODE", "")
        return int(megabytes) * 2**20 if megabytes.isascii() and megabytes.isdigit() and int(megabytes) else None

    # --- network

    def _network(self) -> tuple[int, int]:
        """Bytes received and sent by the node's adapters, including InfiniBand, which /proc/net/dev does not count."""
        received = sent = 0
        with suppress(OSError):
            lines = [line.partition(":") for line in (self.root / "proc/net/dev").read_text().splitlines()]
            names = {name.strip(): numbers.split() for name, colon, numbers in lines if colon and name.strip() != "lo"}
            hardware = {name for name in names if (self.root / "sys/class/net" / name / "device").exists()}
            for name in hardware or names:  # a bridge or bond counts its members' traffic again
                received, sent = received + int(names[name][0]), sent + int(names[name][8])
        for port in (self.root / "sys/class/infiniband").glob("*/ports/*/counters"):
            with suppress(*_GONE):
                received += 4 * int((port / "port_rcv_data").read_text())  # counted in words of four bytes
                sent += 4 * int((port / "port_xmit_data").read_text())
        return received, sent


def _named(path: Path, name: str) -> int:
    """The number after `name` in a file of names and numbers; 0 if it is missing."""
    lines = (line.partition(" ") for line in path.read_text().splitlines())
    return next((int(value) for key, _, value in lines if key == name), 0)
