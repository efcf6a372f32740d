"""When a rank counts as stuck, and what happens then: the decisions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.shared.node.node_watch import CONFIRM_SECONDS, DUMP_SECONDS
from clusterctl.shared.record.heartbeats import ENDED, IDLE_GPUS, Beat, Stillness, action, patience
from clusterctl.shared.record.states import State
from clusterctl.shared.spec import Watchdog

DEFAULT = Watchdog()
TRAINING = Beat(1000.0, "training", 900.0, 50, 999.0, 0.1, 0.2, 0.05, None, 11, "node1")


def test_patience_in_training_follows_step_times_above_a_floor() -> None:
    assert patience(DEFAULT, TRAINING) == 30
    assert patience(DEFAULT, replace(TRAINING, slow_seconds=5.0)) == 150
    assert patience(Watchdog(floor=3, factor=2.0), replace(TRAINING, slow_seconds=5.0)) == 10


def test_a_hang_of_fast_steps_is_diagnosed_within_a_minute_by_default() -> None:
    notice = patience(DEFAULT, replace(TRAINING, slow_seconds=1.0)) + 2 + CONFIRM_SECONDS + 1
    assert notice + DUMP_SECONDS < 60


def test_other_phases_and_the_first_steps_have_their_own_limits() -> None:
    first = replace(TRAINING, slow_seconds=None, step_seconds=None)
    assert patience(DEFAULT, first) == DEFAULT.starting
    assert patience(DEFAULT, replace(TRAINING, phase=State.EVALUATING)) == DEFAULT.evaluating
    assert patience(DEFAULT, replace(TRAINING, phase=State.LOADING)) == DEFAULT.loading
    assert patience(DEFAULT, replace(TRAINING, phase=State.CHECKPOINTING)) == DEFAULT.checkpointing
    assert patience(DEFAULT, replace(TRAINING, phase=State.IMPORTING)) == DEFAULT.starting
    assert patience(DEFAULT, replace(TRAINING, phase=ENDED)) == float("inf")


IDLE = replace(TRAINING, step=0, step_time=None, step_seconds=None, slow_seconds=None, busy_seconds=None, idle=5.0)


def test_a_program_that_logs_no_steps_has_unlimited_patience() -> None:
    assert patience(DEFAULT, IDLE) == float("inf")
    assert patience(DEFAULT, replace(IDLE, idle=None)) == DEFAULT.starting


@pytest.mark.parametrize(
    ("configured", "with_steps", "without_steps"),
    [(None, "restart", "report"), ("restart",) * 3, ("fail",) * 3, ("report",) * 3],
)
def test_a_program_that_logs_no_steps_is_ended_only_if_configured(
    configured: str | None, with_steps: str, without_steps: str
) -> None:
    watchdog = Watchdog(action=configured)
    assert action(watchdog, logs_steps=True) == with_steps
    assert action(watchdog, logs_steps=True, how=IDLE_GPUS) == (configured or "fail")
    assert action(watchdog, logs_steps=False) == without_steps


def test_an_evaluation_twenty_times_as_long_as_a_step_raises_no_alarm() -> None:
    """Half an hour of 50 steps of 2 s, then an evaluation of 40 s, which is its own phase or part of a step."""
    for hidden in (False, True):
        still, clock, beat = Stillness(), 0.0, replace(TRAINING, slow_seconds=2.0, step=0)
        for second in range(1800):
            clock += 1.0
            within = second % 140
            if within < 100:
                beat = replace(beat, phase="training", step=beat.step + (within % 2 == 0), time=clock)
            elif not hidden:
                beat = replace(beat, phase="evaluating", time=clock)
            assert still.look(beat, clock) <= patience(DEFAULT, beat)


def test_stillness_is_measured_by_the_observers_clock() -> None:
    still = Stillness()
    assert still.look(None, 0.0) == 0
    for second in range(40):  # the node's clock runs five times too fast
        seconds = still.look(replace(TRAINING, time=5.0 * second), float(second))
    assert seconds == 39
    assert still.look(replace(TRAINING, step=51), 41.0) == 0


def test_an_observer_that_was_suspended_does_not_blame_the_ranks() -> None:
    still = Stillness()
    still.look(TRAINING, 0.0)
    assert still.look(TRAINING, 3600.0) < 5  # the machine was suspended
