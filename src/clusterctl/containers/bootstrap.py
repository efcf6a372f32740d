"""A base image from Debian packages, where no registry of images can be reached: BASE=bootstrap."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.containers.engine import follow
from clusterctl.errors import ImageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.containers.engine import Engine

BOOTSTRAP = "bootstrap"
_SUITES = {"3.11": "bookworm", "3.13": "trixie"}  # Python minor version -> the Debian release that has it
_PACKAGES = ("ca-certificates", "python3")
_LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
_DOCKERFILE = 'FROM scratch\nADD root.tar /\nENV LANG=C.UTF-8\nCMD ["python3"]\n'


def bootstrapped(engine: Engine, python: str, say: Callable[[str], None], *, fresh: bool = False) -> str:
    """The reference of a base image with Debian's `python`, made if `engine` has none yet, or `fresh`.

    Raises ImageError where mmdebstrap is missing or fails, or no Debian release has that Python.
    """
    suite = _SUITES.get(python)
    if suite is None:
        known = " or ".join(_SUITES)
        raise ImageError(f"no Debian release has Python {python}", f"run clusterctl with Python {known}, or give BASE=")
    reference = f"localhost/clusterctl-base:{suite}"
    if fresh or engine.describe(reference) is None:
        if shutil.which("mmdebstrap") is None:
            raise ImageError("no mmdebstrap on PATH to make a base image with", "apt install mmdebstrap")
        with tempfile.TemporaryDirectory(prefix="clusterctl-base-") as folder:
            say(f"mmdebstrap {suite}: Debian with Python {python}")
            _debian(Path(folder, "root.tar"), suite, say)
            Path(folder, "Dockerfile").write_text(_DOCKERFILE)
            engine.build(Path(folder), reference, {}, say)
    return reference


def _debian(target: Path, suite: str, say: Callable[[str], None]) -> None:
    command = ["mmdebstrap", "--variant=minbase", f"--include={','.join(_PACKAGES)}"]
    command += ['--aptopt=Acquire::Languages "none"']
    command += [f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT]
    code, lines = follow([*command, suite, str(target)], say)
    if code != 0:
        errors = [line for line in lines if line.startswith("E:")] or lines[-1:]
        message = errors[0] if errors else "it said nothing"
        raise ImageError(f"mmdebstrap failed: {message}", "is there a network and room here? else give BASE=IMAGE")
