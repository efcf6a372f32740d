"""The secret of an attempt: how its ranks, and the writers of their nodes, know each other.

The batch script writes it into the attempt's private folder, which only this user can read, before any task begins.
"""

from __future__ import annotations

import hmac
import os
from typing import TYPE_CHECKING

from clusterctl.errors import Cause, TaskError
from clusterctl.runs.files import read_whole, with_retries

if TYPE_CHECKING:
    from clusterctl.runs.layout import Attempt

_BYTES = 32


def read(attempt: Attempt) -> bytes:
    """The secret of the attempt. Raises TaskError for a file that is not this user's alone, and where there is none."""
    try:
        status = with_retries(attempt.secret.stat)
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise TaskError(f"others can read it: {attempt.secret}", "see docs/security.md", Cause.LAUNCH)
        found = bytes.fromhex(read_whole(attempt.secret).decode())
        if len(found) != _BYTES:  # a full disk takes half of it, or nothing: that anybody would know
            raise ValueError(f"it has {len(found)} bytes instead of {_BYTES}")
        return found
    except (OSError, ValueError) as error:
        raise TaskError(f"cannot read {attempt.secret}: {error}", "submit the run again", Cause.LAUNCH) from error


def sign(secret: bytes, purpose: str, content: bytes) -> str:
    """The tag, in hex, that only a holder of `secret` can make; of another `purpose` it is another one."""
    return hmac.digest(secret, purpose.encode() + b"\0" + content, "sha256").hex()
