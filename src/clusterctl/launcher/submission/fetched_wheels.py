"""Wheels for a login node without internet: the machine where the command was typed fetches and sends them.

That machine reads its own lock file, and learns from the login node only for which Python and platform. It starts pip
alone, which runs no code of the packages, since wheels are only downloaded.
"""

from __future__ import annotations

import re
import struct
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.launcher.config.locks import lock_text, read_pins, require_wheels
from clusterctl.launcher.containers.wheels import platforms
from clusterctl.launcher.submission.installers import has_own_pip_index, installer_variables, pip_of, run_installer
from clusterctl.launcher.submission.sent_code import Unpacked
from clusterctl.shared.errors import ConfigError
from clusterctl.shared.record.files import open_regular, write_text
from clusterctl.shared.record.ownership import make_new

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.launcher.config.environment import Environment
    from clusterctl.launcher.config.progress import ProgressListener
    from clusterctl.launcher.config.sent import ClientData

_HEAD = struct.Struct(">HQ")  # before each file: the lengths of its name and of its content
_PIECE = 2**18
_WHEEL = re.compile(r"[A-Za-z0-9_.!+-]+\.whl")
_MOST_TEXT = 200


def receive(environment: Environment, client: ClientData, folder: Path, progress: ProgressListener) -> None:
    """Fill the new `folder` with the wheels of `environment`, from the machine where the command was typed."""
    assert environment.facts
    progress.begin("receiving the wheels from the machine where the command was typed")
    facts = {"libc": environment.facts.libc, "markers": dict(environment.facts.markers)}
    stream = Unpacked(client.ask({"wheels": str(environment.lock), **facts}))
    make_new(folder)
    while head := b"".join(stream.read(_HEAD.size)):
        length, size = _HEAD.unpack(head)
        name = b"".join(stream.read(length)).decode(errors="replace")
        if not name:
            return
        if not _WHEEL.fullmatch(name):
            raise ConfigError(f"environment: not a wheel: {name!r}", "submit again")
        with (folder / name).open("xb") as file:
            for piece in stream.read(size):
                file.write(piece)
                progress.advance(len(piece))


def fetched(lock: Path, question: dict[str, Any], progress: ProgressListener) -> Iterator[bytes]:
    """The pieces of the answer to `receive`: the wheels of this machine's file `lock`. Raises ConfigError."""
    markers, libc = question.get("markers"), re.fullmatch(r"glibc 2\.([0-9]{1,3})", str(question.get("libc")))
    texts = [*markers.items()] if isinstance(markers, dict) else []
    if not all(isinstance(text, str) and len(text) <= _MOST_TEXT for pair in texts for text in pair):
        raise ConfigError("environment: the login node described its Python wrongly", "submit again")
    known = dict(texts)
    python, machine = str(known.get("python_full_version")), str(known.get("platform_machine"))
    if not libc or not re.fullmatch(r"3\.[0-9]{1,3}(\.[0-9]+)?[a-z0-9+]*", python) or not re.fullmatch(r"\w+", machine):
        raise ConfigError("environment: cannot fetch wheels for that login node", "only for Python 3 with glibc")
    wanted = read_pins(lock.name, lock_text(lock), known)
    require_wheels(wanted)
    packer = zlib.compressobj(0)
    with tempfile.TemporaryDirectory(prefix="clusterctl-wheels-") as place:
        folder, requirements = Path(place, "wheels"), Path(place, "requirements.txt")
        make_new(folder)
        write_text(requirements, wanted.requirements)
        variables, pip = installer_variables(), pip_of()
        if wanted.index and not has_own_pip_index(pip, variables):
            variables["PIP_INDEX_URL"] = wanted.index
        progress.begin(f"fetching the wheels of {wanted.file} for Python {python}, glibc 2.{libc[1]} on {machine}")
        words = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--implementation=cp", "--no-input"]
        version = ".".join(python.split(".")[:2])
        words += [f"--python-version={version}", *(f"--platform={one}" for one in platforms(machine, int(libc[1])))]
        run_installer(
            "pip", [*pip, *words, "--dest", str(folder), "-r", str(requirements)], progress, variables, wanted
        )
        for path in sorted(folder.iterdir()):
            with open_regular(path) as file:
                yield packer.compress(_HEAD.pack(len(path.name.encode()), path.stat().st_size) + path.name.encode())
                while piece := file.read(_PIECE):
                    yield packer.compress(piece)
    yield packer.compress(_HEAD.pack(0, 0)) + packer.flush()
