"""Writes an index that git itself would refuse to write: with any names."""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

_OBJECT = b"blob 9\0print(1)\n"


def make_repository(folder: Path) -> None:
    """Like `git init`, in less time."""
    for name in ("objects", "refs"):
        (folder / ".git" / name).mkdir(parents=True)
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")


def write_index(repository: Path, names: Sequence[str], submodules: Mapping[str, str] | None = None) -> None:
    """Replace the index of `repository`: files with these names, all with one content, and commits of submodules."""
    blob = hashlib.sha1(_OBJECT).hexdigest()
    place = repository / ".git" / "objects" / blob[:2] / blob[2:]
    if not place.exists():
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(zlib.compress(_OBJECT))
    entries = {os.fsencode(name): (0o100644, blob) for name in names}
    entries |= {os.fsencode(name): (0o160000, commit) for name, commit in (submodules or {}).items()}
    content = b"DIRC" + struct.pack(">II", 2, len(entries))
    for name, (mode, digest) in sorted(entries.items()):
        entry = struct.pack(">10I", 0, 0, 0, 0, 0, 0, mode, 0, 0, 0) + bytes.fromhex(digest)
        entry += struct.pack(">H", min(len(name), 0xFFF)) + name
        content += entry + b"\0" * (8 - len(entry) % 8)
    (repository / ".git" / "index").write_bytes(content + hashlib.sha1(content).digest())
