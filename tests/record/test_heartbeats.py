"""What a heartbeat contains, and how it is written and read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scenario import wait_until

from clusterctl.shared.record.heartbeats import (
    ENDED,
    RECENT_SECONDS,
    Beat,
    Heart,
    Pulse,
    gpu_idle,
    read_beats,
    write_beats,
)

NOW = 1_000_000.0


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def heart_after(*seconds: float, waiting: float = 0.0) -> tuple[Heart, Clock]:
    """A heart in training whose steps took `seconds`, including `waiting` for the other ranks."""
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


def test_a_beat_has_phase_step_and_recent_step_times() -> None:
    heart, clock = heart_after(1.0, 2.0, 3.0)
    clock.now += 4.0
    beat = heart.beat_at(NOW)
    assert (beat.time, beat.phase, beat.step, beat.pid) == (NOW, "training", 3, os.getpid())
    assert beat.since == pytest.approx(NOW - 10)
    assert beat.step_time == pytest.approx(NOW - 4)
    assert (beat.step_seconds, beat.slow_seconds) == (2.0, 3.0)
    assert beat.still_since == pytest.approx(NOW - 4)
    assert beat.waiting is None


def test_the_first_steps_give_no_step_time_yet() -> None:
    heart, _ = heart_after(1.0, 1.0)
    assert heart.beat_at(NOW).step_seconds is None


def test_time_between_phases_counts_for_no_step() -> None:
    heart, clock = heart_after(1.0, 1.0, 1.0)
    heart.enter("evaluating")
    clock.now += 500
    heart.enter("training")
    clock.now += 1.0
    heart.beat(4)
    beat = heart.beat_at(NOW)
    assert beat.slow_seconds == 1.0
    assert beat.since == pytest.approx(NOW - 1)


def test_waiting_for_other_ranks_is_not_busy_time() -> None:
    heart, clock = heart_after(1.0, 1.0, 1.0, waiting=0.75)
    assert heart.beat_at(NOW).busy_seconds == pytest.approx(0.25)
    heart.wait()
    clock.now += 6.0
    assert heart.beat_at(NOW).waiting == pytest.approx(NOW - 6)


def test_only_recent_steps_count() -> None:
    heart, _ = heart_after(100.0, *[1.0] * 200)
    assert heart.beat_at(NOW).slow_seconds == 1.0


@pytest.mark.parametrize("usual", [0.05, 0.5, 5.0])
def test_a_rank_that_becomes_slow_is_noticed_within_a_fixed_time(usual: float) -> None:
    heart, clock = heart_after(*[usual] * 250)
    slow = clock.now
    while heart.beat_at(NOW).busy_seconds != pytest.approx(2 * usual):
        clock.now += 2 * usual
        heart.beat(heart.step + 1)
    assert clock.now - slow <= max(RECENT_SECONDS, 6 * usual)


LONGEST = Beat(NOW + 1, "checkpointing", NOW, 7, NOW, 0.25, 0.5, 0.125, NOW, 12, "n" * 64, 1234.5)


def test_a_nodes_file_has_a_fixed_size_and_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "00000.beats"
    sizes = set()
    for beat in (Beat(NOW, "importing", NOW), LONGEST):
        write_beats(path, {0: (999_998, beat), 1: (999_999, beat)})
        assert read_beats(path) == {999_998: beat, 999_999: beat}
        sizes.add(path.stat().st_size)
    assert len(sizes) == 1
    assert json.loads(path.read_bytes().splitlines()[1])["step_seconds"] == 0.25


def test_a_restarted_writer_keeps_the_beats_of_ranks_it_does_not_know(tmp_path: Path) -> None:
    path, other = tmp_path / "00000.beats", Beat(NOW, "ended", NOW)
    write_beats(path, {local: (local, LONGEST) for local in range(4)})
    write_beats(path, {0: (0, other), 2: (2, other), 3: (3, other)})
    assert read_beats(path) == {0: other, 1: LONGEST, 2: other, 3: other}


def test_a_slot_not_yet_written_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "00000.beats"
    write_beats(path, {1: (5, LONGEST)})
    assert read_beats(path) == {5: LONGEST}


@given(st.binary(max_size=600) | st.text(max_size=300).map(str.encode))
def test_any_bytes_that_are_not_heartbeats_are_ignored(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "beat"
    path.write_bytes(content)
    assert all(isinstance(beat, Beat) for beat in read_beats(path).values())


@pytest.mark.parametrize(
    "record", [{}, [], {"time": "x"}, {"time": 1, "phase": "x", "since": 3}, {"rank": 1, "time": True}, {"rank": -1}]
)
def test_a_record_with_wrong_types_is_ignored(tmp_path: Path, record: object) -> None:
    (tmp_path / "beat").write_text(json.dumps(record))
    assert read_beats(tmp_path / "beat") == {}


def test_the_thread_sends_regularly_and_once_more_when_the_rank_exits() -> None:
    sent: list[Beat] = []
    heart = Heart()
    pulse = Pulse(heart, sent.append)
    pulse.start()
    heart.enter("training")
    heart.beat(5)
    wait_until(lambda: sent[-1].step == 5, 20)
    assert sent[-1].phase == "training"
    pulse.end()
    assert sent[-1].phase == ENDED
    count = len(sent)
    pulse.end()
    assert len(sent) == count + 1


@pytest.mark.parametrize(
    ("before", "percents", "seconds"),
    [
        (None, [0, 4.9], 5.0),
        (60.0, [0, 0], 65.0),
        (60.0, [0, 5], 0.0),
        (60.0, [0, None], None),
        (60.0, [], None),
    ],
)
def test_gpus_are_idle_while_all_of_them_do_next_to_nothing(
    before: float | None, percents: list[float | None], seconds: float | None
) -> None:
    assert gpu_idle(before, percents, 5.0) == seconds
