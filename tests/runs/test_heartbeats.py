"""What a rank tells of its pulse, and how it is written and read."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scenario import wait_until

from clusterctl.runs.heartbeats import BEAT_SECONDS, ENDED, RECENT_SECONDS, Beat, Heart, Pulse, read_beat, write_beat

NOW = 1_000_000.0


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def heart_after(*seconds: float, waiting: float = 0.0) -> tuple[Heart, Clock]:
    """A heart in training that took `seconds` for its steps, `waiting` of each for the other ranks."""
    clock = Clock()
    heart = Heart(clock)
    heart.enter("training")
    for step, duration in enumerate(seconds, start=1):
        clock.now += duration - waiting
        heart.wait()
        clock.now += waiting
        heart.go_on()
        heart.beat(step)
    return heart, clock


def test_a_beat_says_phase_step_and_recent_step_times_in_seconds_since_the_epoch() -> None:
    heart, clock = heart_after(1.0, 2.0, 3.0)
    clock.now += 4.0
    beat = heart.told(NOW)
    assert (beat.time, beat.phase, beat.step, beat.pid) == (NOW, "training", 3, os.getpid())
    assert beat.since == pytest.approx(NOW - 10)
    assert beat.step_time == pytest.approx(NOW - 4)
    assert (beat.step_seconds, beat.slow_seconds) == (2.0, 3.0)
    assert beat.still_since == pytest.approx(NOW - 4)
    assert beat.waiting is None


def test_the_first_steps_tell_no_pace_yet() -> None:
    heart, _ = heart_after(1.0, 1.0)
    assert heart.told(NOW).step_seconds is None


def test_what_happened_between_phases_counts_for_no_step() -> None:
    heart, clock = heart_after(1.0, 1.0, 1.0)
    heart.enter("evaluating")
    clock.now += 500
    heart.enter("training")
    clock.now += 1.0
    heart.beat(4)
    beat = heart.told(NOW)
    assert beat.slow_seconds == 1.0
    assert beat.since == pytest.approx(NOW - 1)


def test_waiting_for_others_is_no_work() -> None:
    heart, clock = heart_after(1.0, 1.0, 1.0, waiting=0.75)
    assert heart.told(NOW).busy_seconds == pytest.approx(0.25)
    heart.wait()
    clock.now += 6.0
    assert heart.told(NOW).waiting == pytest.approx(NOW - 6)


def test_only_recent_steps_count() -> None:
    heart, _ = heart_after(100.0, *[1.0] * 200)
    assert heart.told(NOW).slow_seconds == 1.0


@pytest.mark.parametrize("usual", [0.05, 0.5, 5.0])
def test_a_rank_that_becomes_slow_is_known_within_a_time_not_a_number_of_steps(usual: float) -> None:
    heart, clock = heart_after(*[usual] * 250)
    slow = clock.now
    while heart.told(NOW).busy_seconds != pytest.approx(2 * usual):
        clock.now += 2 * usual
        heart.beat(heart.step + 1)
    assert clock.now - slow <= max(RECENT_SECONDS, 6 * usual)


def test_a_heartbeat_file_keeps_its_size_and_reads_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "rank_00000"
    sizes = set()
    longest = Beat(NOW + 1, "training", NOW, 7, NOW, 0.25, 0.5, 0.125, NOW, 12, "n" * 64)
    for beat in (Beat(NOW, "importing", NOW), longest):
        write_beat(path, beat)
        assert read_beat(path) == beat
        sizes.add(path.stat().st_size)
    assert len(sizes) == 1
    assert json.loads(path.read_bytes())["step_seconds"] == 0.25


@given(st.binary(max_size=600) | st.text(max_size=300).map(str.encode))
def test_what_is_no_heartbeat_is_none(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "beat"
    path.write_bytes(content)
    found = read_beat(path)
    assert found is None or isinstance(found, Beat)


@pytest.mark.parametrize("record", [{}, [], {"time": "x"}, {"time": 1, "phase": 2, "since": 3}, {"time": True}])
def test_a_record_of_wrong_types_is_none(tmp_path: Path, record: object) -> None:
    (tmp_path / "beat").write_text(json.dumps(record))
    assert read_beat(tmp_path / "beat") is None


def test_the_thread_writes_each_second_and_a_last_time_when_the_rank_leaves(tmp_path: Path) -> None:
    path, heart, looks = tmp_path / "heartbeats" / "rank_00000", Heart(), []
    pulse = Pulse(heart, path, lambda: looks.append(1))
    pulse.start()
    heart.enter("training")
    heart.beat(5)
    beat = wait_until(lambda: found if (found := read_beat(path)) and found.step == 5 else None, 20)
    assert beat.phase == "training"
    assert looks
    pulse.end()
    last = read_beat(path)
    assert last is not None
    assert last.phase == ENDED


def test_a_program_takes_the_beats_over_from_the_task_that_started_it(tmp_path: Path) -> None:
    path = tmp_path / "rank_00000"
    write_beat(path, Beat(NOW, "training", NOW, step=9, pid=os.getpid() + 1))  # by the program
    pulse = Pulse(Heart(), path)
    pulse.start()
    kept = read_beat(path)
    assert kept is not None
    assert kept.step == 9
    pulse.end()
    left = read_beat(path)
    assert left is not None
    assert (left.phase, left.step) == (ENDED, 9)
    program = Pulse(Heart(), path, takes_over=True)
    program.start()
    taken = read_beat(path)
    program.end()
    assert taken is not None
    assert taken.pid == os.getpid()


def test_a_disk_that_takes_nothing_ends_no_training_and_lets_nobody_judge_others(tmp_path: Path) -> None:
    path, looks = tmp_path / "rank_00000", []
    path.mkdir()
    pulse = Pulse(Heart(), path, lambda: looks.append(1))
    pulse.start()
    time.sleep(1.5 * BEAT_SECONDS)  # one beat, which fails: there is no condition to wait for
    assert looks == []
    path.rmdir()
    wait_until(lambda: looks, 20)
    pulse.end()
