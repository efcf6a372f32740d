"""pyxis for the sandbox: a plugin with its options, which runs each task in its image by clusterctl's own runner."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.sandbox_fixture import RunningSandbox

import clusterctl

SOURCE = Path(__file__).parent / "spank" / "pyxis.c"


@pytest.fixture(scope="session")
def pyxis_plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("spank") / "pyxis.so"
    subprocess.run(["gcc", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", library, SOURCE], check=True)
    return library


@pytest.fixture
def pyxis_records(sandbox: RunningSandbox, pyxis_plugin: Path, tmp_path: Path) -> Iterator[Path]:
    """The sandbox has pyxis for as long as the test lasts; the folder of what each task got."""
    folder = tmp_path / "records"
    folder.mkdir()
    plugins = sandbox.folder / "etc" / "plugstack.conf"
    runner = Path(clusterctl.__file__).parent / "containers"
    plugins.write_text(f"required {pyxis_plugin} record={folder} python={sys.executable} runner={runner}\n")
    yield folder
    plugins.write_text("")
