"""The CPU image, built for real with and without torch, and its contents."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from clusterctl.launcher.containers.contents import read_record


def listed(sqsh: Path) -> dict[str, str]:
    """Path -> mode for everything in `sqsh`."""
    done = subprocess.run(["unsquashfs", "-d", "", "-lls", sqsh], capture_output=True, text=True, check=True)
    found = {}
    for line in done.stdout.splitlines():
        mode, _, rest = line.partition(" ")
        found["/" + rest.partition(" /")[2].partition(" -> ")[0]] = mode
    return found


def read(sqsh: Path, path: str) -> str:
    return subprocess.run(["unsquashfs", "-cat", sqsh, path], capture_output=True, text=True, check=True).stdout


pytestmark = pytest.mark.long  # end_to_end/test_in_a_built_image builds one

BASE = {"clusterctl", "submitit"}


@pytest.mark.parametrize(
    ("kind", "packages"), [("bare", BASE), ("cpu", BASE | {"torch", "torch_geometric", "numpy", "scipy"})]
)
def test_the_image_and_its_record_have_all_requirements(
    request: pytest.FixtureRequest, kind: str, packages: set[str]
) -> None:
    image = request.getfixturevalue(f"{kind}_image")
    record = read_record(image)
    assert record is not None
    assert record.python == "3.11"
    assert packages <= set(record.versions)
    assert record.size == image.stat().st_size
    paths = listed(image)
    library = "/opt/venv/lib/python3.11/site-packages"
    assert {"/opt/venv/bin/python", f"{library}/clusterctl/__main__.py"} <= set(paths)
    for package in packages:
        assert f"{library}/{package}/__pycache__/__init__.cpython-311.pyc" in paths
    assert not [path for path, mode in paths.items() if path.startswith("/build") or mode[0] in "bc"]


def test_enroot_finds_the_environment_and_the_shell_sets_path(bare_image: Path) -> None:
    assert "PATH=/opt/venv/bin:" in read(bare_image, "etc/environment")
    assert read(bare_image, "etc/profile.d/zz-venv.sh") == "PATH=/opt/venv/bin:$PATH\n"
    assert read(bare_image, "etc/rc").endswith("exec python3\nfi\n")
    assert "NVIDIA_VISIBLE_DEVICES" not in read(bare_image, "etc/environment")
