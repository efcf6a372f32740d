"""Every benchmark says how it is called, so its imports and options are those of today."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
# Programs that a benchmark starts itself, with arguments of its own.
STARTED = {"command_cost.py", "gpu_correctness.py", "rank_worker.py", "taobao_rival.py"}
PROGRAMS = sorted(path for path in FOLDER.glob("*.py") if '__name__ == "__main__"' in path.read_text())


@pytest.mark.long
@pytest.mark.parametrize("path", [path for path in PROGRAMS if path.name not in STARTED], ids=lambda path: path.stem)
def test_a_benchmark_explains_itself(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, path, "--help"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    described = ast.get_docstring(ast.parse(path.read_text())) or ""
    assert described.splitlines()[0] in done.stdout
