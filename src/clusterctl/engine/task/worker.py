"""Threads that prepare data for the thread that trains. On a GPU, each has a stream of its own.

A new thread would use GPU 0, where every rank would then hold a context, and the stream of the steps: its copies and
kernels would queue behind theirs, and each size that it reads would wait for them. So a worker sets the rank's device
and a stream. Streams run side by side, and memory that one frees is reused at once; so a worker waits for what the
caller's stream had queued, and taking a result waits for it and keeps its memory until the taker has used it.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")


def queued(device: torch.device) -> torch.cuda.Event | None:
    """An event behind everything that the calling thread has queued on `device`; None on a CPU."""
    return torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None


@cache
def stream_of(name: str, device: torch.device) -> torch.cuda.Stream:  # noqa: ARG001 - one stream for each name
    """The stream of the workers with this name, always the same: torch keeps freed memory for each stream apart."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class Worker:
    """One thread that works on `device`, for results that other threads use. A context: it waits for pending work.

    Beside a training on the CPU, it uses a single core, because the step needs the others.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        self._device = device
        self._stream = stream_of(name, device) if device.type == "cuda" else None
        self._cores = 1 if self._stream is None else torch.get_num_threads()
        self._pool = ThreadPoolExecutor(1, name, self._begin)

    def _begin(self) -> None:
        torch.set_num_threads(self._cores)
        if self._stream is not None:
            torch.cuda.set_device(self._device)

    def submit(self, work: Callable[..., T], *given: Any, after: torch.cuda.Event | None = None) -> Later[T]:
        """Call `work(*given)` in the thread, after what is `queued` now, or was at the event `after`."""
        return Later(self._pool.submit(self._run, after or queued(self._device), work, given), self._device)

    def _run(
        self, after: torch.cuda.Event | None, work: Callable[..., T], given: tuple[Any, ...]
    ) -> tuple[T, torch.cuda.Event | None]:
        if self._stream is None or after is None:
            return work(*given), None
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(after)
            return work(*given), self._stream.record_event()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        if self._stream is not None:  # results that nobody took may still read what the caller frees next
            torch.cuda.current_stream(self._device).wait_stream(self._stream)


class Later(Generic[T]):
    """A result of a worker."""

    def __init__(self, future: Future[tuple[T, torch.cuda.Event | None]], device: torch.device) -> None:
        self._future, self._device = future, device

    def result(self) -> T:
        """The result, which the calling thread's stream may use: the host waits for the call, the stream for the GPU.

        Raises what the call raised.
        """
        value, done = self._future.result()
        if done is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(done)
            for tensor in tensors_in(value):
                if tensor.is_cuda:
                    tensor.record_stream(stream)  # else its memory is reused on the worker's stream once it is freed
        return value


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in dataclasses, tuples, lists and dicts, each once."""
    seen: set[int] = set()

    def found(one: Any) -> Iterator[Tensor]:
        if id(one) in seen:
            return
        seen.add(id(one))
        if isinstance(one, Tensor):
            yield one
        elif isinstance(one, tuple | list):
            for part in one:
                yield from found(part)
        elif isinstance(one, dict):
            for part in one.values():
                yield from found(part)
        elif is_dataclass(one) and not isinstance(one, type):
            yield from found(vars(one))  # properties that were computed, too

    return found(value)
