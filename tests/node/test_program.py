"""What a user's program can read about its run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from clusterctl import program
from clusterctl.shared.errors import TaskError
from clusterctl.shared.record import checkpoints
from clusterctl.shared.record.layout import Attempt, RunDir


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Attempt:
    """The second attempt of a run; the first made two checkpoints."""
    run = RunDir(tmp_path / "run")
    for step in (10, 20):
        run.attempt(0).path.mkdir(parents=True, exist_ok=True)
        aside = checkpoints.write_aside(run.attempt(0), step)
        (aside / "state").write_text(str(step))
        checkpoints.complete(run.attempt(0), aside, {})
    run.attempt(1).path.mkdir()
    for name, value in {"RUN_DIR": str(run.path), "ATTEMPT": "1"}.items():
        monkeypatch.setenv(f"CLUSTERCTL_{name}", value)
    return run.attempt(1)


@pytest.fixture
def as_rank(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    def be(rank: int) -> None:
        values = {"PROCID": rank, "LOCALID": 0, "NODEID": rank, "NTASKS": 2, "STEP_NUM_TASKS": 2, "NNODES": 2}
        for name, value in values.items():
            monkeypatch.setenv(f"SLURM_{name}", str(value))

    return be


def test_every_rank_waits_for_and_resumes_from_rank_0s_choice(attempt: Attempt, as_rank: Callable[[int], None]) -> None:
    """The other node sees neither the newest checkpoint nor rank 0's choice yet."""
    run = RunDir(attempt.path.parents[1])
    as_rank(0)
    newest = program.latest_checkpoint()
    assert newest is not None
    assert newest.name == "0-20"
    program._asked.clear()  # rank 1 is another process
    hidden = [(path, path.rename(run.path / path.name)) for path in (attempt.origin_json, newest)]

    def show() -> None:
        for path, now in hidden:
            time.sleep(0.3)
            now.rename(path)

    as_rank(1)
    threading.Thread(target=show).start()
    assert program.latest_checkpoint() == newest


def test_other_ranks_start_from_scratch_if_rank_0_does(attempt: Attempt, as_rank: Callable[[int], None]) -> None:
    checkpoints.note_origin(attempt, None)
    as_rank(1)
    assert program.latest_checkpoint() is None


def test_waiting_for_rank_0s_choice_times_out(
    attempt: Attempt, as_rank: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "_CHOICE_SECONDS", 0.2)
    monkeypatch.setattr(program, "_ARRIVAL_SECONDS", 0.2)
    as_rank(1)
    with pytest.raises(TaskError, match="rank 0 did not choose a checkpoint"):
        program.latest_checkpoint()
    checkpoints.note_origin(attempt, Path("0-30"))
    program._asked.clear()
    with pytest.raises(TaskError, match="0-30, which rank 0 resumes from: it is incomplete"):
        program.latest_checkpoint()


def test_a_late_rank_first_takes_rank_0s_choice_and_then_the_newest(
    attempt: Attempt, as_rank: Callable[[int], None]
) -> None:
    run = RunDir(attempt.path.parents[1])
    checkpoints.note_origin(attempt, Path("0-20"))
    own = checkpoints.complete(attempt, checkpoints.write_aside(attempt, 30), {})
    as_rank(1)
    assert program.latest_checkpoint() == run.checkpoints / "0-20"
    assert program.latest_checkpoint() == own


def test_a_rank_that_starts_after_many_checkpoints_still_finds_rank_0s_choice(
    attempt: Attempt, as_rank: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir(attempt.path.parents[1])
    monkeypatch.setenv(program.KEEP, "1")
    as_rank(0)
    assert program.latest_checkpoint() == run.checkpoints / "0-20"
    for step in (30, 40, 50):
        with program.checkpoint(step) as folder:
            (folder / "state").write_text("x")
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["0-20", "1-50"]
    program._asked.clear()  # rank 1 is another process
    as_rank(1)
    assert program.latest_checkpoint() == run.checkpoints / "0-20"


def test_rank_0_chooses_once(attempt: Attempt, as_rank: Callable[[int], None]) -> None:
    as_rank(0)
    program.latest_checkpoint()
    own = checkpoints.complete(attempt, checkpoints.write_aside(attempt, 30), {})
    assert program.latest_checkpoint() == own
    origin = checkpoints.read_origin(attempt)
    assert origin is not None
    assert str(origin.name) == "0-20"


def test_ranks_restarted_by_torchrun_take_the_newest_checkpoint(
    attempt: Attempt, as_rank: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints.note_origin(attempt, Path("0-20"))
    own = checkpoints.complete(attempt, checkpoints.write_aside(attempt, 30), {})
    as_rank(1)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert program.latest_checkpoint() == own


@pytest.mark.parametrize("step", [30, np.int64(30), torch.tensor(30)])
def test_steps_may_be_numbers_of_numpy_or_torch(attempt: Attempt, as_rank: Callable[[int], None], step: object) -> None:
    as_rank(0)
    with program.checkpoint(step) as folder:  # type: ignore[arg-type]
        (folder / "state").write_text("30")
    assert program.latest_checkpoint() == RunDir(attempt.path.parents[1]).checkpoints / "1-30"
    with pytest.raises(SystemExit) as left:
        program.request_restart(step)  # type: ignore[arg-type]
    assert left.value.code == 75
