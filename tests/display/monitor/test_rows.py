"""The monitor's list of runs: order, sweeps, filter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launcher.display.explanation import Causes
from clusterctl.launcher.display.monitor.rows import (
    ORDERS,
    Choice,
    drawn_rows,
    first_row,
    position_of,
    rows_of,
    shortened,
)
from clusterctl.launcher.observe.attempt import AttemptEvidence
from clusterctl.launcher.observe.overview import Scene
from clusterctl.launcher.observe.run_record import RunRecord
from clusterctl.launcher.observe.state import Status
from clusterctl.launcher.observe.status import statuses_of
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.states import State
from clusterctl.shared.spec import Cluster, Job, RedditTrain

NOW = 1000.0
SWEEP = "tune-20260102-030405-00a1"
OLD, NEW = "cora-20260101-030405-00a1", "gin-20260103-030405-00a1"


def status(run: str, state: State, **metrics: float) -> Status:
    job = Job(name="cora", workload="reddit", train=RedditTrain())
    record = RunRecord(RunDir(Path("/runs") / run), NOW - 60, job, Cluster(name="site"))
    return Status(record, state, True, "1", (AttemptEvidence(number=0, metrics=metrics),), False, "", None, None)


@pytest.fixture
def scene() -> Scene:
    """A finished run, a sweep with one living run of 300, and a queued run, newest first."""
    sweep = [status(f"{SWEEP}.{n}", State.TRAINING if n == 7 else State.FINISHED, loss=1 / (1 + n)) for n in range(300)]
    return Scene(NOW, (status(NEW, State.FINISHED, loss=3.0), *sweep, status(OLD, State.QUEUED)), None)


def names(scene: Scene, **choice: object) -> list[str]:
    return [row.sweep or row.status.record.run.id for row in rows_of(scene, Choice(**choice))]


def test_the_living_come_first_and_a_sweep_is_one_row(scene: Scene) -> None:
    assert names(scene) == [SWEEP, OLD, NEW]
    (sweep, *_) = rows_of(scene, Choice())
    assert (sweep.status.record.run.id, len(sweep.runs)) == (f"{SWEEP}.7", 300)


@pytest.mark.parametrize("width", range(60, 160, 6))
def test_the_states_of_a_sweep_are_whole_at_any_width(scene: Scene, width: int) -> None:
    row = drawn_rows(scene, Choice(), None, width, 9)[1].plain
    assert row.endswith("1 training, 299 finished")
    assert len(row) <= width


def test_a_sweep_stands_for_a_run_at_work_even_if_newer_ones_are_queued() -> None:
    states = (State.QUEUED, State.TRAINING, State.FINISHED)
    members = tuple(status(f"{SWEEP}.{2 - place}", state) for place, state in enumerate(states))
    (row,) = rows_of(Scene(NOW, members, None), Choice())
    assert row.status.record.run.id == f"{SWEEP}.1"


def test_an_opened_sweep_lists_its_runs(scene: Scene) -> None:
    found = names(scene, opened=frozenset({SWEEP}))
    assert (len(found), found[:3]) == (303, [SWEEP, f"{SWEEP}.7", f"{SWEEP}.0"])
    rows = rows_of(scene, Choice(opened=frozenset({SWEEP})))
    assert [place for place, row in enumerate(rows) if row.stands_for(f"{SWEEP}.0")] == [2]
    assert first_row(rows, f"{SWEEP}.299", 5) == position_of(rows, f"{SWEEP}.299") - 2


@pytest.mark.parametrize(
    ("words", "expected"), [("QUEUED", [OLD]), ("gin fin", [NEW]), ("tune training", [SWEEP]), ("nothing", [])]
)
def test_a_filter_needs_all_its_words(scene: Scene, words: str, expected: list[str]) -> None:
    assert names(scene, words=words) == expected


@given(st.text(alphabet="abcdefgh-0123456789", max_size=80), st.integers(3, 90))
def test_a_name_keeps_its_end_and_shows_that_it_is_cut(name: str, width: int) -> None:
    short = shortened(name, width)
    assert (short == name) == (len(name) <= width)
    assert len(short) == min(width, len(name))
    before, cut, after = short.partition("…")
    assert name.startswith(before)
    assert name.endswith(after)
    assert bool(cut) == (short != name)


@pytest.mark.parametrize("width", range(60, 180, 10))
@pytest.mark.parametrize("job", ["cora", "papers100m-with-a-long-name-of-its-job"])
def test_a_cause_is_not_lost_to_the_columns(width: int, job: str) -> None:
    failed = status(f"{job}-20260103-030405-00a1", State.FAILED, loss=3.0)
    cause = "RuntimeError: CUDA out of memory"
    scene = Scene(NOW, (failed,), None, causes={failed.record.run.id: cause})
    _, row = (line.plain.rstrip() for line in drawn_rows(scene, Choice(), None, width, 5))
    assert len(row) <= width
    assert row.endswith(cause) or (width < 80 and row.endswith("…") and "RuntimeError" in row)


def test_a_filter_finds_tags_and_notes(scene: Scene) -> None:
    tagged = scene.statuses[0]
    job = replace(tagged.record.job, note="Lower dropout", tags=("paper",))
    tagged = replace(tagged, record=replace(tagged.record, job=job))
    found = replace(scene, statuses=(tagged, *scene.statuses[1:]))
    assert names(found, words="lower paper") == [NEW]
    assert "Lower dropout #paper" in drawn_rows(found, Choice("paper"), NEW, 120, 4)[1].plain


def test_the_note_of_a_failed_run_is_its_cause_which_a_filter_finds(fabricate: Callable[..., RunDir]) -> None:
    event = {"event": "exception", "stage": "training", "step": 3, "time": 50}
    event |= {"type": "ValueError", "message": "lr is \x1b[2Jnegative"}
    files = {
        "submission.json": {"job_id": "12"},
        "attempts/0/host.json": {"job_id": "12", "start": 10, "end": 60, "exit_code": 1},
        "attempts/0/events/rank_00000.jsonl": [{"event": "began", "node": "node1"}, event],
    }
    statuses = statuses_of(
        [fabricate(NEW, files), fabricate(OLD, {"finished.json": {"attempt": 0, "time": 5}})]
    ).statuses
    causes = Causes(statuses[0].record.run.runs).of(statuses)
    assert [*causes] == [NEW]
    found = Scene(NOW, statuses, None, causes=causes)
    lines = [line.plain for line in drawn_rows(found, Choice("negative"), NEW, 120, 4)]
    assert [line.count("ValueError: lr is ") for line in lines] == [0, 1]
    assert "exit code 1" not in lines[1]
    assert "\x1b" not in lines[1]
    missing = replace(statuses[0], record=replace(statuses[0].record, run=RunDir(Path("/runs") / NEW)))
    assert Causes(Path("/runs")).of([missing]) == {}


def test_sorted_by_a_metric_every_run_has_its_row_the_best_first(scene: Scene) -> None:
    found = names(scene, order="loss")
    assert (len(found), found[0], found[-2:]) == (302, f"{SWEEP}.299", [NEW, OLD])
    for order in ORDERS:
        assert len(names(scene, order=order, words="gin")) == 1
    assert names(Scene(NOW, (), None), order="loss") == []


@pytest.mark.parametrize("width", [20, 80, 200])
def test_titles_stand_above_their_columns(scene: Scene, width: int) -> None:
    lines = [line.plain for line in drawn_rows(scene, Choice(), f"{SWEEP}.9", width, 4)]
    assert len(lines) == 4
    if width >= 80:
        assert lines[1].startswith(f"▸ {SWEEP} 300 runs ")
        assert "299 finished" in lines[1]
        assert lines[0].index("state") == lines[2].index("queued")


NUMBERS = st.sampled_from([2.32e-4, -9.87e-5, 9999.5, -1234.5, 1e300, 0.5]) | st.floats(allow_nan=True)


@given(st.lists(st.tuples(NUMBERS, NUMBERS, st.integers(1, 10**7)), min_size=1, max_size=4), st.integers(60, 160))
def test_columns_never_touch_whatever_the_numbers(values: list[tuple[float, float, int]], width: int) -> None:
    states = [
        status(f"cora-2026010{place + 1}-030405-00a1", State.TRAINING, loss=loss, val=val, epoch=epochs, epochs=epochs)
        for place, (loss, val, epochs) in enumerate(values)
    ]
    title, *lines = (line.plain for line in drawn_rows(Scene(NOW, tuple(states), None), Choice(), None, width, 9))
    assert all(len(line.rstrip()) <= width for line in lines)
    begins = [title.index(name) for name in ("state", "done", "epoch", "loss", "score", "age") if name in title]
    for line in lines:
        assert all(line[begin - 1] == " " for begin in begins), (title, line)
