"""One connected rank: everything that a workload needs from its environment. Start with `joined`.

Above it are the choice of the rank's device, and what ranks send each other: objects as JSON, as bytes in tensors, or
outside their process groups. torch.distributed's object collectives unpickle what arrives, and so would run any code
that a peer sends.
"""

from __future__ import annotations

import hmac
import itertools
import json
import os
import resource
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist
from torch.distributed import HashStore, TCPStore  # type: ignore[attr-defined]

from clusterctl.engine.task.node_telemetry import start_telemetry
from clusterctl.engine.task.rendezvous import call_roll, meet, node_group, prove, ranks_by_node, stranger
from clusterctl.engine.task.step_clock import StepClock
from clusterctl.shared.errors import TaskError, reason
from clusterctl.shared.record.layout import Attempt, RunDir
from clusterctl.shared.record.metrics import MetricsWriter
from clusterctl.shared.record.once import prepared_once
from clusterctl.shared.record.place import Place
from clusterctl.shared.record.secret import sign
from clusterctl.shared.record.states import State
from clusterctl.shared.spec import Checkpoint, LoopTrain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch._C._distributed_c10d import Store

    from clusterctl.engine.task.rendezvous import Member
    from clusterctl.shared.node.events import Context, Events
    from clusterctl.shared.node.signals import StopRequest
    from clusterctl.shared.spec import Job


_MOST_BYTES = 1 << 28


def from_first(work: Callable[[], Any], group: dist.ProcessGroup | None) -> Any:
    """Return what `work` returns on rank 0 (a JSON value); raise its OSError on every rank. A collective."""
    own = tried(work) if dist.get_rank(group) == 0 else b""
    length = torch.tensor([len(own)])
    dist.broadcast(length, 0, group=group)
    content = _padded(own, _checked(length.tolist())[0])
    dist.broadcast(content, 0, group=group)
    return _received(content, int(length))


def to_first(work: Callable[[], Any], group: dist.ProcessGroup | None) -> list[Any]:
    """On rank 0, return what `work` returns on each rank (JSON values); [] on other ranks. A collective.

    If it raises OSError on one rank, every rank raises it. The messages go to rank 0 and back: one per rank, while an
    all-gather would take ranks x ranks.
    """
    own, leads = tried(work), dist.get_rank(group) == 0
    ranks = range(dist.get_world_size(group) if leads else 0)
    lengths = [torch.empty(1, dtype=torch.int64) for _ in ranks]
    dist.gather(torch.tensor([len(own)]), lengths if leads else None, group=group)
    longest = torch.stack(lengths).max().view(1) if leads else torch.empty(1, dtype=torch.int64)
    dist.broadcast(longest, 0, group=group)
    size = _checked(longest.tolist())[0]
    contents = [torch.empty(size, dtype=torch.uint8) for _ in ranks]
    dist.gather(_padded(own, size), contents if leads else None, group=group)
    found: list[Any] = []
    from_first(lambda: found.extend(_received(content, size) for content in contents), group)
    return found


def tried(work: Callable[[], Any]) -> bytes:
    """What `work` returns, or its failure as a value, because the other ranks are waiting for an answer."""
    try:
        return json.dumps({"value": work()}).encode()
    except OSError as error:
        return json.dumps({"failure": reason(error)}).encode()


def _padded(content: bytes, size: int) -> torch.Tensor:
    return torch.frombuffer(bytearray(content.ljust(size, b" ")), dtype=torch.uint8)


def _checked(sizes: list[int]) -> list[int]:
    if not all(0 < size <= _MOST_BYTES for size in sizes):
        raise ValueError(f"a rank announced a message of {max(sizes)} bytes")
    return sizes


def _received(content: torch.Tensor, size: int) -> Any:
    return value_in(content[:size].numpy().tobytes())


def value_in(content: bytes) -> Any:
    """Decode what `tried` encoded. Raises OSError if that was a failure."""
    record = json.loads(content)
    if "failure" in record:
        raise OSError(str(record["failure"]))
    return record["value"]


# Which device a rank uses. Only `gpu_identity` queries the machine; everything else is pure.


def choose_device(wanted: str, gpus_requested: int, visible: int, local_rank: int) -> torch.device:
    """The device of a rank that wants "auto", "cpu" or "cuda" and sees `visible` GPUs.

    `cuda:local_rank` if the task sees all GPUs of its node, `cuda:0` if Slurm restricts it to one, the CPU if the job
    requests no GPU. Raises TaskError if a GPU is wanted and there is none for this rank.
    """
    if wanted == "cpu" or (wanted == "auto" and gpus_requested == 0):
        return torch.device("cpu")
    if visible == 0:
        raise TaskError(
            f"local rank {local_rank} sees no GPU, but the job needs {gpus_requested or 'one'}",
            "check `nvidia-smi` and `torch.cuda.is_available()` there, or run with train.device=cpu",
        )
    if visible == 1:
        return torch.device("cuda", 0)
    if local_rank >= visible:
        raise TaskError(
            f"local rank {local_rank} has no GPU of its own: {visible} visible",
            "set tasks_per_node to at most gpus_per_node",
        )
    return torch.device("cuda", local_rank)


def round_to_tf32(is_on: bool) -> None:
    """Whether products of float32 matrices and convolutions on GPUs round their inputs to TF32; by default those do."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = is_on


def use_device(device: torch.device, *, tf32: bool) -> None:
    """Make a GPU this thread's own, with TF32 if that is wanted."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
        round_to_tf32(tf32)


def check_exclusive(members: list[Member]) -> None:
    """Raise TaskError if two ranks would share a GPU."""
    taken: dict[tuple[int, str], int] = {}
    for rank, member in enumerate(members):
        if member.gpu and (other := taken.setdefault((member.node_rank, member.gpu), rank)) != rank:
            raise TaskError(
                f"ranks {other} and {rank} would share one GPU of node {member.node_rank}: {member.gpu}",
                "set tasks_per_node to at most gpus_per_node",
            )


def gpu_identity(device: torch.device) -> str:
    """The UUID of a GPU; empty for the CPU."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""


# What ranks send each other outside their process groups, from a separate thread: JSON, through rank 0's store.


_PATIENCE = timedelta(minutes=30)  # the default of a process group
_TAG = 64  # hex digits


@dataclass
class StoreExchange:
    """All ranks `begin` a talk at the same points of the program, and take the same steps in it."""

    store: Store = field(default_factory=HashStore)
    place: Place = field(default_factory=Place)
    secret: bytes | None = None
    _talks: itertools.count[int] = field(default_factory=itertools.count)

    @classmethod
    def beside(cls, store: Store, place: Place, secret: bytes | None) -> StoreExchange:
        """Over a second connection to the same store: a request that waits blocks its connection."""
        if isinstance(store, TCPStore):
            words = store.host, store.port, place.world_size
            store = TCPStore(*words, is_master=False, timeout=_PATIENCE, wait_for_workers=False)
        return cls(store, place, secret)

    def begin(self) -> Talk:
        return Talk(self, f"talk/{next(self._talks)}")


@dataclass
class Talk:
    """Related exchanges. Every rank must `end` it, so that none exits before the others have read its entries."""

    _exchange: StoreExchange
    _name: str
    _step: int = 0
    _keys: list[str] = field(default_factory=list)  # rank 0 removes them at the end

    def from_first(self, work: Callable[[], Any]) -> Any:
        """Return what `work` returns on rank 0 (a JSON value); raise its OSError on every rank."""
        key = self._next_key()
        if self._leads:
            self._tell(key, 0, tried(work))
        (content,) = self._hear(key, 1)
        return value_in(content)

    def to_first(self, work: Callable[[], Any]) -> list[Any]:
        """On rank 0, return what `work` returns on each rank; [] elsewhere. Every rank raises any rank's OSError."""
        key = self._next_key()
        self._tell(key, self._exchange.place.rank, tried(work))
        found: list[Any] = []

        def collect() -> None:
            found.extend(map(value_in, self._hear(key, self._exchange.place.world_size)))

        self.from_first(collect)
        return found

    def end(self) -> None:
        """Rank 0, which serves the store, waits until all others are here, and removes all entries."""
        key = self._next_key()
        self._tell(key, self._exchange.place.rank, b"null")
        if self._leads:
            self._hear(key, self._exchange.place.world_size)
            for used in self._keys:
                self._exchange.store.delete_key(used)

    @property
    def _leads(self) -> bool:
        return self._exchange.place.rank == 0

    def _next_key(self) -> str:
        self._step += 1
        return f"{self._name}/{self._step}"

    def _tell(self, key: str, rank: int, content: bytes) -> None:
        own = f"{key}/{rank}"
        self._exchange.store.set(own, (self._tag(own, content) + content).decode())

    def _hear(self, key: str, ranks: int) -> list[bytes]:
        """The entries of the first `ranks` ranks. Raises PermissionError for one that a stranger signed."""
        keys = [f"{key}/{rank}" for rank in range(ranks)]
        if self._leads:
            self._keys += keys
        entries = [bytes(entry) for entry in self._exchange.store.multi_get(keys)]
        for own, entry in zip(keys, entries, strict=True):
            if not hmac.compare_digest(entry[:_TAG], self._tag(own, entry[_TAG:])):
                raise PermissionError(stranger(f"as {own}").message)
        return [entry[_TAG:] for entry in entries]

    def _tag(self, key: str, content: bytes) -> bytes:
        """A run of one rank has no secret, and no other rank to exchange with."""
        return sign(self._exchange.secret or b"", key, content).encode()


# oneDNN and ideep, torch's layer above it, each cache 1,024 compiled matmuls of 0.3 MB, one per shape. If every batch
# has a new size, that is 600 MB per rank without any cache hits (torch 2.13). A step of `rounded` sizes needs about 30.
# Both read the limit at their first matmul.
_MATMULS_CACHED = "64"
_kept: list[dist.ProcessGroup | None] = []


@dataclass(frozen=True)
class Task:
    """A rank of a run. The world group is torch.distributed's default group; `node` is the group of this node's ranks.

    No group is created later: the members of these have proven that they belong to the run (`prove`).
    """

    place: Place
    device: torch.device
    node: dist.ProcessGroup
    cache: Path  # prepared data sets, shared by nodes and runs
    events: Events
    metrics: MetricsWriter
    stop: StopRequest
    clock: StepClock = field(default_factory=StepClock)
    attempt: Attempt | None = None
    # Both connect all ranks: `agreeing` is for the main thread, over gloo (None: the world group); `writing` is for the
    # thread that writes checkpoints, which may be active at any time, over the store.
    agreeing: dist.ProcessGroup | None = None
    writing: StoreExchange = field(default_factory=StoreExchange)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    restarts: bool = False  # whether the run is restarted if a rank requests it
    fetching: dist.ProcessGroup | None = None  # all ranks, for the thread that fetches rows from other nodes

    @property
    def leads_node(self) -> bool:
        return self.node.rank() == 0

    def prepared(
        self, name: str, prepare: Callable[[Path], None], whole: Callable[[Path], bool] = lambda _: True
    ) -> Path:
        """The folder `name` in the cache, filled by one rank for all nodes (see `once`)."""
        folder = self.cache / name
        if self.leads_node:
            prepared_once(folder, prepare, whole=whole)
        dist.barrier(self.node)
        return folder


@contextmanager
def joined(context: Context) -> Iterator[Task]:
    """Meet the other ranks, pick a device, and leave together. After the rendezvous, the state is "loading"."""
    job, place, attempt, events = context.job, context.place, context.attempt, context.events
    end_telemetry = start_telemetry(events.link, place)
    with suppress(OSError, ValueError):
        # A rank connects to every other in each group, and the usual limit of open files is 1,024.
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    events.state(State.RENDEZVOUS)
    wanted = job.train.device if isinstance(job.train, LoopTrain) else "auto"
    device = choose_device(wanted, job.resources.gpus_per_node or 0, torch.cuda.device_count(), place.local_rank)
    store, secret = meet(place, attempt)
    members = call_roll(store, place, gpu_identity(device), secret)
    check_exclusive(members)
    use_device(device, tf32=isinstance(job.train, LoopTrain) and job.train.tf32)
    if device.type == "cuda" and attempt is not None:
        _record_collectives(attempt)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=place.rank, world_size=place.world_size)
    node = node_group(members, place.rank)
    agreeing = None if backend == "gloo" else dist.new_group(backend="gloo")
    is_split = job.data.is_split and len(ranks_by_node(members)) > 1
    fetching = dist.new_group(backend="gloo") if is_split else None
    writing = StoreExchange.beside(store, place, secret) if attempt else StoreExchange()
    if secret is not None:
        prove(secret, None, device)
        for group in (node, agreeing, fetching):
            if group is not None:
                prove(secret, group)
    if "OMP_NUM_THREADS" not in os.environ:  # by default torch uses all cores of the node in every rank
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // node.size()))
    for variable in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(variable, _MATMULS_CACHED)
    metrics, cache = MetricsWriter(attempt, place.rank), _cache_folder(attempt)
    os.environ.setdefault("NUMBA_CACHE_DIR", str(cache / "numba"))  # the default, next to the code, may be read-only
    events.state(State.LOADING)
    settings = attempt, agreeing, writing, job.checkpoint, may_restart(job), fetching
    try:
        yield Task(place, device, node, cache, events, metrics, context.stop, StepClock(device), *settings)
    finally:
        end_telemetry()
    leave(node, agreeing, fetching)  # not after an error: NCCL would wait for ranks that may never arrive


def leave(*groups: dist.ProcessGroup | None) -> None:
    """Destroy the world group and `groups`.

    Before torch 2.8, destroying a gloo group waits for its threads, which may in turn wait for the GIL that it holds
    (pytorch/pytorch#154976); so the groups are kept until the process ends.
    """
    if torch.__version__ < "2.8":  # compares versions, not text
        _kept.extend([dist.group.WORLD, *groups])
    dist.destroy_process_group()


def may_restart(job: Job, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the queue may start the run once more."""
    count = environment.get("CLUSTERCTL_STARTS", "0")
    return int(count if count.isdigit() else 0) < job.most_starts


def _record_collectives(attempt: Attempt) -> None:
    """Have NCCL's flight recorder keep the latest collectives, and dump them if one times out.

    Later releases call its size TORCH_FR_BUFFER_SIZE. Unverified for lack of a machine with several GPUs.
    """
    attempt.collectives.mkdir(exist_ok=True)
    os.environ.setdefault("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000")
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
    os.environ.setdefault("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", str(attempt.collectives / "rank_"))
    os.environ.setdefault("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", str(attempt.collectives / "ask_"))


def _cache_folder(attempt: Attempt | None) -> Path:
    if attempt is not None:
        return RunDir(attempt.path.parent.parent).data_cache
    folder = os.environ.get("CLUSTERCTL_DATA_CACHE")
    return Path(folder) if folder else Path.home() / ".cache" / "clusterctl" / "data"
