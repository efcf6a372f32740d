"""A trace of some training steps: the time of each operator, kernel and part of a step, on every rank.

One file per rank in Chrome's trace format (https://ui.perfetto.dev, chrome://tracing), and a table of the costliest
operators. Steps are named `ProfilerStep#n`, as in torch's own profiler, with the step numbers of the metrics.
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

from clusterctl.shared.record.files import replacing, write_text
from clusterctl.shared.record.states import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from clusterctl.engine.task.task import Task

_ROWS = 30  # of the table
_QUIET = "99"  # otherwise the profiler logs to stderr when it starts and stops

T = TypeVar("T")
P = TypeVar("P")


class StepTrace:
    """Records the steps from `first` to `last` of `window`, inclusive; nothing if the window is empty.

    Steps count from 1 in every attempt: the first ones warm up caches and allocators. If training ends earlier, its
    second half is recorded.
    """

    def __init__(self, task: Task, window: Sequence[int], done: int, left: int) -> None:
        """`done` steps of the run are complete, `left` remain."""
        self._task, self._done, self._step = task, done, 0
        first, self._last = window or (0, 0)
        self._first = first if first <= left else left // 2 + 1
        self._recording: Any = None  # torch's profiler has no types
        self._regions: list[Any] = []  # the open regions: a step and its part

    def named(self, name: str, work: Callable[[T], P]) -> Callable[[T], P]:
        """Wrap `work` in a region of the trace."""

        def region(item: T) -> P:
            with record_function(name):
                return work(item)

        return region if self._first else work

    def steps(self, items: Iterable[T], count: int) -> Iterator[T]:
        """The `count` items; waiting for an item and using it are part of its step."""
        items = iter(items)
        for _ in range(count if self._first else 0):
            self._step += 1
            if self._step == self._first:
                self._recording = _recorder(self._task.device.type)
                self._recording.__enter__()
                # Otherwise Python crashes at exit (torch 2.13).
                atexit.register(self._recording.__exit__, None, None, None)
            if self._recording:
                self._open(f"ProfilerStep#{self._done + self._step}")
                self._task.clock.listener = self._part
                self._part("wait for batch")
            yield next(items)
            self._task.clock.listener = None
            while self._regions:
                self._regions.pop().__exit__(None, None, None)
            if self._recording and self._step == self._last:
                self._write(self._recording)
                self._task.clock.restart("sampling")  # do not charge the writing to a step
        yield from items

    def close(self) -> None:
        """Call after training: writes the trace if it is still recording."""
        if self._recording:
            self._write(self._recording)
        elif self._step < self._first and self._task.place.rank == 0:
            print(f"no trace: the training ended before step {self._first}", flush=True)

    def _part(self, name: str) -> None:
        if len(self._regions) > 1:
            self._regions.pop().__exit__(None, None, None)
        if name != "sampling":  # the clock's name for waiting for the next step
            self._open(name)

    def _open(self, name: str) -> None:
        region: Any = record_function(name)
        region.__enter__()
        self._regions.append(region)

    def _write(self, recording: Any) -> None:
        self._recording = None
        heart = self._task.events.heart
        heart.enter(State.CHECKPOINTING.value)  # for the watchdog: writing may take longer than any step
        atexit.unregister(recording.__exit__)
        recording.__exit__(None, None, None)
        attempt, rank = self._task.attempt, self._task.place.rank
        folder = attempt.profile if attempt is not None else Path("profile").absolute()
        cost = "self_device_time_total" if self._task.device.type == "cuda" else "self_cpu_time_total"
        try:
            folder.mkdir(exist_ok=True)
            table = recording.key_averages().table(sort_by=cost, row_limit=_ROWS, max_name_column_width=60)
            write_text(folder / f"rank_{rank:05}.txt", table + "\n")
            _compress(recording.export_chrome_trace, folder / f"rank_{rank:05}.json.gz")
        except OSError as error:
            print(f"warning: the trace could not be written: {error}", file=sys.stderr, flush=True)
        else:
            if rank == 0:
                steps = f"steps {self._done + self._first} to {self._done + self._step}"
                print(f"trace of {steps}, a file a rank: {folder}\nopen one in https://ui.perfetto.dev", flush=True)
        heart.enter(State.TRAINING.value)


def _recorder(device: str) -> Any:
    """The class under `torch.profiler.profile`, which would import torch's compiler and take seconds (torch 2.13)."""
    os.environ.setdefault("KINETO_LOG_LEVEL", _QUIET)
    try:
        threads = _ExperimentalConfig(profile_all_threads=True)  # the `prefetch` thread samples
    except TypeError:  # older versions of torch record only the main thread
        threads = _ExperimentalConfig()
    return profile(use_cpu=True, use_device=None if device == "cpu" else device, experimental_config=threads)


def _compress(export: Callable[[str], object], path: Path) -> None:
    """Write to a temporary file, then rename it; the uncompressed trace, tens of megabytes, stays on this node."""
    with tempfile.TemporaryDirectory(prefix="clusterctl-") as scratch:
        export(f"{scratch}/trace.json")
        with (
            Path(scratch, "trace.json").open("rb") as whole,
            replacing(path) as file,
            gzip.open(file, "wb", compresslevel=5) as packed,
        ):
            shutil.copyfileobj(whole, packed)
