"""A trace of some training steps: what each operator, kernel and stage of the loop took, on every rank.

A file a rank in Chrome's trace format (https://ui.perfetto.dev, chrome://tracing), and the costliest operators as text.
The steps are called `ProfilerStep#n`, as by torch's own profiler, n counting as the metrics do.
"""

from __future__ import annotations

import atexit
import gzip
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torch._C._profiler import _ExperimentalConfig
from torch.autograd.profiler import profile, record_function

from clusterctl.runs.files import write_text
from clusterctl.runs.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from clusterctl.task.task import Task

_ROWS = 30  # of the text
_QUIET = "99"  # else the profiler writes to stderr when it starts and stops

T = TypeVar("T")
P = TypeVar("P")


class StepTrace:
    """Records what happens from step `first` to step `last` of `window`, both included; nothing where it is empty.

    Steps count from 1 in every attempt: the first ones warm up caches and allocators. If training is shorter, its
    second half is recorded.
    """

    def __init__(self, task: Task, window: Sequence[int], done: int, left: int) -> None:
        """`done` steps of the run are over, `left` are to come."""
        self._task, self._done, self._step = task, done, 0
        first, self._last = window or (0, 0)
        self._first = first if first <= left else left // 2 + 1
        self._recording: Any = None  # torch's profiler has no types
        self._regions: list[Any] = []  # a step and its stage, as far as they are open

    def named(self, name: str, work: Callable[[T], P]) -> Callable[[T], P]:
        """`work`, as a region of the trace."""

        def region(item: T) -> P:
            with record_function(name):
                return work(item)

        return region if self._first else work

    def steps(self, items: Iterable[T], count: int) -> Iterator[T]:
        """The items, of which there are `count`; each is waited for and used within a step."""
        items = iter(items)
        for _ in range(count if self._first else 0):
            self._begin()
            yield next(items)
            self._end()
        yield from items

    def close(self) -> None:
        """The training is over: write what is not yet written."""
        if self._recording:
            self._write(self._recording)
        elif self._step < self._first and self._task.place.rank == 0:
            print(f"no trace: the training ended before step {self._first}", flush=True)

    def _begin(self) -> None:
        self._step += 1
        if self._step == self._first:
            self._recording = _recorder(self._task.device.type)
            self._recording.__enter__()
            atexit.register(self._recording.__exit__, None, None, None)  # else Python crashes at its end (torch 2.13)
        if self._recording:
            self._open(f"ProfilerStep#{self._done + self._step}")
            self._task.clock.listener = self._stage
            self._stage("wait for batch")

    def _end(self) -> None:
        self._task.clock.listener = None
        while self._regions:
            self._regions.pop().__exit__(None, None, None)
        if self._recording and self._step == self._last:
            self._write(self._recording)
            self._task.clock.restart("sampling")  # the time of writing is no step's

    def _stage(self, name: str) -> None:
        if len(self._regions) > 1:
            self._regions.pop().__exit__(None, None, None)
        if name != "sampling":  # the clock's word for what the next step waits for
            self._open(name)

    def _open(self, name: str) -> None:
        region: Any = record_function(name)
        region.__enter__()
        self._regions.append(region)

    def _write(self, recording: Any) -> None:
        self._recording = None
        heart = self._task.events.heart
        heart.enter(Stage.CHECKPOINTING.value)  # for the watchdog: it may take longer than any step
        atexit.unregister(recording.__exit__)
        recording.__exit__(None, None, None)
        attempt, rank = self._task.attempt, self._task.place.rank
        folder = attempt.profile if attempt is not None else Path("profile").absolute()
        cost = "self_device_time_total" if self._task.device.type == "cuda" else "self_cpu_time_total"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            table = recording.key_averages().table(sort_by=cost, row_limit=_ROWS, max_name_column_width=60)
            write_text(folder / f"rank_{rank:05}.txt", table + "\n")
            _compress(recording.export_chrome_trace, folder / f"rank_{rank:05}.json.gz")
        except OSError as error:
            print(f"warning: the trace could not be written: {error}", file=sys.stderr, flush=True)
        else:
            if rank == 0:
                steps = f"steps {self._done + self._first} to {self._done + self._step}"
                print(f"trace of {steps}, a file a rank: {folder}\nopen one in https://ui.perfetto.dev", flush=True)
        heart.enter(Stage.TRAINING.value)


def _recorder(device: str) -> Any:
    """What `torch.profiler.profile` wraps; that one imports torch's compiler, which takes it seconds (torch 2.13)."""
    os.environ.setdefault("KINETO_LOG_LEVEL", _QUIET)
    try:
        threads = _ExperimentalConfig(profile_all_threads=True)  # that of `prefetch` samples
    except TypeError:  # an older torch sees the main thread alone
        threads = _ExperimentalConfig()
    return profile(use_cpu=True, use_device=None if device == "cpu" else device, experimental_config=threads)


def _compress(export: Callable[[str], object], path: Path) -> None:
    """Write aside, then rename; the uncompressed trace, tens of megabytes, stays on this node."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.touch(0o600)
    with tempfile.TemporaryDirectory(prefix="clusterctl-") as scratch:
        export(f"{scratch}/trace.json")
        with Path(scratch, "trace.json").open("rb") as whole, gzip.open(aside, "wb", compresslevel=5) as file:
            shutil.copyfileobj(whole, file)
    aside.replace(path)
