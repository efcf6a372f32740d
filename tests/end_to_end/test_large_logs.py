"""Logs too large to hold in memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.stamp import stamp

# Not ru_maxrss: it starts from the parent's value, and pytest may have torch in memory.
PROGRAM = """
import pathlib, re, sys
from clusterctl.launcher import cli
code = cli.run(sys.argv[1:])
print(re.search(r"VmHWM:\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1], file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.long
def test_large_logs_and_a_sparse_one_are_merged_within_100_megabytes(
    fabricate: Callable[..., RunDir], tmp_path: Path
) -> None:
    run = fabricate(files={"finished.json": {"time": 5}})
    folder = run.attempt(0).log(0).parent
    folder.mkdir(parents=True)
    ranks, lines, words = 64, 1000, "x" * 2000  # 128 MB
    for rank in range(ranks):
        run.attempt(0).log(rank).write_text("".join(f"{stamp(100 + n)}{rank} {words}\n" for n in range(lines)))
    with run.attempt(0).log(ranks).open("w") as file:
        file.write(f"{stamp(1)}begun\n")
        file.seek(10 * 2**30)
        file.write(f"\n{stamp(5000)}over\n")
    environment = {**os.environ, "CLUSTERCTL_RUNS": str(run.path.parent), "XDG_STATE_HOME": str(tmp_path / "state")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "logs", run.id, "--cluster", "local"],
        env=environment,
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    shown = done.stdout.splitlines()
    assert len(shown) == ranks * lines + 2 + 1  # the hole is shown as one empty line
    assert (shown[0], shown[-1]) == (b"r64 begun", b"r64 over")
    assert int(done.stderr.split()[-1]) < 100 * 1024, "kB"
