"""`clean` never removes what unfinished runs need; ended runs are exported, totalled and removed."""

from __future__ import annotations

import json
import tarfile
from typing import Any

import pytest
from support.scenario import Stage, wait_until

THROUGH_A_HOST = True

JOB = """
workload = "command"
argv = ["python", "train.py"]
[resources]
nodes = 2
time = "10m"
"""
PROGRAM = """
import time
from pathlib import Path
from clusterctl import runs
runs.log(step=1, loss=0.5)
while not Path("go").exists():
    time.sleep(0.05)
"""


@pytest.mark.long
def test_clean_keeps_unfinished_runs_and_their_dependencies(stage: Stage) -> None:
    def typed(*words: str) -> dict[str, Any]:
        done = stage.call(*words, "--cluster", stage.cluster, "-o", "json")
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    def clean(*words: str) -> tuple[set[str], set[str]]:
        found = typed("clean", "--older-than", "0d", *words)
        gone = {one["path"].rpartition("/")[2] for one in found["removals"] if one["kind"] == "runs"}
        return gone, {one["run"] for one in found["staying"]}

    (stage.folder / "train.py").write_text(PROGRAM)
    job = stage.write_job("train", JOB)
    first = stage.submit(job, "--name", "first")
    wait_until(lambda: stage.status(first)["loss"] == 0.5, 120, "the first run to log a step", every=0.5)
    assert clean("--yes") == (set(), set())
    done = stage.call("export", first.id, "--cluster", stage.cluster, "--output", "live.tar.gz")
    assert done.returncode == 0, done.stderr
    with tarfile.open(stage.folder / "live.tar.gz") as archive:
        readme, table = (archive.extractfile(f"{first.id}/{name}") for name in ("README.txt", "metrics.csv"))
        assert readme is not None
        assert b"not ended" in readme.read()
        assert table is not None
        assert table.read().startswith(b"attempt,")
    (first.work / "go").touch()
    stage.wait_for_state(first, "finished")
    second = stage.submit(job, "--name", "second", "--hold", "--after", first.id)
    assert clean("--yes") == (set(), {first.id})
    stage.call("cancel", second.id, "--yes", "--cluster", stage.cluster)
    stage.wait_for_state(second, "cancelled")
    total = typed("usage", "--by", "job")["total"]
    assert (total["runs"], total["cpu_hours"] > 0) == (1, True)
    assert clean() == ({first.id, second.id}, set())
    assert first.path.is_dir()
    assert clean("--yes") == ({first.id, second.id}, set())
    assert not [path for path in stage.runs.iterdir() if not path.name.startswith(".")]
