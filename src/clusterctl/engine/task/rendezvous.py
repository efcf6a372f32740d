"""Rendezvous of the ranks: a store that rank 0 serves, the roll of all ranks, a group per node, proofs of belonging.

Anyone who reaches rank 0's port can join: TCPStore does not authenticate, and gloo and NCCL send plain text. So every
group of ranks proves that it knows the attempt's secret (`record.secret`) before anything else is sent
(docs/security.md).
"""

from __future__ import annotations

import hmac
import json
import os
import socket
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist
from torch.distributed import DistError, HashStore, TCPStore, rendezvous  # type: ignore[attr-defined]

from clusterctl.engine.task import meeting
from clusterctl.shared.errors import Cause, TaskError
from clusterctl.shared.record.secret import read, sign

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store  # torch.distributed shows it to programs, not to type checkers

    from clusterctl.shared.record.layout import Attempt
    from clusterctl.shared.record.place import Place

_NONCE_BYTES = 32
_PATIENCE = timedelta(hours=6)  # a node's ranks wait in their group while one of them prepares a large data set


def meet(place: Place, attempt: Attempt | None) -> tuple[Store, bytes | None]:
    """The store of this run's ranks, and their secret.

    Rank 0 serves the store and publishes its address. Under torchrun, the store is torchrun's: there is no secret, and
    every process that torchrun accepts is trusted.
    """
    if attempt is None and "TORCHELASTIC_RUN_ID" in os.environ:
        store: Store = next(rendezvous("env://", place.rank, place.world_size))[0]
        return store, None
    if place.world_size == 1:
        return HashStore(), None
    if attempt is None:
        if "MASTER_ADDR" in os.environ:  # as workload `command` sets it
            message = "with workload `command`, connecting the ranks is up to the program"
            raise TaskError(message, "call torch.distributed.init_process_group(), or use a built-in workload")
        hint = "use `clusterctl submit`, or torchrun"
        raise TaskError(f"{place.world_size} ranks cannot meet outside a run", hint)
    if interface := os.environ.get("CLUSTERCTL_INTERFACE"):  # for gloo and NCCL too, unless the user has set them
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
    os.environ["TORCH_GLOO_LAZY_INIT"] = "0"  # ranks that connect after the proof would be unproven
    return _serve(place, attempt) if place.rank == 0 else _connect(place, attempt)


def _serve(place: Place, attempt: Attempt) -> tuple[Store, bytes]:
    own = read(attempt)
    host = meeting.own_address(place)
    listener = socket.create_server((host, 0), backlog=min(4096, 2 * place.world_size))
    port = listener.getsockname()[1]
    # Pass a listening socket, so that nobody can take the port in between. libuv accepts one since torch 2.8.
    libuv = torch.__version__ >= "2.8"  # compares versions, not text
    own_socket = {"is_master": True, "master_listen_fd": listener.detach(), "use_libuv": libuv}
    store = _store(host, port, place.world_size, **own_socket)
    meeting.publish(attempt, host, port)
    return store, own


def _connect(place: Place, attempt: Attempt) -> tuple[Store, bytes]:
    host, port = meeting.find(attempt)
    try:
        return _store(host, port, place.world_size, is_master=False), read(attempt)
    except DistError as error:
        raise TaskError(
            f"{socket.gethostname()} cannot reach rank 0 at {host}:{port}: {str(error).splitlines()[0]}",
            "name the network that joins the nodes as `interface` in the cluster file",
            Cause.NETWORK,
        ) from error


def _store(host: str, port: int, ranks: int, **how: Any) -> Store:
    timeout = timedelta(seconds=meeting.TIMEOUT_SECONDS)
    return TCPStore(host, port, ranks, timeout=timeout, wait_for_workers=False, **how)


@dataclass(frozen=True)
class Member:
    """A rank's node, and the UUID of the GPU that it would use (empty on the CPU)."""

    node_rank: int
    gpu: str = ""


def call_roll(store: Store, place: Place, gpu: str = "", own_secret: bytes | None = None) -> list[Member]:
    """The members by rank; each entry is signed with the secret, if there is one.

    Goes through the store, because wrong devices must be found before NCCL uses them. Rank 0 collects the entries and
    publishes them as one value: if each rank read each entry, the store would answer ranks x ranks times. Raises
    TaskError for an entry from a process that does not know the secret.
    """
    entry = json.dumps(asdict(Member(place.node_rank, gpu)))
    store.set(f"roll/{place.rank}", _signed(own_secret, place.rank, entry) + entry)
    if place.rank == 0:
        collected = store.multi_get([f"roll/{rank}" for rank in range(place.world_size)])
        store.set("roll", json.dumps([answer.decode(errors="replace") for answer in collected]))
    try:
        answers = json.loads(store.get("roll"))
    except (ValueError, RecursionError):  # anyone may have put it into the store
        answers = None
    if not isinstance(answers, list) or len(answers) != place.world_size:
        raise stranger("the roll call in place of rank 0")
    members = []
    for rank, answer in enumerate(answers):
        tag, brace, rest = str(answer).partition("{")
        if not hmac.compare_digest(tag, _signed(own_secret, rank, brace + rest)):
            raise stranger(f"the roll call as rank {rank}")
        members.append(Member(**json.loads(brace + rest)))
    return members


def _signed(own_secret: bytes | None, rank: int, entry: str) -> str:
    return "" if own_secret is None else sign(own_secret, f"roll of rank {rank}", entry.encode())


def ranks_by_node(members: list[Member]) -> list[list[int]]:
    """The ranks of each node, nodes in order; nodes may hold different numbers of ranks."""
    nodes: dict[int, list[int]] = {}
    for rank, member in enumerate(members):
        nodes.setdefault(member.node_rank, []).append(rank)
    return [nodes[node] for node in sorted(nodes)]


def node_group(members: list[Member], rank: int) -> dist.ProcessGroup:
    """The group of the ranks on the node of `rank`.

    Only its members create it; no rank creates the groups of other nodes. The backend is gloo: the ranks of a node
    share host memory, not GPU memory.
    """
    own = next(ranks for ranks in ranks_by_node(members) if rank in ranks)
    group: dist.ProcessGroup = dist.new_group(own, _PATIENCE, backend="gloo", use_local_synchronization=True)
    return group


def prove(secret: bytes, group: dist.ProcessGroup | None = None, device: torch.device | None = None) -> None:
    """Verify that every rank of `group` (default: all) knows `secret`. A collective: two rounds of 32 bytes per rank.

    Each tag covers its rank and a fresh nonce of every rank, so no tag can be replayed or used by another rank.
    `device` is where the group's tensors are. Raises TaskError on every rank that receives a wrong tag.
    """
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    if ranks == 1:
        return
    nonces = b"".join(_gathered(os.urandom(_NONCE_BYTES), group, device))
    expected = [bytes.fromhex(sign(secret, f"rank {one} of {ranks}", nonces)) for one in range(ranks)]
    shown = _gathered(expected[rank], group, device)
    strangers = [one for one in range(ranks) if not hmac.compare_digest(shown[one], expected[one])]
    if strangers:
        raise stranger(f"in place of rank {', '.join(map(str, strangers))}")


def stranger(where: str) -> TaskError:
    """The error for a process that joined without knowing the secret."""
    message = f"a process that does not belong to this run answered {where}: it does not know the attempt's secret"
    return TaskError(message, "another user may be on these nodes; report it: see docs/security.md", Cause.NETWORK)


def _gathered(content: bytes, group: dist.ProcessGroup | None, device: torch.device | None) -> list[bytes]:
    own = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(device)
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, own, group=group)
    return [part.cpu().numpy().tobytes() for part in parts]
