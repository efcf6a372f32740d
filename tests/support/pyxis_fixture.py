"""pyxis for the sandbox: a plugin with its options, which runs each task in its image with clusterctl's runner."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.images import mounts_of_this_python
from support.sandbox_fixture import RunningSandbox

import clusterctl

SOURCE = Path(__file__).parent / "spank" / "pyxis.c"
_ENROOT = """#!/bin/sh
cd "{store}/$(hostname)" 2>/dev/null || exit 0
case $1 in
  list) ls ;;
  remove) rm -r "$3" ;;
esac
"""


@dataclass(frozen=True)
class Pyxis:
    """The stand-in. `records` has the options of each task, `programs` an enroot to put on PATH."""

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
    subprocess.run(["gcc", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", library, SOURCE], check=True)
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
