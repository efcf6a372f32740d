"""CUDA's streams, events and memory for the tensors of `pretended_gpu`: which work may run at the same time.

A real GPU runs streams side by side, so a race shows once in a thousand steps, or on another card. This one runs
everything at once and finds races by order alone, with a vector clock for each stream: work on two streams is ordered
only by an event that one records and the other waits for, or if the host has waited. It reports

- two streams that use one tensor in no fixed order, if at least one of them writes it,
- a tensor that is freed while another stream may use it: its memory would be reused,
- work of a thread that has not set the device,
- copies to the GPU from pageable memory that claim not to wait.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch
from support.pretended_gpu import GPU, OnGpu, PretendedTensor
from torch import Tensor

from clusterctl.engine.task.worker import stream_of


class Stream:
    """`torch.cuda.Stream`. `clock` is how far this stream has waited for others, and its own work."""

    def __init__(self, device: torch.device = GPU) -> None:
        self.device, self.clock = device, Counter[Stream]()

    def wait_event(self, event: Event) -> None:
        self.clock |= event.clock

    def wait_stream(self, other: Stream) -> None:
        self.clock |= other.clock

    def record_event(self) -> Event:
        event = Event()
        event.record(self)
        return event


class Event:
    """`torch.cuda.Event`."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.clock = Counter[Stream]()

    def synchronize(self) -> None:
        """Everything is done at once."""

    def elapsed_time(self, end: Event) -> float:
        return 1.0

    def record(self, stream: Stream | None = None) -> None:
        self.clock = Counter((stream or torch.cuda.current_stream()).clock)


@dataclass
class Memory:
    """A piece of the GPU's memory: who may use it still."""

    owner: Stream
    tensors: int = 0
    written: tuple[Stream, int] | None = None
    read: dict[Stream, int] = field(default_factory=dict)
    kept_for: set[Stream] = field(default_factory=set)


class Streams:
    """A `Watch`, and the functions of torch.cuda. `problems` are what could go wrong on a GPU."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.threads: dict[str, int] = Counter()  # operations of each
        self.asked: list[str] = []  # by other threads than the one that trains
        self._usual, self._local, self._lock = Stream(), threading.local(), threading.RLock()
        self._local.device = GPU
        self._memory: dict[int, Memory] = {}
        self._finished = Counter[Stream]()

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stream_of.cache_clear()
        for name, value in {
            "Stream": Stream, "Event": Event, "stream": self._within, "set_device": self._set_device,
            "current_stream": lambda _=None: getattr(self._local, "stream", self._usual),
            "mem_get_info": lambda _: (1 << 34, 1 << 34),
            "memory_reserved": lambda _: 0, "memory_allocated": lambda _: 0,
            "get_rng_state": lambda _: torch.get_rng_state(), "set_rng_state": lambda *_: None,
        }.items():  # fmt: skip
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(Tensor, "record_stream", lambda tensor, stream: self.keep(tensor.host, stream))

    def _set_device(self, device: torch.device) -> None:
        self._local.device = device
        if threading.current_thread() is threading.main_thread():
            return  # `counted` has entered it there
        OnGpu(self.asked, self).__enter__()  # a mode applies to one thread, and ends with it

    @contextmanager
    def _within(self, stream: Stream) -> Iterator[None]:
        before, self._local.stream = getattr(self._local, "stream", self._usual), stream
        yield
        self._local.stream = before

    # As a Watch

    def operation(self, name: str, read: list[Tensor], written: list[Tensor]) -> None:
        thread, stream = threading.current_thread().name, torch.cuda.current_stream()
        with self._lock:
            self.threads[thread.split("_")[0]] += 1
            if not hasattr(self._local, "device"):
                self.problems.append(f"{name}: {thread} has not set the device")
            stream.clock[stream] += 1
            for tensor in filter(Tensor.numel, read):
                memory = self._of(tensor, stream)
                self._check(stream, memory.written, f"{name} reads what another stream writes")
                memory.read[stream] = stream.clock[stream]
            for tensor in filter(Tensor.numel, written):
                memory = self._of(tensor, stream)
                for use in (memory.written, *memory.read.items()):
                    self._check(stream, use, f"{name} writes what another stream uses")
                memory.written = stream, stream.clock[stream]

    def finished(self, name: str) -> None:
        stream = torch.cuda.current_stream()
        with self._lock:
            self._finished |= stream.clock

    def copied_from_pageable(self, name: str) -> None:
        self.problems.append(f"{name} from pageable memory")

    def keep(self, tensor: Tensor, stream: Stream) -> None:
        with self._lock:
            self._of(tensor, stream).kept_for.add(stream)

    def made(self, tensor: PretendedTensor) -> None:
        address = tensor.host.untyped_storage().data_ptr()
        with self._lock:
            self._of(tensor.host, torch.cuda.current_stream()).tensors += 1
        weakref.finalize(tensor, self._gone, address)

    def _of(self, tensor: Tensor, stream: Stream) -> Memory:
        return self._memory.setdefault(tensor.untyped_storage().data_ptr(), Memory(stream))

    def _gone(self, address: int) -> None:
        with self._lock:
            memory = self._memory[address]
            memory.tensors -= 1
            if memory.tensors or not address:
                return
            del self._memory[address]
            for use in (memory.written, *memory.read.items()):
                if use and use[0] not in memory.kept_for:
                    self._check(memory.owner, use, "memory is freed while another stream uses it")

    def _check(self, stream: Stream, use: tuple[Stream, int] | None, problem: str) -> None:
        """Report a problem unless `stream` has waited for this use of a tensor, or the host has."""
        if use and use[0] is not stream and max(stream.clock[use[0]], self._finished[use[0]]) < use[1]:
            self.problems.append(problem)
