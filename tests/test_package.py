"""What a user without a checkout gets."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def test_the_fixed_parts_of_scripts_lie_beside_the_code_that_the_wheel_takes_whole() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert build["packages"] == ["src/clusterctl"]
    assert "exclude" not in build
    for name in ("batch.sh", "warm.sh", "hold.sh", "attach.sh"):
        assert (ROOT / "src" / "clusterctl" / "launch" / name).is_file()
        assert f'part("{name}")' in "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))


@pytest.mark.long  # builds a wheel, for which pip fetches the build system
def test_the_wheel_brings_jobs_clusters_and_data(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", tmp_path, ROOT], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", tmp_path / "site", wheel], check=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "XDG_STATE_HOME": str(tmp_path / "state")}
    environment["CLUSTERCTL_RUNS"] = str(tmp_path / "runs")

    def call(*words: str) -> str:
        command = [sys.executable, "-m", "clusterctl", *words]
        return subprocess.run(
            command, cwd=elsewhere, env=environment, stdout=subprocess.PIPE, text=True, check=True
        ).stdout

    assert str(tmp_path / "site") in call("config", "list")
    assert "    Time limit of each attempt" in call("config", "keys")
    run = call("submit", "cora", "--cluster", "local", "--wait", "--nodes", "1", "--set", "train.epochs=1").strip()
    assert "finished" in call("status", run)
