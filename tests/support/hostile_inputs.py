"""What others may put in the way of a submission: exported shell functions and options, an index that git refuses."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import struct
import subprocess
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote

from clusterctl.launcher.submission.script import part


def hostile_shell(called: Path, *parts: str) -> dict[str, str]:
    """Variables that shadow every command in these parts of a script; each call of a shadow is logged in `called`."""
    words = {word for name in parts for word in re.findall(r"[a-z]+|\[|:", part(name))}
    builtins = subprocess.run(["bash", "-c", "compgen -b"], capture_output=True, text=True, check=True).stdout.split()
    commands = {word for word in words if word in builtins or shutil.which(word)} - {"builtin"}
    shadow = f'() {{ /bin/echo "${{FUNCNAME[0]}}" >>{quote(str(called))}; /bin/false; }}'
    return {
        **{f"BASH_FUNC_{command}%%": shadow for command in sorted({*commands, "srun", "scontrol"})},
        "SHELLOPTS": "errexit:noclobber:noglob:nounset:pipefail:posix",
        "BASHOPTS": "failglob",
        "GLOBIGNORE": "*",
    }


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
