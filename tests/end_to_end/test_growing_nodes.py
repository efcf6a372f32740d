"""A run that has all memory of its node, and runs out of it, goes on with a larger node if there is one."""

from __future__ import annotations

import json
import re

import pytest
from support.sandbox_fixture import RunningSandbox
from support.scenario import Stage

pytestmark = [pytest.mark.long, pytest.mark.parametrize("back_end", ["contained"], indirect=True)]

SIZES = {"node1": 400, "node2": 1000}  # MiB
# Slurm 22.05 sets no limit for a job with all memory of its node; here, it gets one of 1.5 % of the machine's memory.
LIMIT = "\nMaxRAMPercent=1.5\n"
PROGRAM = """
import os
print(os.environ.get("SLURM_MEM_PER_NODE"), flush=True)
x = bytearray(b"x") * (1 << (30 if os.environ["CLUSTERCTL_ATTEMPT"] == "0" else 20))
"""


@pytest.fixture(scope="module")
def contained(contained: RunningSandbox) -> RunningSandbox:
    """A small node and a larger one."""
    slurm, cgroup = (contained.folder / "etc" / name for name in ("slurm.conf", "cgroup.conf"))
    sized = re.sub(
        r"(NodeName=(\w+) .*RealMemory=)\d+", lambda found: f"{found[1]}{SIZES[found[2]]}", slurm.read_text()
    )
    slurm.write_text(sized)
    cgroup.write_text(cgroup.read_text() + LIMIT)
    contained.call("scontrol", "reconfigure")
    return contained


@pytest.mark.parametrize("node", SIZES)
def test_all_memory_of_a_node_grows_to_more_than_that_or_not_at_all(stage: Stage, node: str) -> None:
    asked = f'memory = "0"\nexclude = "{(SIZES.keys() - {node}).pop()}"' if node == "node2" else 'memory = "0"'
    job = f'workload = "command"\nargv = ["python", "-c", {json.dumps(PROGRAM)}]\n[restart.grow]\nmemory = 2\n'
    run = stage.submit(stage.write_job("hungry", f"{job}[resources]\n{asked}\n"))
    status = stage.wait_for_state(run, "finished", "failed", seconds=120)
    why = json.loads(stage.call("why", run.id, "--cluster", stage.cluster, "-o", "json").stdout)
    if node == "node2":  # the largest there is
        assert (status["stage"], status["attempts"]) == ("failed", 1)
        assert "the partition allows no more" in run.attempt(0).host_log.read_text()
        return
    assert (status["stage"], status["attempts"]) == ("finished", 2), why
    assert [(past["class"], past["went_on_with"]) for past in why["history"]] == [
        ("out-of-memory", "800M instead of 400M of memory")
    ]
    assert stage.log(run, 0, attempt=1) == "800\n"
