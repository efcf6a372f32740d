"""Fetch a file over the network; what has arrived is kept, and the next try goes on from there."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

from clusterctl.errors import TaskError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_BYTES_AT_ONCE = 1 << 20
_TIMEOUT = 60.0  # seconds without a byte
_PARTIAL, _BEYOND_THE_END = 206, 416


def fetch(url: str, target: Path, progress: Callable[[int, int], None] = lambda *_: None) -> None:
    """The content of `url` as `target`, which appears when it is whole. Raises TaskError.

    Until then it grows in a file beside it. A server that cannot begin in the middle sends everything again.
    """
    part = target.with_name(f"{target.name}.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
            have = have if answer.status == _PARTIAL else 0
            length = answer.headers["Content-Length"]
            total = have + int(length) if length else 0
            with part.open("ab" if have else "wb") as file:
                while block := answer.read(_BYTES_AT_ONCE):
                    file.write(block)
                    have += len(block)
                    progress(have, total)
    except urllib.error.HTTPError as error:
        if error.code != _BEYOND_THE_END:  # else the last byte had arrived before the break
            raise _failure(url, f"{error.code} {error.reason}") from None
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        raise _failure(url, str(getattr(error, "reason", error))) from None
    else:
        if have < total:
            raise TaskError(
                f"{url} broke off after {have} of {total} bytes", "type the same again: it goes on from there"
            )
    part.replace(target)


def _failure(url: str, reason: str) -> TaskError:
    return TaskError(
        f"cannot download {url}: {reason}",
        "no network here? fetch it where there is one and unpack it into ROOT/raw, or use: clusterctl data generate",
    )
