"""Ranks in images that the standbys of their nodes have forked."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from support.images import ThinImage
from support.ranks import CORA
from support.scenario import Stage, alive, wait_until

from clusterctl.shared.node.processes import stat_of
from clusterctl.shared.record.files import read_json, read_lines
from clusterctl.shared.record.layout import RunDir

TRAINING = f"""
workload = "reddit"
[resources]
nodes = 2
tasks_per_node = 2
time = "30m"
[checkpoint]
every = "1s"
[train]
epochs = 8
batch_size = 64
evaluate_every = 4
[data]
root = {json.dumps(str(CORA))}
"""


def assert_restarts_by_forking(stage: Stage, image: ThinImage, more: str = "") -> RunDir:
    """A killed rank of a training in `image`: the standbys of its first start, in the image, become the next ranks."""
    run = stage.submit(stage.write_job("boxed", TRAINING + more + image.table))
    wait_until(lambda: list(run.checkpoints.glob("0-*")), 120, "a checkpoint")
    ranks = forked(run, 0)
    standbys = {rank: standby for rank, (_, standby) in ranks.items()}
    assert len(standbys) == 4
    assert len(set(standbys.values())) == 2, "one on each node"
    for pid in (*(pid for pid, _ in ranks.values()), *standbys.values()):
        assert Path(f"/proc/{pid}/root/srv/own.txt").exists(), "in the image"
    os.kill(ranks[1][0], signal.SIGKILL)
    wait_until(lambda: len(forked(run, 1)) == 4, 120, "the second start")
    assert {rank: standby for rank, (_, standby) in forked(run, 1).items()} == standbys
    stage.wait_for_state(run, "finished", seconds=120)
    first, second = (read_json(attempt.host_json) for attempt in run.attempts())
    assert (first["restarting"], first["job_id"], second["exit_code"]) == (True, second["job_id"], 0)
    losses = [
        {line["step"]: line["loss"] for line in read_lines(attempt.metrics) if "loss" in line}
        for attempt in run.attempts()
    ]
    assert sorted(losses[0] | losses[1]) == list(range(1, max(losses[1]) + 1))
    assert all(losses[0][step] == losses[1][step] for step in losses[0].keys() & losses[1].keys())
    wait_until(lambda: not alive(run) and not any(map(stat_of, standbys.values())), 60, "all processes to end")
    return run


def forked(run: RunDir, attempt: int) -> dict[int, tuple[int, int]]:
    """Rank -> its process, and the standby that has forked it."""
    found = {}
    for rank in range(4):
        for pid in alive(run, rank):
            try:
                shown = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                parent = stat.parent if (stat := stat_of(pid)) else 0
                words = Path(f"/proc/{parent}/cmdline").read_bytes()
            except OSError:  # it has just ended
                continue
            if words.endswith(b"\0standby\0") and f"CLUSTERCTL_ATTEMPT={attempt}".encode() in shown:
                found[rank] = (pid, parent)
    return found
