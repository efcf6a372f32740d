"""What ranks send each other beside tensors: JSON, as bytes in tensors.

torch.distributed's own collectives for objects unpickle what arrives, and so run whatever a peer sends.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist

from clusterctl.errors import reason

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST_BYTES = 1 << 28


def from_first(work: Callable[[], Any], group: dist.ProcessGroup | None) -> Any:
    """What `work` returns on rank 0, a JSON value; an OSError of its is raised on every rank. A collective."""
    own = _tried(work) if dist.get_rank(group) == 0 else b""
    length = torch.tensor([len(own)])
    dist.broadcast(length, 0, group=group)
    content = _padded(own, _checked(length.tolist())[0])
    dist.broadcast(content, 0, group=group)
    return _received(content, int(length))


def from_all(work: Callable[[], Any], group: dist.ProcessGroup | None) -> list[Any]:
    """What `work` returns on each rank, JSON values; an OSError of one is raised on every rank. A collective."""
    own, ranks = _tried(work), dist.get_world_size(group)
    lengths = [torch.empty(1, dtype=torch.int64) for _ in range(ranks)]
    dist.all_gather(lengths, torch.tensor([len(own)]), group=group)
    sizes = _checked([int(length) for length in lengths])
    contents = [torch.empty(max(sizes), dtype=torch.uint8) for _ in range(ranks)]
    dist.all_gather(contents, _padded(own, max(sizes)), group=group)
    return [_received(content, size) for content, size in zip(contents, sizes, strict=True)]


def _tried(work: Callable[[], Any]) -> bytes:
    """What `work` returns, or its failure as a value: the other ranks are waiting for it."""
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
    record = json.loads(content[:size].numpy().tobytes())
    if "failure" in record:
        raise OSError(str(record["failure"]))
    return record["value"]
