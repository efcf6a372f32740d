"""The metrics of an attempt: all records of a short one, a subset of a long one."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clusterctl import program as face
from clusterctl.program import log, phase
from clusterctl.shared.record import metrics
from clusterctl.shared.record.files import read_lines
from clusterctl.shared.record.heartbeats import Heart
from clusterctl.shared.record.layout import Attempt, current_attempt
from clusterctl.shared.record.metrics import MetricsWriter, stride

WHOLE = 64  # in these tests, the number of records up to which all are written


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Attempt:
    monkeypatch.setattr(metrics, "_WHOLE", WHOLE)
    monkeypatch.setattr(metrics, "_FIRST", 3)
    return Attempt(tmp_path / "0")


def records(attempt: Attempt) -> list[dict[str, Any]]:
    return list(read_lines(attempt.metrics))


def steps(attempt: Attempt) -> list[int]:
    return [record["step"] for record in records(attempt) if "loss" in record]


def test_a_million_steps_take_less_than_100_mb() -> None:
    """At 500 bytes per record; those of the workloads have 300."""
    ends = [0, *(2**16 << power for power in range(4)), 1_000_000]
    written = sum((end - begin) // stride(end) for begin, end in itertools.pairwise(ends))
    assert written * 500 < 100e6


def test_every_step_is_written_up_to_a_bound_then_every_second_then_every_fourth(attempt: Attempt) -> None:
    writer = MetricsWriter(attempt, 0)
    for step in range(1, 5 * WHOLE + 1):
        writer.write(step=step, loss=0.5)
    whole, second = range(1, WHOLE + 1), range(WHOLE + 2, 2 * WHOLE + 1, 2)
    fourth, eighth = range(2 * WHOLE + 4, 4 * WHOLE + 1, 4), range(4 * WHOLE + 8, 5 * WHOLE + 1, 8)
    assert steps(attempt) == [*whole, *second, *fourth, *eighth]


def test_a_long_run_adds_the_same_number_of_lines_with_each_doubling(attempt: Attempt) -> None:
    writer = MetricsWriter(attempt, 0)
    sizes = []
    for step in range(1, 64 * WHOLE + 1):
        writer.write(step=step, loss=0.5)
        if step in {WHOLE << power for power in range(7)}:
            sizes.append(len(steps(attempt)))
    assert sizes == [WHOLE + number * WHOLE // 2 for number in range(7)]


@pytest.mark.parametrize("spacing", [1, 100])
def test_many_attempts_write_about_as_much_as_one(attempt: Attempt, tmp_path: Path, spacing: int) -> None:
    """Both for a program that logs every step and for one that logs every hundredth."""
    attempts = [Attempt(tmp_path / str(number)) for number in range(1, 41)]
    whole, records_of_one = MetricsWriter(attempt, 0), 2 * WHOLE
    for number, one in enumerate(attempts):
        writer = MetricsWriter(one, 0)
        for record in range(number * records_of_one + 1, (number + 1) * records_of_one + 1):
            writer.write(step=record * spacing, loss=0.5)
            whole.write(step=record * spacing, loss=0.5)
    assert sum(len(steps(one)) for one in attempts) < len(steps(attempt)) + 5 * len(attempts)
    assert all(steps(one)[0] == number * records_of_one * spacing + spacing for number, one in enumerate(attempts))


def test_rare_metrics_are_all_written_each_after_the_newest_step(attempt: Attempt) -> None:
    writer = MetricsWriter(attempt, 0)
    for step in range(1, 10 * WHOLE + 4):
        writer.write(step=step, loss=0.5)
        if step % 101 == 0:
            writer.write(step=step, val_accuracy=0.5)
    found = records(attempt)
    scores = [place for place, record in enumerate(found) if "val_accuracy" in record]
    assert [found[place]["step"] for place in scores] == list(range(101, 10 * WHOLE, 101))
    assert [found[place - 1]["step"] for place in scores] == [found[place]["step"] for place in scores]
    assert steps(attempt) == sorted(set(steps(attempt)))


def test_the_newest_step_is_written_when_the_program_ends(attempt: Attempt) -> None:
    writer = MetricsWriter(attempt, 0)
    for step in range(1, 10 * WHOLE + 4):
        writer.write(step=step, loss=0.5)
    assert steps(attempt)[-1] < 10 * WHOLE + 3
    writer.write_left_out()
    writer.write_left_out()
    assert steps(attempt)[-2:] == [10 * WHOLE, 10 * WHOLE + 3]


def test_the_first_loss_that_is_no_longer_finite_is_written(attempt: Attempt) -> None:
    writer = MetricsWriter(attempt, 0)
    broken = 20 * WHOLE + 3
    for step in range(1, 30 * WHOLE):
        writer.write(step=step, loss=0.5 if step < broken else math.nan)
    found = [record["step"] for record in records(attempt) if math.isnan(record["loss"])]
    assert found[:3] == [broken, broken + 1, broken + 2]
    assert broken - 1 in steps(attempt)


def test_the_first_records_of_a_late_metric_are_all_written(attempt: Attempt) -> None:
    writer = MetricsWriter(attempt, 0)
    for step in (1_000_000, 1_000_001):
        writer.write(step=step, best_accuracy=0.5)
    assert [record["step"] for record in records(attempt)] == [1_000_000, 1_000_001]


def test_generated_metric_names_take_bounded_memory(attempt: Attempt) -> None:
    writer = MetricsWriter(attempt, 0)
    for step in range(3000):
        writer.write(**{f"name {step}": 1, "huge": 10**400, "words": "any"})
    assert len(writer._kinds) <= metrics._MOST_KINDS + 1


class OnGpu:
    """A number on a device: it has `item`, as torch's, JAX's and CuPy's do."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def item(self) -> Any:
        if isinstance(self._value, Exception):
            raise self._value
        return self._value


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Attempt:
    """This process as a program of rank 0."""
    monkeypatch.setenv("CLUSTERCTL_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("CLUSTERCTL_ATTEMPT", "0")
    attempt = current_attempt()
    assert attempt is not None
    monkeypatch.setattr(face, "_writer", cache(lambda: MetricsWriter(attempt, 0)))
    monkeypatch.setattr(face, "_heart", cache(Heart))
    monkeypatch.setattr(metrics, "_said", set())
    return attempt


@pytest.mark.parametrize(
    ("value", "logged"),
    [
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.longdouble(2), 2.0),
        (np.array(1.5), 1.5),
        (torch.tensor(0.25, requires_grad=True), 0.25),
        (torch.tensor([7]), 7),
        (torch.tensor(2.0, dtype=torch.bfloat16), 2.0),
        (OnGpu(0.5), 0.5),
        (Fraction(1, 4), 0.25),
        (True, 1),
        (np.bool_(False), 0),
    ],
)
def test_numbers_of_any_library_are_logged(program: Attempt, value: Any, logged: float) -> None:
    log(step=1, loss=value, other=2)
    (record,) = records(program)
    assert (record["loss"], record["other"], type(record["loss"])) == (logged, 2, type(logged))


@pytest.mark.parametrize(
    "value",
    [None, "high", object(), [1.0], {"a": 1}, 1j, torch.ones(3), np.ones(2), OnGpu(RuntimeError("lost"))],
)
def test_what_is_no_number_is_left_out_and_said_once(
    program: Attempt, value: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (1, 2):
        log(step=step, loss=value, other=2)
    assert [sorted(record) for record in records(program)] == [["other", "step", "time"]] * 2
    assert capsys.readouterr().err.count("clusterctl: loss is not logged: ") == 1


@pytest.mark.parametrize("step", [5, np.int64(5), torch.tensor(5), 5.0, np.float32(5)])
def test_a_step_may_be_any_whole_number(program: Attempt, step: Any) -> None:
    log(step=step, loss=0.5)
    assert [(record["step"], type(record["step"])) for record in records(program)] == [(5, int)]
    assert face._heart().step == 5


def test_numbers_that_are_not_finite_and_steps_that_are_no_numbers_do_no_harm(program: Attempt) -> None:
    log(step=torch.ones(2), loss=np.float32("nan"))
    log(step=math.nan, loss=math.inf)
    first, second = records(program)
    assert "step" not in first
    assert math.isnan(first["loss"])
    assert second["loss"] == math.inf


def test_the_last_numbers_of_a_program_are_written_once_there_is_room(program: Attempt) -> None:
    """The file is replaced by a device that is always full, until the program has ended its work."""
    code = """
import os
import clusterctl.program as run
run.log(step=1, loss=0.5)
descriptor = run._writer()._lines._descriptor
kept, full = os.dup(descriptor), os.open("/dev/full", os.O_WRONLY)
os.dup2(full, descriptor)
for step in range(2, 30):
    run.log(step=step, loss=0.5)
import threading
room = threading.Timer(0.5, os.dup2, (kept, descriptor))
room.daemon = True
room.start()
"""
    done = subprocess.run([sys.executable, "-c", code], env=os.environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line["step"] for line in records(program)] == [*range(1, 30)]


def test_a_disk_that_is_full_or_gone_never_ends_a_training(
    program: Attempt, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(face, "_writer", fail)
    monkeypatch.setattr(face, "_heart", fail)
    for step in (1, 2):
        log(step=step, loss=0.5)
    phase("evaluating")
    monkeypatch.setattr(face, "_heart", cache(Heart))
    phase("no such phase")
    assert capsys.readouterr().err.splitlines() == [
        "clusterctl: metrics are not written: No space left on device",
        "clusterctl: heartbeats are not sent: No space left on device",
        "clusterctl: phase 'evaluating' is not reported: No space left on device",
        "clusterctl: phase 'no such phase' is not reported: 'no such phase' is not a valid State",
    ]
    assert records(program) == []
