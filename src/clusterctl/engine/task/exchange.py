"""Objects that ranks send each other: JSON, as bytes in tensors.

torch.distributed's object collectives unpickle what arrives, and so would run any code that a peer sends.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist

from clusterctl.shared.errors import reason

if TYPE_CHECKING:
    from collections.abc import Callable

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
