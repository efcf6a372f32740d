"""The overview that a monitor reads repeatedly."""

from __future__ import annotations

import json
import shutil

import pytest
from support.made_runs import busy_files

from clusterctl.launcher.observe import overview as overview_module
from clusterctl.launcher.observe import runs
from clusterctl.launcher.observe.attempt import read_evidence
from clusterctl.launcher.observe.overview import Overview
from clusterctl.launcher.slurm import Snapshot
from clusterctl.shared.errors import SlurmError
from clusterctl.shared.record.states import State

ENDED = {
    "submission.json": {"job_id": "7"},
    "attempts/0/host.json": {"attempt": 0, "job_id": "7", "start": 1.0, "end": 2.0, "exit_code": 0, "signal": ""},
    "finished.json": {"time": 2.0},
}


class Asked:
    """A Slurm that counts its queries."""

    def __init__(self) -> None:
        self.count = 0
        self.silent = False

    def snapshot(self) -> Snapshot:
        self.count += 1
        if self.silent:
            raise SlurmError("no answer")
        return Snapshot({}, float(self.count))


@pytest.fixture
def asked() -> Asked:
    return Asked()


def test_the_newest_run_is_read_in_detail_unless_another_one_is_selected(fabricate, asked) -> None:
    first = fabricate("cora-20260101-000000-0000", ENDED)
    second = fabricate("cora-20260102-000000-0000", busy_files())
    overview = Overview(first.path.parent, slurm_of=lambda cluster: asked)
    assert overview.look().selected.status.record.run == second
    assert overview.look(first.id).selected.status.record.run == first
    assert [status.record.run for status in overview.look().statuses] == [second, first]


def test_a_run_at_work_is_selected_before_a_newer_one_that_waits(fabricate, asked) -> None:
    busy = fabricate("cora-20260101-000000-0000", busy_files())
    queued = fabricate("cora-20260102-000000-0000", {"submission.json": {"job_id": "1"}})
    ended = fabricate("cora-20260103-000000-0000", ENDED)
    overview = Overview(busy.path.parent, slurm_of=lambda cluster: asked)
    states = {status.record.run: status.state for status in overview.look().statuses}
    assert (states[queued], states[ended]) == (State.QUEUED, State.FINISHED)
    assert overview.look().selected.status.record.run == busy


def test_runs_that_are_too_old_to_be_read_are_counted_without_looking_at_them(fabricate, asked, monkeypatch) -> None:
    for number in range(5):
        run = fabricate(f"cora-20260101-00000{number}-0000", ENDED)
    overview = Overview(run.path.parent, count=2, slurm_of=lambda cluster: asked)
    looked_at = []
    is_written = runs.is_written
    monkeypatch.setattr(runs, "is_written", lambda folder, name: looked_at.append(name) or is_written(folder, name))
    assert overview.look().older == 3
    assert looked_at == ["cora-20260101-000004-0000", "cora-20260101-000003-0000"]
    (run.path.parent / "cora-20260102-000000-0000").mkdir()  # not written yet
    assert Overview(run.path.parent, count=9, slurm_of=lambda cluster: asked).look().older == 0
    named = Overview(run.path.parent, count=2, runs=(run,), slurm_of=lambda cluster: asked)
    assert named.look().older == 0


def test_an_ended_run_is_read_once_and_again_after_a_resume(fabricate, asked, monkeypatch) -> None:
    run = fabricate(files=ENDED)
    read = []
    monkeypatch.setattr(
        "clusterctl.launcher.observe.status.read_evidence", lambda record: read.append(1) or read_evidence(record)
    )
    overview = Overview(run.path.parent, slurm_of=lambda cluster: asked)
    for _ in range(3):
        assert overview.look().statuses[0].state is State.FINISHED
    assert len(read) == 1
    run.finished_json.unlink()
    (run.attempts_folder / "1").mkdir()
    overview.look()
    assert len(read) > 1


def test_an_unresponsive_slurm_is_reported_and_the_runs_are_still_shown(fabricate, asked) -> None:
    run = fabricate(files=busy_files())
    asked.silent = True
    scene = Overview(run.path.parent, slurm_of=lambda cluster: asked).look()
    assert [problem.message for problem in scene.problems] == ["no answer"]
    assert [status.record.run for status in scene.statuses] == [run]


def test_the_log_keeps_only_its_last_lines(fabricate, asked) -> None:
    lines = "".join(f"line {number}\n" for number in range(2_000))
    run = fabricate(files=busy_files() | {"attempts/1/logs/rank_00000.out": lines})
    overview = Overview(run.path.parent, slurm_of=lambda cluster: asked)
    assert overview.look().selected.log[-1].content == b"line 1999"
    with run.attempt(1).log(0).open("a") as out:
        out.write(lines)
    assert len(overview.look().selected.log) == overview_module._LINES


def test_a_deleted_run_disappears_without_an_error(fabricate, asked) -> None:
    run = fabricate(files=busy_files())
    overview = Overview(run.path.parent, slurm_of=lambda cluster: asked)
    assert overview.look(run.id).selected
    shutil.rmtree(run.path)
    scene = overview.look(run.id)
    assert (scene.statuses, scene.selected) == ((), None)


def test_a_damaged_run_does_not_hide_other_runs(fabricate, asked) -> None:
    good = fabricate("cora-20260101-000000-0000", ENDED)
    fabricate("cora-20260102-000000-0000", {"run.json": "{"})
    scene = Overview(good.path.parent, slurm_of=lambda cluster: asked).look()
    assert [status.record.run for status in scene.statuses] == [good]
    assert len(scene.problems) == 1


def test_events_are_ordered_by_time(fabricate, asked) -> None:
    run = fabricate(files=busy_files())
    timeline_events = Overview(run.path.parent, slurm_of=lambda cluster: asked).look().selected.timeline_events
    assert [happening.time for happening in timeline_events] == sorted(happening.time for happening in timeline_events)
    assert timeline_events[0].text == "submitted"
    assert json.dumps([happening.text for happening in timeline_events]).count("attempt 1 starts on node[0-3]") == 1


def test_the_timeline_says_which_kind_of_restart_it_was_and_what_replaced_a_node(fabricate, asked) -> None:
    lost = {"node": "node2", "why": "lost", "by": "node3"}
    down = {"node": "node1", "why": "down", "by": ""}
    ends = [
        {"nodes": "node[1-2]", "restarting": True, "left_out": []},
        {"nodes": "node1,node3", "restarting": True, "left_out": [lost]},
        {"nodes": "node1,node3", "restarting": True, "left_out": [lost]},
        {"nodes": "node3", "requeued": True, "left_out": [lost, down]},
        {"nodes": "node[1-2]", "left_out": []},
    ]
    hosts = {
        f"attempts/{number}/host.json": {"attempt": number, "start": 10.0 * number + 1, "end": 10.0 * number + 9.5}
        | {"exit_code": 137, "job_id": "7", "signal": ""}
        | end
        for number, end in enumerate(ends)
    }
    run = fabricate(files={"submission.json": {"job_id": "7"}, **hosts}, created=0.0)
    selected = Overview(run.path.parent, slurm_of=lambda cluster: asked).look().selected
    starts = [event.text for event in selected.timeline_events if " starts " in event.text]
    assert [text.partition(" starts ")[2] for text in starts] == [
        "on node[1-2]",
        "in the same job, node2 replaced by the spare node node3: it did not answer",
        "in the same job, on the same nodes",
        "in the same job, without node1: Slurm lost it",
        "on node[1-2]",
    ]
