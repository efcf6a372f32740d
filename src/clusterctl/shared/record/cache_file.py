"""Cache files in JSON for data that can be recomputed: used only if intact, owned by this user and of this format.

No lock: files are replaced atomically, and the later of two processes wins.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterctl.shared.errors import ConfigError
from clusterctl.shared.record.files import read_regular, write_text
from clusterctl.shared.record.ownership import make_private, require_own

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_MOST_BYTES = 2**28


class CacheContent(NamedTuple):
    """The `content`, and `lines` that the caller parses only when needed."""

    content: Any
    lines: list[str]


def read_cache(path: Path, form: Any) -> CacheContent | None:
    """Read what `write_cache` wrote; None if it is missing, damaged, another user's or of another `form`."""
    try:
        require_own(path.parent, "")
        digest, _, body = read_regular(path, lambda file: file.read(_MOST_BYTES)).partition(b"\n")
    except (OSError, ConfigError):
        return None
    if digest != _digest(body):
        return None
    first, *lines = body.decode(errors="surrogateescape").split("\n")
    found, content = json.loads(first)
    return CacheContent(content, lines) if found == form else None


def write_cache(path: Path, form: Any, content: Any, lines: Iterable[str] = ()) -> None:
    """Cache `content` for the next process; `form` is the version of its format. Errors are ignored."""
    body = "\n".join([json.dumps([form, content]), *lines])
    with suppress(OSError, ConfigError):
        make_private(path.parent)
        write_text(path, f"{_digest(body.encode(errors='surrogateescape')).decode()}\n{body}")


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()
