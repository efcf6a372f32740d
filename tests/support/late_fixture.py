"""A file system that shows other nodes' changes late, and a node whose clock is an hour off."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.late_mount import Settings
from support.scenario import wait_until

HERE = Path(__file__).parent
HOUR = 3600


def mountable() -> str:
    """Why the file system cannot be mounted here; empty if it can."""
    if os.geteuid() != 0:
        return "only root can mount a file system"
    return "" if os.access("/dev/fuse", os.R_OK | os.W_OK) else "no /dev/fuse: the kernel has no FUSE"


@contextmanager
def mounted(settings: Settings) -> Iterator[subprocess.Popen[bytes]]:
    """Mount `settings.backing` at `settings.mount` within the block, and yield the server."""
    if why := mountable():
        pytest.skip(why)
    for folder in (settings.backing, settings.mount):
        Path(folder).mkdir(exist_ok=True)
    program = [sys.executable, "-I", "-S", str(HERE / "late_mount.py"), json.dumps(settings._asdict())]
    server = subprocess.Popen(program)
    try:
        wait_until(lambda: os.path.ismount(settings.mount) or server.poll() is not None, 10, "the mount")
        assert server.poll() is None
        yield server
    finally:
        server.terminate()
        server.wait()


def faults_of(settings: Settings) -> dict[str, int]:
    """The number of faults of each kind; call it after the file system is unmounted."""
    return dict(json.loads(Path(settings.record).read_text()))


@pytest.fixture(scope="session")
def clock_shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("clock") / "skewed_clock.so"
    words = ["cc", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", library, HERE / "skewed_clock.c", "-ldl"]
    subprocess.run(words, check=True)
    return library


def skewed(shim: Path, node: str, seconds: int) -> dict[str, str]:
    """Variables that set the clock of `node` off."""
    return {"LD_PRELOAD": str(shim), "SKEWED_NODE": node, "SKEW_SECONDS": str(seconds)}
