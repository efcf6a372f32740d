"""A CPU that passes for a GPU, to run code for GPUs once before a GPU is met: it finds typing errors, not wrong speed.

Whatever asks for `cuda` gets the CPU, gradients included, and the functions of torch.cuda that the project calls do
what they can. A CUDA graph is a `Tape`.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from support.pretended_gpu import Tape
from support.pretended_streams import Event, Stream
from torch import distributed as dist
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from clusterctl.engine.graph import masks, sampling

CPU = torch.device("cpu")


class CpuAsGpu(TorchFunctionMode):
    """Replaces the device `cuda` in every call of torch by the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name == "pin_memory":
            return args[0]
        args, kwargs = tree_map(_on_cpu, (args, {key: kwargs[key] for key in kwargs or {} if key != "pin_memory"}))
        return func(*args, **kwargs)


def _on_cpu(value: Any) -> Any:
    return CPU if isinstance(value, torch.device) else value


class Graph:
    """`torch.cuda.CUDAGraph`."""

    def __init__(self) -> None:
        self.tape = Tape()

    def replay(self) -> None:
        self.tape.replay()


@contextmanager
def _captured(graph: Graph, capture_error_mode: str) -> Iterator[None]:
    assert capture_error_mode == "thread_local"
    with graph.tape:
        yield
    graph.tape.undo()


@contextmanager
def _within(stream: Stream) -> Iterator[None]:
    before, _STATE.stream = _STATE.stream, stream
    yield
    _STATE.stream = before


class _State(threading.local):
    def __init__(self) -> None:
        self.stream, self.device = _USUAL, 0


_USUAL = Stream()
_STATE = _State()


def _set_device(device: torch.device) -> None:
    _STATE.device = device.index or 0
    if threading.current_thread() is not threading.main_thread():  # the test has entered it there
        CpuAsGpu().__enter__()  # until the thread ends


def install(monkeypatch: pytest.MonkeyPatch, gpus: int) -> None:
    """Within the test, this machine has GPUs. Enter `CpuAsGpu` in the thread of the test."""
    properties = [types.SimpleNamespace(uuid=f"GPU-{number}") for number in range(gpus)]
    for name, value in {
        "Stream": Stream, "Event": Event, "stream": _within, "current_stream": lambda _=None: _STATE.stream,
        "set_device": _set_device, "current_device": lambda: _STATE.device, "device_count": lambda: gpus,
        "get_device_name": lambda _: "a CPU as a GPU", "get_device_properties": lambda device: properties[device.index],
        "synchronize": lambda _=None: None, "set_sync_debug_mode": lambda mode: None, "empty_cache": lambda: None,
        "get_rng_state": lambda _: torch.get_rng_state(), "set_rng_state": lambda *_: None,
        "mem_get_info": lambda _: (1 << 34, 1 << 34), "memory_reserved": lambda _: 0, "memory_allocated": lambda _: 0,
        "reset_peak_memory_stats": lambda _: None, "max_memory_allocated": lambda _: 1 << 30,
        "CUDAGraph": Graph, "graph": _captured,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    # A tape does not see compiled loops, which a GPU has none of.
    for module in (masks, sampling):
        monkeypatch.setattr(module, "uses_loops", lambda: False)
    autocast = torch.autocast
    monkeypatch.setattr(torch, "autocast", lambda _, *given, **options: autocast("cpu", *given, **options))
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: None)  # the fixture of the test has one
    monkeypatch.setattr(dist, "destroy_process_group", lambda: None)
    monkeypatch.setattr(torch.profiler, "profile", lambda activities: _Profile())


class _Profile:
    """`torch.profiler.profile` on a GPU."""

    def __enter__(self) -> _Profile:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def key_averages(self) -> list[Any]:
        return [types.SimpleNamespace(key="a|kernel", self_device_time_total=3, count=2)]
