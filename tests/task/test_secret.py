"""A stranger who reaches the port of a run's ranks can keep them from meeting, but nothing else."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from support.ranks import claim, environments, run_ranks

from clusterctl.shared.errors import TaskError
from clusterctl.shared.record.layout import Attempt, RunDir
from clusterctl.shared.record.secret import read

JOIN = """
import os
from torch import distributed as dist
from clusterctl.shared.node.events import Context
from clusterctl.shared.record.layout import current_attempt
from clusterctl.engine.task import rendezvous
from clusterctl.engine.task.task import from_first, to_first
from clusterctl.engine.task.task import joined
{before}
with joined(Context({{"name": "t", "workload": "reddit"}}, attempt=current_attempt())) as task:
    answers = to_first(lambda: task.place.rank, task.agreeing), task.writing.begin().from_first(lambda: "hello")
    print(*answers, flush=True)
os._exit(0)  # like clusterctl.shared.node.entry: before torch 2.8, gloo's threads may abort a process at exit
"""
# Knows host and port, like any process on the node, and poses as rank 1. Unpickling what it sends creates a file.
STRANGER = """
import json, os, pickle, signal, sys, time
from datetime import timedelta
from pathlib import Path
from torch import distributed as dist
class Payload:
    def __reduce__(self):
        return open, ({made!r}, "w")
signal.alarm(20)
while not Path({rendezvous!r}).exists():
    time.sleep(0.05)
place = json.loads(Path({rendezvous!r}).read_text())
store = dist.TCPStore(place["host"], place["port"], 2, False, timeout=timedelta(seconds=60))
store.set("roll/1", json.dumps({{"node_rank": 0, "gpu": ""}}))
dist.init_process_group("gloo", store=store, rank=1, world_size=2)
for _ in range(4):
    try:
        dist.all_gather_object([None, None], Payload())
    except Exception as error:
        print(error)
"""


def join(attempt: Attempt, before: tuple[str, ...]) -> list[tuple[int, str, str]]:
    """Let ranks join, each after its own text."""
    program = JOIN.format(before=f'exec({before!r}[int(os.environ["SLURM_PROCID"])])')
    return run_ranks(program, environments(attempt, [len(before)]), timeout=120)


def test_ranks_share_a_secret_that_only_their_user_can_read(tmp_path: Path) -> None:
    attempt = RunDir(tmp_path / "run").attempt(0)
    done = join(attempt, ("", "", ""))
    expected = ["[0, 1, 2] hello\n", "[] hello\n", "[] hello\n"]
    assert [(code, output) for code, output, _ in done] == [(0, text) for text in expected]
    assert stat.S_IMODE(attempt.secret.stat().st_mode) == 0o600
    assert attempt.secret.read_text() not in attempt.rendezvous.read_text()


@pytest.mark.long
def test_every_rank_detects_a_wrong_secret_before_sending_anything(tmp_path: Path) -> None:
    """Even one that can sign the roll: here, only the proof of a rank is wrong."""
    wrong = "prove = rendezvous.prove\nimport clusterctl.engine.task.task as t\n"
    wrong += "t.prove = lambda own, *rest: prove(bytes(32), *rest)"
    for code, output, errors in join(RunDir(tmp_path / "run").attempt(0), ("", wrong)):
        assert code != 0
        assert output == ""
        assert "a process that does not belong to this run answered" in errors


def test_a_stranger_at_the_port_cannot_run_code(tmp_path: Path) -> None:
    attempt = RunDir(tmp_path / "run").attempt(0)
    made = tmp_path / "made by the stranger"
    stranger = STRANGER.format(made=str(made), rendezvous=str(attempt.rendezvous))
    programs = JOIN.format(before=""), stranger
    first, _ = environments(attempt, [2])
    both = run_ranks(
        f'import os; exec({programs!r}["SLURM_PROCID" not in os.environ])', [first, dict(os.environ)], timeout=120
    )
    (code, _, errors), _ = both
    assert code != 0
    assert "does not belong to this run answered the roll call as rank 1" in errors
    assert not made.exists()


def test_a_secret_readable_by_others_is_rejected(tmp_path: Path) -> None:
    attempt = RunDir(tmp_path / "run").attempt(0)
    with pytest.raises(TaskError, match="No such file"):
        read(attempt)
    claim(attempt)
    assert read(attempt).hex() == attempt.secret.read_text()
    attempt.secret.chmod(0o640)
    with pytest.raises(TaskError, match="accessible to other users"):
        read(attempt)


@pytest.mark.parametrize("content", ["", "00" * 31, "no hexadecimal number"])
def test_a_malformed_secret_is_rejected(tmp_path: Path, content: str) -> None:
    attempt = RunDir(tmp_path / "run").attempt(0)
    attempt.path.mkdir(parents=True)
    attempt.secret.touch(mode=0o600)
    attempt.secret.write_text(content)
    with pytest.raises(TaskError, match="cannot read"):
        read(attempt)
