"""Which nodes and GPUs a waiting job gets: strictly in the order of job ids, and one decision at a time."""

from __future__ import annotations

import os
import socket
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.emulator.jobs import State, all_jobs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from clusterctl.emulator.jobs import Job, Record
    from clusterctl.emulator.machine import Machine
    from clusterctl.emulator.request import Request


class Free(NamedTuple):
    """What is free on one node that is up."""

    node: int
    cpus: int
    gpus: list[int]


class Placement(NamedTuple):
    """Nodes, and the GPUs of each."""

    nodes: list[int]
    gpus: list[list[int]]


@contextmanager
def lease(machine: Machine) -> Iterator[None]:
    """Only one process at a time decides.

    An address in the kernel instead of a file: it goes with its process, so none is ever left behind to be judged
    stale. Node-local, as the emulator is.
    """
    place = machine.root.stat()
    with socket.socket(socket.AF_UNIX) as held:
        while True:
            try:
                held.bind(f"\0clusterctl-emulator-{os.getuid()}-{place.st_dev}-{place.st_ino}")
                break
            except OSError:  # in use
                time.sleep(0.005)
        yield


def place(machine: Machine, job: Job, request: Request) -> Placement | str:
    """The slots for `job`, or Slurm's word for why it has to wait."""
    others = [other for other in reversed(all_jobs(machine)) if other.id != job.id]
    if any(other.is_supervised and other.record.in_line for other in others if other.id < job.id):
        return "Priority"
    whole = [node for node in free_slots(machine, []) if not machine.down_marker(node.node).exists()]
    if choose(request, whole) is None:
        return "ReqNodeNotAvail"  # it would not fit if all were free: the jobs behind it need not wait
    running = ((other.request, other.record) for other in others if other.is_supervised)
    taken = [(req, rec) for req, rec in running if rec.state in (State.RUNNING, State.COMPLETING)]
    free = [node for node in free_slots(machine, taken) if not machine.down_marker(node.node).exists()]
    return choose(request, free) or "Resources"


def free_slots(machine: Machine, taken: Iterable[tuple[Request, Record]]) -> list[Free]:
    """What the jobs in `taken` leave of each node."""
    cpus = {node: machine.cpus_per_node for node in range(1, machine.nodes + 1)}
    gpus = {node: set(machine.gpu_indices(node)) for node in cpus}
    for request, record in taken:
        for node, used in zip(record.nodes, record.gpus, strict=True):
            if node in cpus:  # a job of a larger virtual cluster in the same state folder
                cpus[node] = 0 if request.exclusive else cpus[node] - request.cpus_on_each
                gpus[node] -= set(used)
    return [Free(node, cpus[node], sorted(gpus[node])) for node in cpus]


def choose(request: Request, free: list[Free]) -> Placement | None:
    """The first nodes with room, and their first GPUs. Pure."""
    fitting = [node for node in free if node.cpus >= request.cpus_on_each and len(node.gpus) >= request.gpus_per_node]
    chosen = fitting[: request.nodes]
    if len(chosen) < request.nodes:
        return None
    return Placement([node.node for node in chosen], [node.gpus[: request.gpus_per_node] for node in chosen])
