"""The secret of an attempt, which authenticates its ranks and node writers to each other.

The batch script writes it to the attempt's private folder, readable only by this user, before any task starts.
"""

from __future__ import annotations

import hmac
import os
from typing import TYPE_CHECKING

from clusterctl.shared.errors import Cause, TaskError
from clusterctl.shared.record.files import read_whole, with_retries

if TYPE_CHECKING:
    from clusterctl.shared.record.layout import Attempt

_BYTES = 32


def read(attempt: Attempt) -> bytes:
    """The secret of the attempt. Raises TaskError if it is missing, or if other users can access it."""
    try:
        status = with_retries(attempt.secret.stat)
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise TaskError(f"accessible to other users: {attempt.secret}", "see docs/security.md", Cause.LAUNCH)
        found = bytes.fromhex(read_whole(attempt.secret).decode())
        if len(found) != _BYTES:  # truncated on a full disk, and therefore easy to guess
            raise ValueError(f"{len(found)} bytes instead of {_BYTES}")
        return found
    except (OSError, ValueError) as error:
        raise TaskError(f"cannot read {attempt.secret}: {error}", "submit the run again", Cause.LAUNCH) from error


def sign(secret: bytes, purpose: str, content: bytes) -> str:
    """A tag, in hex, that only a holder of `secret` can create; it differs for each `purpose`."""
    return hmac.digest(secret, purpose.encode() + b"\0" + content, "sha256").hex()
