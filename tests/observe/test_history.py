"""The history of a run: attempts, curves, nodes, ranks."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.counted import counted
from support.made_runs import GPUS, NODES, NOW, RANKS, STARTS, WENT_ON_AT, busy_files

from clusterctl.launcher.observe.attempt import AttemptEvidence, read_evidence
from clusterctl.launcher.observe.history import History
from clusterctl.launcher.observe.run_record import read_record
from clusterctl.launcher.observe.telemetry import Sample, parse_sample
from clusterctl.launcher.observe.timeline import AttemptTimeline
from clusterctl.shared.record.files import Lines
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.states import State


@pytest.fixture
def run(fabricate) -> RunDir:
    return fabricate(files=busy_files())


@pytest.fixture
def history(run: RunDir) -> History:
    history = History(run)
    history.update(read_evidence(read_record(run)).attempts)
    return history


def test_a_restart_discards_the_steps_after_its_checkpoint(history: History) -> None:
    (one,) = history.resumptions
    assert (one.attempt, one.step, one.undone) == (1, WENT_ON_AT, 50)
    assert one.stopped is not None
    assert one.resumed is not None
    assert one.resumed > one.stopped
    assert history.undone_steps == 50
    points = history.curves["loss"].points()
    assert len(points) == 300
    assert points[-1].x == 300


def test_the_split_of_a_step_adds_up(history: History) -> None:
    split = history.split()
    assert list(split) == ["sampling", "gathering", "compute", "communication", "other"]
    assert sum(split.values()) == pytest.approx(1.0)


def test_without_a_reported_throughput_steps_per_second_are_counted(history: History) -> None:
    assert history.curves["steps_per_second"].mean() == pytest.approx(1.0)


def test_nodes_and_ranks_come_from_the_newest_attempt_with_telemetry(history: History) -> None:
    assert len(history.nodes) == NODES
    assert len(history.ranks) == RANKS
    assert all(len(node.gpus) == GPUS for node in history.nodes.values())
    assert history.ranks[13].busy.mean() == pytest.approx(1.8)
    assert history.ranks[12].busy.mean() < 1.1
    band = history.step_seconds.points()[0]
    assert 1.9 <= band.low < band.high < 2.0


def test_the_phases_of_an_attempt_cover_it_without_gaps(history: History) -> None:
    spans = history.attempts[0].phases(NOW)
    assert (spans[0].state, spans[0].start) == (State.STARTING, STARTS[0])
    assert spans[-1].end == STARTS[0] + 200
    assert all(one.end == other.start for one, other in itertools.pairwise(spans))
    assert history.attempts[0].held(NOW) == 200
    assert history.attempts[1].phases(NOW)[-1].end == NOW


def test_an_exception_on_any_rank_is_listed(history: History) -> None:
    errors = [happening for happening in history.attempts[0].timeline_events if happening.bad]
    assert [(happening.rank, happening.text) for happening in errors] == [(5, "RuntimeError: out of memory")]


def test_a_watchdog_report_is_listed_once(run: RunDir) -> None:
    for rank in (0, 1):
        Lines(run.attempt(2).events(rank)).append({"time": NOW, "event": "hang", "stacks": "process 1"})
    timeline = AttemptTimeline(run.attempt(2))
    timeline.update()
    assert [(happening.rank, happening.bad) for happening in timeline.timeline_events] == [(0, True)]


def test_an_update_reads_only_what_was_added(history: History, run: RunDir) -> None:
    before = len(history.curves["loss"].points())
    for path in run.path.rglob("*.jsonl"):
        with path.open("rb+") as out:
            out.write(b"#")  # overwrite what has been read already
    with run.attempt(1).metrics.open("a") as out:
        out.write(json.dumps({"time": NOW, "step": 301, "loss": 0.5}) + "\n")
    history.update()
    assert len(history.curves["loss"].points()) == before + 1
    assert history.curves["loss"].last == 0.5


def test_the_exit_of_a_rank_is_listed_once(fabricate) -> None:
    left = [{"time": at, "event": "exit", "code": 143} for at in (1.0, 2.0)]
    history = History(fabricate(files={"attempts/0/events/rank_00003.jsonl": left}))
    history.update()
    assert [happening.time for happening in history.attempts[0].timeline_events] == [1.0]


def test_many_ranks_are_read_in_turn_and_all_of_them_at_the_end(fabricate) -> None:
    began = {"time": 1.0, "event": "began", "host": "node"}
    files = {f"attempts/0/events/rank_{rank:05}.jsonl": [began] for rank in range(200)}
    run = fabricate(files=files)
    history, heard = History(run), []
    for _ in range(4):
        history.update()
        heard.append(len(history.attempts[0].nodes))
    assert heard == [64, 128, 192, 200]
    Lines(run.attempt(0).events(199)).append({"time": 2.0, "event": "exception", "type": "X", "message": "y"})
    history.update()
    assert not history.attempts[0].timeline_events
    for _ in range(3):
        history.update()
    assert [happening.rank for happening in history.attempts[0].timeline_events] == [199]
    Lines(run.attempt(0).events(70)).append({"time": 3.0, "event": "exit", "code": 1})
    history.update([AttemptEvidence(0, exit_code=1)])
    assert [happening.rank for happening in history.attempts[0].timeline_events] == [199, 70]


def test_an_update_opens_only_changed_files(fabricate) -> None:
    began = {"time": 1.0, "event": "began", "host": "node"}
    sample = {"time": 1.0, "cpu": 1.0}
    files = {f"attempts/0/nodes/{node:05}.events.jsonl": [{"rank": 8 * node, **began}] for node in range(100)}
    files |= {f"attempts/0/telemetry/node{node:02}.jsonl": [sample] for node in range(40)}
    run = fabricate(files=files)
    history = History(run)

    def opened_by_two_updates() -> set[str]:
        with counted(run.path) as read:
            history.update()
            history.update()
        return {Path(path).name for path in read.opened}

    opened_by_two_updates()
    always = {"00000.events.jsonl", "rank_00000.jsonl", "metrics.jsonl"}  # of rank 0, which is always read
    assert opened_by_two_updates() == always
    Lines(run.attempt(0).node_events(70)).append({"rank": 563, "time": 2.0, "event": "exit", "code": 1})
    Lines(run.attempt(0).telemetry("node33")).append({"time": 2.0, "cpu": 2.0})
    assert opened_by_two_updates() == always | {"00070.events.jsonl", "node33.jsonl"}
    assert history.nodes["node33"].newest == Sample(2.0, 2.0)
    assert [one.rank for one in history.attempts[0].timeline_events] == [563]


def test_similar_reports_of_many_ranks_share_a_line_with_the_text_of_the_first(fabricate) -> None:
    files = {
        f"attempts/0/events/rank_{rank:05}.jsonl": [
            {"time": 9.0 - rank, "event": "exception", "type": "RuntimeError", "message": f"[10.0.0.{rank}] left"},
            {"time": 10.0, "event": "exit", "code": 1 + rank % 2},
        ]
        for rank in range(8)
    }
    history = History(fabricate(files=files))
    history.update()
    found = sorted(history.attempts[0].timeline_events)
    assert [(one.time, one.rank, one.text, one.ranks) for one in found] == [
        (2.0, 7, "RuntimeError: [10.0.0.7] left", 8),
        (10.0, 0, "exit code 1", 4),
        (10.0, 1, "exit code 2", 4),
    ]


def test_a_thousand_epochs_are_merged_into_few_spans_without_losing_time(fabricate) -> None:
    events = [
        {"time": float(at), "event": "stage", "stage": "training" if at % 2 else "evaluating"} for at in range(5_001)
    ]
    history = History(fabricate(files={"attempts/0/events/rank_00000.jsonl": events}))
    history.update()
    timeline = history.attempts[0]
    assert len(timeline.spans) <= 300
    assert sum(timeline.seconds.values()) == 5_000
    assert timeline.phases(5_000.0)[0].start == 0.0


def test_values_logged_without_steps_have_a_curve(fabricate) -> None:
    lines = [{"time": float(at), "loss": 1.0 / (at + 1)} for at in range(20)]
    history = History(fabricate(files={"attempts/0/metrics.jsonl": lines}))
    history.update()
    assert len(history.curves["loss"].points()) == 20


def test_the_number_of_metric_names_is_bounded(fabricate) -> None:
    lines = [{"time": 1.0, "step": step, f"name_{step}": 1.0} for step in range(500)]
    history = History(fabricate(files={"attempts/0/metrics.jsonl": lines}))
    history.update()
    assert len(history.curves) <= 64


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text("a0é", max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("a0é", max_size=5), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(["time", "cpu", "cpus", "memory", "gpus", "ranks", "disk_read"])


@given(st.dictionaries(NAMES, JSON))
def test_a_foreign_line_of_telemetry_is_ignored(record: dict[str, object]) -> None:
    sample = parse_sample(record)
    assert sample is None or isinstance(sample.time, int | float)


def test_many_attempts_cost_no_more_than_one_long_file(fabricate, monkeypatch) -> None:
    steps = [
        [{"time": step, "step": step, "loss": 1.0} for step in range(n * 5_000, n * 5_000 + 5_000)] for n in range(12)
    ]
    ended = {"job_id": "7", "start": 1, "end": 2, "exit_code": 85}
    hosts = {f"attempts/{number}/host.json": ended for number in range(12)}
    run = fabricate(files=hosts | {f"attempts/{number}/metrics.jsonl": some for number, some in enumerate(steps)})
    taken = []
    monkeypatch.setattr(History, "_take_metrics", lambda self, attempt, measured: taken.append(measured.step))
    history = History(run, most_bytes=2**20)
    history.update()
    assert history.sampled
    assert len(taken) < 12 * 5_000 / 2
    assert (min(taken), max(taken)) == (0, 59_999)
