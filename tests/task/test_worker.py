"""Threads beside a training: on a GPU, with the rank's device and a stream, and in order with the other streams."""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from support.pretended_gpu import GPU, OnGpu, counted
from support.pretended_streams import Stream, Streams
from torch import Tensor

import clusterctl.engine
from clusterctl.engine.graph.blocks import moved
from clusterctl.engine.graph.features.sources import Fetched, FetchesAhead
from clusterctl.engine.task.worker import Worker, tensors_in

CPU = torch.device("cpu")


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    made = Streams()
    made.install(monkeypatch)
    return made


def test_a_worker_uses_a_stream_of_its_own_on_the_ranks_device(streams: Streams) -> None:
    begun: list[tuple[Any, Stream]] = []

    def work() -> None:
        begun.append((torch.get_num_threads(), torch.cuda.current_stream()))  # type: ignore[arg-type]

    with Worker("prefetch", GPU) as first, Worker("gather", GPU) as second:
        for worker in (first, first, second):
            worker.submit(work).result()
    with Worker("prefetch", GPU) as first:  # of the next epoch: torch keeps memory for each stream apart
        first.submit(work).result()
    (cores, one), (_, again), (_, other), (_, later) = begun
    assert one is again is later is not other
    assert torch.cuda.current_stream() not in (one, other)
    assert cores == torch.get_num_threads()  # nothing else needs the cores
    assert not streams.problems


def a_step(worker: Worker) -> Tensor:
    """What training does with a worker: it queues the seeds, the worker copies and computes, the step reads."""
    seeds = torch.arange(9, device=GPU) + 1
    later = worker.submit(lambda: moved([torch.arange(9)], GPU)[0] * seeds)
    found = later.result()
    return found + seeds


def not_set(self: Streams, _: torch.device) -> None:
    OnGpu(self.asked, self).__enter__()


BREAKS: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "reads what another stream writes": ("support.pretended_streams.Stream", "wait_event", lambda *_: None),
    "memory is freed while another stream uses it": ("support.pretended_streams.Streams", "keep", lambda *_: None),
    "has not set the device": ("support.pretended_streams.Streams", "_set_device", not_set),
    "from pageable memory": ("support.pretended_gpu", "_pinned", lambda tensor: tensor),
}


@pytest.mark.parametrize("problem", ["", *BREAKS])
def test_copies_kernels_and_memory_of_two_threads_are_in_order(
    problem: str, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And each call that this needs is missed, if it is left out."""
    if problem:
        place, name, instead = BREAKS[problem]
        monkeypatch.setattr(f"{place}.{name}", instead)
        if name == "_set_device":
            streams.install(monkeypatch)
    with counted(GPU, streams) as asked, Worker("prefetch", GPU) as worker:
        for _ in range(3):
            kept = a_step(worker)
            del kept
    assert not asked
    assert not streams.asked
    assert streams.threads["prefetch"]
    if problem:
        assert any(problem in found for found in streams.problems)
    else:
        assert not streams.problems


def test_what_nobody_took_is_finished_before_its_input_is_freed(streams: Streams) -> None:
    with counted(GPU, streams):
        with Worker("prefetch", GPU) as worker:
            seeds = torch.arange(9, device=GPU) + 1
            worker.submit(lambda given: given * 2, seeds)
        del seeds
    assert not streams.problems


def test_a_fetch_waits_for_the_thread_that_asked_whichever_thread_starts_it(streams: Streams) -> None:
    """Three requests by the thread that prepares; the training one starts the second and third gathering."""
    fetches: FetchesAhead[Tensor, Tensor] = FetchesAhead(lambda nodes: Fetched(nodes * 2, {}), GPU)

    def prepare(number: int) -> Any:
        return fetches.fetch(torch.arange(number, 9, device=GPU) + 1)

    with counted(GPU, streams), Worker("prefetch", GPU) as worker:
        asked = [worker.submit(prepare, number) for number in range(3)]
        found = [later.result() for later in asked]
        for number, fetch in enumerate(found):
            assert (fetch.rows() + 0).host.tolist() == [2 * (1 + node) for node in range(number, 9)]
    assert not streams.problems
    assert streams.threads["gather"]


class Pair(NamedTuple):
    one: Tensor
    other: Any


@dataclass(frozen=True)
class Sample:
    rows: Tensor
    parts: list[Any]
    none: None = None

    @cached_property
    def late(self) -> Tensor:
        return self.rows + 1


def test_all_tensors_of_a_result_are_found_once() -> None:
    one, two, three, four = (torch.zeros(number) for number in range(4))
    sample = Sample(one, [Pair(two, {"a": three, "b": (four, one)}), "text", 3])
    found = [*tensors_in(sample)]
    assert [tensor.numel() for tensor in found] == [0, 1, 2, 3]
    assert [*tensors_in([sample, sample])] == found
    late = sample.late
    assert any(tensor is late for tensor in tensors_in(sample))
    assert [*tensors_in(None)] == [*tensors_in(Sample)] == []


# Threads that touch only the memory of the host. Everything else must be a Worker.
ON_THE_HOST = {
    "graph/compiled.py": "attention on a CPU",
    "graph/features/row_file.py": "reads of files",
    "task/node_telemetry.py": "numbers of NVML and /proc",
    "task/roles.py": "sockets",
    "task/worker.py": "the Worker itself",
    "training/checkpoint.py": "writes copies that the training thread made",
    "workloads/command.py": "waits for the program",
    "workloads/roles.py": "waits for the program",
}


def test_every_other_thread_of_a_task_is_a_worker() -> None:
    folder = Path(clusterctl.engine.__file__).parent
    found = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            called = node.func if isinstance(node, ast.Call) else None
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name in ("Thread", "ThreadPoolExecutor"):
                found.add(path.relative_to(folder).as_posix())
    assert found == set(ON_THE_HOST)
    assert threading.current_thread() is threading.main_thread()
