"""A real Slurm for tests: one sandbox for the session, short-lived ones for tests that break them, and pyxis in one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.images import mounts_of_this_python

import clusterctl
from clusterctl.launcher.sandbox import lifecycle, marked_processes
from clusterctl.launcher.sandbox.description import SandboxRequest
from clusterctl.launcher.sandbox.lifecycle import check_packages
from clusterctl.shared.errors import SlurmError
from clusterctl.shared.spec.values import GpuCount


@dataclass(frozen=True)
class RunningSandbox:
    """A sandbox in its own state folder; with `environment`, clusterctl and Slurm's commands find it."""

    home: Path

    @property
    def cluster(self) -> str:
        return "sandbox"

    @property
    def folder(self) -> Path:
        return self.home / "clusterctl" / "sandbox"

    @property
    def environment(self) -> dict[str, str]:
        steering = ("CLUSTERCTL_", "SLURM_", "SBATCH_", "SRUN_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(steering)}
        slurm_conf = str(self.folder / "etc" / "slurm.conf")
        return kept | {"XDG_STATE_HOME": str(self.home), "SLURM_CONF": slurm_conf, "NO_COLOR": "1"}

    def call(self, *argv: str, timeout: float = 60) -> str:
        """Run a Slurm command there and return its output."""
        done = self.try_to(*argv, timeout=timeout)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def try_to(self, *argv: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv, env=self.environment, capture_output=True, text=True, timeout=timeout, check=False, cwd=self.home
        )

    @contextmanager
    def without_plugins(self, node: str) -> Iterator[None]:
        """Within the block, steps on `node` find an empty plugstack.conf; its mounts are its own if root started it."""
        found = marked_processes.find(self.folder)
        (pid,) = (one.pid for one in found if (one.part, one.command) == (node, "slurmd"))
        plugins = self.folder / "etc" / "plugstack.conf"
        enter = ["nsenter", f"--target={pid}", "--mount", "--pid"]
        subprocess.run([*enter, "mount", "--bind", "/dev/null", plugins], check=True)
        try:
            yield
        finally:
            subprocess.run([*enter, "umount", plugins], check=True)

    @contextmanager
    def paused(self, part: str) -> Iterator[None]:
        """Stop a daemon within the block, so that it does not answer."""
        found = [process for process in marked_processes.find(self.folder) if process.part == part]
        for process in found:
            os.kill(process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for process in found:
                os.kill(process.pid, signal.SIGCONT)

    def clusterctl(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.try_to(sys.executable, "-m", "clusterctl", *words)


@pytest.fixture(scope="session")
def sandbox() -> Iterator[RunningSandbox]:
    """Four nodes with four a100 GPUs each, up for the whole session. Skipped only if no Slurm can run here."""
    with _home() as home:
        running = RunningSandbox(home)
        lifecycle.up(running.folder, SandboxRequest(nodes=4, gpus_per_node=GpuCount("a100:4")))
        try:
            yield running
        finally:
            lifecycle.down(running.folder)


@pytest.fixture
def sandbox_home() -> Iterator[RunningSandbox]:
    """A state folder for the test's own sandbox, which the test starts; it is stopped afterwards."""
    with sandbox_in_a_folder_of_its_own() as room:
        yield room


@contextmanager
def sandbox_in_a_folder_of_its_own() -> Iterator[RunningSandbox]:
    """The folder of a sandbox that the block may start; it is stopped afterwards."""
    with _home() as home:
        room = RunningSandbox(home)
        try:
            yield room
        finally:
            lifecycle.down(room.folder)


@contextmanager
def _home() -> Iterator[Path]:
    """A state folder with a short path, as Slurm's sockets need it."""
    try:
        if os.geteuid() != 0:
            raise SlurmError("only root can make nodes")
        check_packages(SandboxRequest(accounting=True))
    except SlurmError as error:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no real Slurm: {error.message}")
    home = Path(tempfile.mkdtemp(prefix="sandbox-", dir="/tmp"))
    try:
        yield home
    finally:
        shutil.rmtree(home)


# pyxis: a plugin with its options, which runs each task in its image with clusterctl's runner.

_PLUGIN = Path(__file__).parent / "spank" / "pyxis.c"
_ENROOT = """#!/bin/sh
cd "{store}/$(hostname)" 2>/dev/null || exit 0
case $1 in
  list) ls ;;
  remove) rm -r "$3" ;;
esac
"""


@dataclass(frozen=True)
class Pyxis:
    """A fake pyxis. `records` has the options of each task; `programs` has a fake enroot, to put on PATH."""

    records: Path
    store: Path
    programs: Path

    def bring(self, trouble: str) -> Path:
        """Cause trouble (`slow`, `full`, `keep`: see pyxis.c) until the returned file is removed."""
        path = self.store / trouble
        path.touch()
        return path

    @property
    def containers(self) -> set[str]:
        """The names of the containers on all nodes."""
        return {path.name for path in self.store.glob("*/pyxis_*")}


@pytest.fixture(scope="session")
def pyxis_plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("spank") / "pyxis.so"
    subprocess.run(["gcc", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", library, _PLUGIN], check=True)
    return library


@pytest.fixture
def pyxis(sandbox: RunningSandbox, pyxis_plugin: Path, tmp_path: Path) -> Iterator[Pyxis]:
    """The sandbox has pyxis during the test."""
    found = Pyxis(tmp_path / "records", tmp_path / "store", tmp_path / "programs")
    for folder in (found.records, found.store, found.programs):
        folder.mkdir()
    enroot = found.programs / "enroot"
    enroot.write_text(_ENROOT.format(store=found.store))
    enroot.chmod(0o755)
    settings = {
        "record": found.records,
        "store": found.store,
        "python": sys.executable,
        "runner": Path(clusterctl.__file__).parent / "launcher" / "containers",
        "mounts": ",".join(mounts_of_this_python()),
    }
    words = " ".join(f"{name}={value}" for name, value in settings.items())
    plugins = sandbox.folder / "etc" / "plugstack.conf"
    plugins.write_text(f"required {pyxis_plugin} {words}\n")
    yield found
    plugins.write_text("")
