"""The cache of ended runs: it saves reading them, and never contradicts their directories."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.recorded import claim

from clusterctl.launcher.observe import ended_runs
from clusterctl.launcher.observe.attempt import read_evidence
from clusterctl.launcher.observe.ended_runs import QUIET_SECONDS, EndedRuns
from clusterctl.launcher.observe.run_record import read_record
from clusterctl.launcher.observe.slurm_log import EndedBy
from clusterctl.launcher.observe.state import judge
from clusterctl.launcher.observe.status import Filter, newest
from clusterctl.shared.record.files import read_json, write_json
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.marks import Refusal
from clusterctl.shared.record.states import State

Fabricate = Callable[..., RunDir]
FAILED = {
    "submission.json": {"job_id": "7", "time": 1.0},
    "attempts/0/host.json": {"job_id": "7", "start": 1.0, "end": 2.0, "exit_code": 3, "refused": "restart-limit"},
    "attempts/0/host.log": "srun: error: node2: task 3: Exited with exit code 3\n",
    "attempts/0/events/rank_00000.jsonl": [{"time": 1.5, "event": "stage", "stage": "training"}],
    "attempts/0/metrics.jsonl": [
        {"time": 1.0 + step, "step": step, "steps": 200, "loss": 2.0, "val_accuracy": 0.1} for step in range(200)
    ],
}
FINISHED = {"attempts/0/host.json": {"start": 1.0, "end": 2.0, "exit_code": 0}, "finished.json": {"time": 2.0}}


def later() -> float:
    return time.time() + 2 * QUIET_SECONDS


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the runs whose files were read."""
    ids: list[str] = []
    monkeypatch.setattr(ended_runs, "read_record", lambda run: ids.append(run.id) or read_record(run))
    return ids


@pytest.fixture
def kept(tmp_path: Path) -> Callable[[], EndedRuns]:
    """The cache as another process reads it minutes later."""
    return lambda: EndedRuns(tmp_path / "cache" / "runs.json", later)


def look(run: RunDir, ended: EndedRuns) -> Any:
    evidence = ended.evidence(run)
    ended.save()
    return evidence


def test_an_ended_run_is_read_once_by_all_processes(fabricate: Fabricate, kept: Any, read: list[str]) -> None:
    run = fabricate(files=FAILED)
    for _ in range(3):
        evidence = look(run, kept())
        assert evidence == read_evidence(read_record(run))
        assert kept().state(run) is State.FAILED
    assert evidence.last.death.code == 3
    assert evidence.last.refused is Refusal.RESTART_LIMIT
    assert evidence.last.loss_trend.score[0].name == "val_accuracy"
    assert read == [run.id]


def test_setup_lines_that_failed_and_who_ended_the_job_are_cached(fabricate: Fabricate, kept: Any) -> None:
    host = {"start": 1.0, "end": 2.0, "exit_code": 143, "signal": "TERM", "setup": [{"line": 1, "code": 127}]}
    log = "=== 0 ===\nslurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-02T03:04:05 ***\n"
    run = fabricate(files={"attempts/0/host.json": host, "slurm.log": log})
    for _ in range(2):
        last = look(run, kept()).last
        assert (last.ended_by, last.setup[0].code) == (EndedBy.CANCELLATION, 127)
        assert isinstance(last.ended_by, EndedBy)


def test_the_nodes_that_a_run_went_on_without_are_cached(fabricate: Fabricate, kept: Any) -> None:
    gone = {"excluded": [{"node": "n2", "why": "killed"}], "kills": {"step": 5, "times": 2, "without": "n2"}}
    lost = {"lost": ["n4"], "left_out": [{"node": "n4", "why": "lost", "by": "n5"}]}
    files: dict[str, Any] = {
        "attempts/0/host.json": {"attempt": 0, "start": 1.0, "end": 2.0, "exit_code": 137, "requeued": True, **gone},
        "attempts/1/host.json": {"attempt": 1, "start": 3.0, "end": 4.0, "exit_code": 69, "node_setup_failed": True}
        | lost,
        "attempts/1/node_setup/n1.json": {"line": 1, "code": 3},
    }
    run = fabricate(files=files)
    for _ in range(2):
        evidence = look(run, kept())
        assert evidence == read_evidence(read_record(run))
        assert evidence.attempts[0].kills.without == "n2"
        status = judge(evidence, later())
        assert [str(one) for one in status.left_out] == [
            "without n2: a rank was killed there after one had been killed at the same step",
            "n4 replaced by the spare node n5: it did not answer",
        ]


def test_predecessors_are_cached(fabricate: Fabricate, kept: Any) -> None:
    run = fabricate(files=FAILED)
    after = [{"run": "prepare-20260102-030405-00a1", "condition": "finished"}]
    write_json(run.run_json, read_json(run.run_json) | {"after": after})
    for _ in range(2):
        assert [one._asdict() for one in look(run, kept()).record.predecessors] == after


def test_a_cache_entry_is_small(fabricate: Fabricate, kept: Any) -> None:
    look(fabricate("cora-20260102-030405-0001", FAILED), known := kept())
    before = known.file.stat().st_size
    look(fabricate("cora-20260102-030405-0002", FAILED), kept())
    assert known.file.stat().st_size - before < 1000


def test_filtering_by_state_does_not_look_up_other_runs(fabricate: Fabricate, kept: Any, read: list[str]) -> None:
    for number in range(10):
        run = fabricate(f"cora-20260102-030405-000{number}", FAILED if number == 4 else FINISHED)
    for _ in range(2):
        found = newest(run.path.parent, Filter(states=frozenset({State.FAILED})), None, ended := kept())
        ended.save()
        assert [status.record.run.id for status in found.statuses] == ["cora-20260102-030405-0004"]
    assert len(read) == 10
    assert len(ended._read) == 1


def test_a_run_without_a_recorded_end_is_not_cached(fabricate: Fabricate, kept: Any) -> None:
    """Its duration would change with the clock."""
    run = fabricate(files={"attempts/0/host.json": {"start": 1.0, "exit_code": 3}})
    look(run, kept())
    assert kept().state(run) is None


def test_a_run_that_ended_just_now_is_read_again(fabricate: Fabricate, tmp_path: Path, read: list[str]) -> None:
    run = fabricate(files=FAILED)
    for _ in range(2):
        look(run, EndedRuns(tmp_path / "cache" / "runs.json"))
    assert len(read) == 2


def resume(run: RunDir) -> None:
    write_json(run.run_json, read_json(run.run_json) | {"resumes": [{"time": 9.0, "attempts": 1, "job_id": "7"}]})


def test_a_resumed_run_keeps_its_earlier_attempts(fabricate: Fabricate, kept: Any) -> None:
    run = fabricate(files=FAILED | {"attempts/1/host.json": {"job_id": "8", "end": 3.0, "exit_code": 0}})
    resume(run)
    first = look(run, kept())
    assert first.record.past_jobs == {"7"}
    assert kept().evidence(run) == first
    assert look(run, kept()) == first


def restart(run: RunDir) -> None:
    claim(run.attempt(1))


def replace(run: RunDir) -> None:
    aside = run.path.with_name("aside")
    shutil.copytree(run.path, aside)  # keeps the files' times
    shutil.rmtree(run.path)
    aside.rename(run.path)
    write_json(run.attempt(0).host_json, {"start": 1.0, "end": 2.0, "exit_code": 0})


@pytest.mark.parametrize("change", [resume, restart, replace])
def test_a_changed_run_is_read_again(
    change: Callable[[RunDir], None], fabricate: Fabricate, kept: Any, read: list[str]
) -> None:
    run = fabricate(files=FAILED)
    first = look(run, kept())
    known = kept()
    assert known.evidence(run) == first
    change(run)
    for ended in (known, kept()):
        assert ended.state(run) is None
        assert ended.evidence(run) == read_evidence(read_record(run)) != first


def test_a_renamed_run_is_read_under_its_new_name_and_a_removed_one_forgotten(
    fabricate: Fabricate, kept: Any, read: list[str]
) -> None:
    run, other = fabricate(files=FAILED), fabricate("b-20260102-030405-0001", FINISHED)
    look(run, kept())
    renamed = RunDir(run.path.rename(run.path.with_name("a-20260102-030405-0002")))
    assert look(renamed, kept()).record.run == renamed
    assert [*kept()._load()] == [renamed.id]
    shutil.rmtree(renamed.path)
    look(other, kept())
    assert [*kept()._load()] == [other.id]


def test_running_runs_and_ends_known_only_to_slurm_are_not_cached(
    fabricate: Fabricate, kept: Any, read: list[str]
) -> None:
    at_work = fabricate(files={"attempts/0/host.json": {"start": 1.0}})
    preempted = fabricate("b-20260102-030405-0001", {"attempts/0/host.json": {"exit_code": 143, "signal": "TERM"}})
    cancelled = fabricate("c-20260102-030405-0001", {"cancel.json": {"time": 1.0}})
    for run in (at_work, preempted, cancelled):
        look(run, kept())
        assert kept().state(run) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"failed"', '"asleep"'),
        lambda text: "\0" * len(text),
        lambda text: "[" * 100_000,
    ],
)
def test_a_damaged_cache_is_rewritten(
    damage: Callable[[str], str], fabricate: Fabricate, kept: Any, read: list[str]
) -> None:
    run = fabricate(files=FAILED)
    first = look(run, kept())
    file = kept().file
    whole = file.read_text()
    file.write_text(damage(whole))
    assert look(run, kept()) == first
    assert file.read_text() == whole


def test_a_cache_of_another_version_or_writable_by_others_is_not_read(
    fabricate: Fabricate, kept: Any, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = fabricate(files=FAILED)
    look(run, kept())
    monkeypatch.setattr(ended_runs, "_FORM", ["another"])
    look(run, kept())
    kept().file.parent.chmod(0o777)
    look(run, kept())
    assert len(read) == 3


def test_the_later_of_two_processes_wins_and_the_other_runs_are_read_again(
    fabricate: Fabricate, kept: Any, read: list[str]
) -> None:
    runs = [fabricate(files=FAILED), fabricate("b-20260102-030405-0001", FINISHED)]
    one, other = kept(), kept()
    one.evidence(runs[0])
    other.evidence(runs[1])
    one.save()
    other.save()
    assert [kept().state(run) for run in runs] == [None, State.FINISHED]
    assert look(runs[0], kept()).last.exit_code == 3
    assert [kept().state(run) for run in runs] == [State.FAILED, State.FINISHED]


def test_a_full_disk_does_not_affect_the_answer(fabricate: Fabricate, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("no folder")
    assert look(fabricate(files=FAILED), EndedRuns(tmp_path / "cache" / "runs.json", later)).last.exit_code == 3


def test_the_cache_is_json(fabricate: Fabricate, kept: Any) -> None:
    look(fabricate(files=FAILED), kept())
    digest, *lines = kept().file.read_text().split("\n")
    assert len(digest) == 64
    assert len([*map(json.loads, lines)]) == 1 + 1 + 2  # the rows, the run, its job and its cluster
