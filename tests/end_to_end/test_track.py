"""A run is tracked from the login node, while it goes on and after its end."""

from __future__ import annotations

import json

from support.scenario import Stage

PROGRAM = """
import time, clusterctl.runs as run
for step in range(1, 6):
    run.log(step=step, loss=1 / step)
"""
JOB = f'workload = "command"\nargv = ["python", "-c", {json.dumps(PROGRAM)}]\n[track]\ntensorboard = true\n'


def test_a_run_is_tracked_or_it_says_what_is_missing(stage: Stage) -> None:
    run = stage.submit(stage.write_job("tracked", JOB), "--wait")
    done = stage.call("track", run.id, "--follow", "--cluster", stage.cluster, timeout=60) if _installed() else None
    if done is not None:
        assert (done.returncode, done.stdout) == (0, "tensorboard: 5 points\n"), done.stderr
        again = stage.call("track", run.id, "--cluster", stage.cluster)
        assert (again.returncode, again.stdout) == (0, "tensorboard: 0 points\n"), again.stderr
        return
    missing = stage.call("track", run.id, "--cluster", stage.cluster)
    assert missing.returncode == 1
    assert "tensorboard is not installed here" in missing.stderr
    assert "hint: pip install 'clusterctl[tensorboard]'" in missing.stderr


def _installed() -> bool:
    try:
        import tensorboard  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
    except ImportError:
        return False
    return True
