"""The store through which the ranks find each other: rank 0 serves it, the others connect."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import TYPE_CHECKING

from torch.distributed import DistError, HashStore, TCPStore, rendezvous  # type: ignore[attr-defined]

from clusterctl.errors import Cause, TaskError
from clusterctl.task import meeting

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store  # torch.distributed shows it to programs, not to type checkers

    from clusterctl.runs.layout import Attempt
    from clusterctl.runs.place import Place


def meet(place: Place, attempt: Attempt | None) -> Store:
    """The store of this run's ranks: torchrun's own under torchrun, else one that rank 0 serves and publishes."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        store: Store = next(rendezvous("env://", place.rank, place.world_size))[0]
        return store
    if place.world_size == 1:
        return HashStore()
    if attempt is None:
        raise TaskError(
            f"{place.world_size} ranks cannot meet outside a run",
            "use `clusterctl submit`, or torchrun",
        )
    _bind_collectives()
    return _serve(place, attempt) if place.rank == 0 else _connect(place, attempt)


def _serve(place: Place, attempt: Attempt) -> Store:
    host = meeting.own_address(place)
    listener = socket.create_server((host, 0), backlog=min(4096, 2 * place.world_size))
    port = listener.getsockname()[1]
    store = TCPStore(
        host,
        port,
        place.world_size,
        is_master=True,
        timeout=timedelta(seconds=meeting.TIMEOUT_SECONDS),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),  # handed over while listening: nobody can take the port in between
    )
    meeting.publish(attempt, host, port)
    return store


def _connect(place: Place, attempt: Attempt) -> Store:
    host, port = meeting.find(attempt)
    try:
        return TCPStore(
            host,
            port,
            place.world_size,
            is_master=False,
            timeout=timedelta(seconds=meeting.TIMEOUT_SECONDS),
            wait_for_workers=False,
        )
    except DistError as error:
        raise TaskError(
            f"{socket.gethostname()} cannot reach rank 0 at {host}:{port}: {str(error).splitlines()[0]}",
            "name the network that joins the nodes as `interface` in the cluster file",
            Cause.NETWORK,
        ) from error


def _bind_collectives() -> None:
    """Let gloo and NCCL use the cluster's interface too, unless the user says otherwise."""
    if interface := os.environ.get("CLUSTERCTL_INTERFACE"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
