"""Proving that a rank knows the attempt's secret (`record.secret`).

Anyone who reaches rank 0's port can join: TCPStore does not authenticate, and gloo and NCCL send plain text. So every
group of ranks proves that it knows the secret before anything else is sent (docs/security.md).
"""

from __future__ import annotations

import hmac
import os

import torch
from torch import distributed as dist

from clusterctl.shared.errors import Cause, TaskError
from clusterctl.shared.record.secret import sign

_BYTES = 32


def prove(secret: bytes, group: dist.ProcessGroup | None = None, device: torch.device | None = None) -> None:
    """Verify that every rank of `group` (default: all) knows `secret`. A collective: two rounds of 32 bytes per rank.

    Each tag covers its rank and a fresh nonce of every rank, so no tag can be replayed or used by another rank.
    `device` is where the group's tensors are. Raises TaskError on every rank that receives a wrong tag.
    """
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    if ranks == 1:
        return
    nonces = b"".join(_gathered(os.urandom(_BYTES), group, device))
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
