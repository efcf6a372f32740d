"""The GPU recipe on a base image that, like NVIDIA's, already has torch: it is kept and importable."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.images import PYTHON, Quiet

from clusterctl.launcher.config import cache_folder
from clusterctl.launcher.containers.build import BuildRequest, bootstrapped, build
from clusterctl.launcher.containers.engine import Engine

pytestmark = pytest.mark.long

BASE = "localhost/clusterctl-test-own-torch:latest"
DOCKERFILE = f"""ARG BASE
FROM ${{BASE}}
COPY torch /usr/local/lib/python{PYTHON}/dist-packages/
ENV OF_THE_BASE=kept
"""


def test_a_base_images_own_torch_is_kept_and_importable(image_engine: Engine, tmp_path: Path) -> None:
    context = tmp_path / "context"
    info = context / "torch" / "torch-9.9.0a0+site.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.9.0a0+site\n")
    (context / "torch" / "torch.py").write_text("__version__ = '9.9.0a0+site'\n")
    (context / "Dockerfile").write_text(DOCKERFILE)
    image_engine.build(context, BASE, {"BASE": bootstrapped(image_engine, PYTHON, print)}, print)
    request = BuildRequest(name="own-torch", kind="gpu", base=BASE, extras=("train",))
    record = build(request, image_engine, tmp_path / "images", cache_folder(), PYTHON, Quiet()).record
    assert record is not None
    assert record.versions["torch"] == "9.9.0a0+site"
    assert record.labels["clusterctl.torch"] == "9.9.0a0+site"
    assert {"torch_geometric", "numpy", "submitit", "clusterctl"} <= set(record.versions)
    assert record.environment["OF_THE_BASE"] == "kept"
    sqsh = tmp_path / "images" / "own-torch.sqsh"
    paths = subprocess.run(["unsquashfs", "-d", "", "-l", sqsh], capture_output=True, text=True, check=True).stdout
    assert f"/opt/venv/lib/python{PYTHON}/site-packages/torch_geometric/__init__.py\n" in paths
    assert f"/opt/venv/lib/python{PYTHON}/site-packages/torch/" not in paths
    tag = "localhost/own-torch:latest"
    done = image_engine.run(
        tag, "/opt/venv/bin/python", "-c", "import clusterctl, numpy, torch; print(torch.__version__)"
    )
    assert done.stdout.strip().endswith("9.9.0a0+site"), done.stderr
