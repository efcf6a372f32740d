"""Readers of run files never raise: they return a value for any content, and for a pipe or folder in a file's place."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterctl.launcher.api import json_output
from clusterctl.launcher.diagnosis.diagnose import diagnose_status
from clusterctl.launcher.diagnosis.efficiency import use_of
from clusterctl.launcher.diagnosis.traces import gather
from clusterctl.launcher.display.explanation import explanation
from clusterctl.launcher.observe.attempt import read_evidence, read_host
from clusterctl.launcher.observe.history import History
from clusterctl.launcher.observe.lines import GrowingRecords, last_lines
from clusterctl.launcher.observe.measurements import (
    Measurement,
    measurements_in,
    newest_values,
    pace_of,
    parse_measurement,
)
from clusterctl.launcher.observe.overview import timeline_events
from clusterctl.launcher.observe.rank_events import Event, beginnings, last_events, newest_state, parse_event
from clusterctl.launcher.observe.run_record import read_cancellation, read_finish, read_record, read_submission
from clusterctl.launcher.observe.state import judge
from clusterctl.launcher.observe.telemetry import NodesNow, gpu_utilisation, nodes_now, parse_sample
from clusterctl.shared.errors import ConfigError, SlurmError
from clusterctl.shared.record.fields import Fields, read_fields
from clusterctl.shared.record.heartbeats import read_beats
from clusterctl.shared.record.layout import RunDir

Fabricate = Callable[..., RunDir]
NAMES = (
    *("time", "event", "stage", "host", "node", "pid", "type", "message", "traceback", "hint", "stacks", "code"),
    *("attempt", "job_id", "restart_count", "nodes", "start", "end", "exit_code", "signal", "requeued", "disk_full"),
    *("no_work", "refused", "setup", "setup_ended", "line"),
    *("step", "steps", "epoch", "loss", "seconds", "sampling", "cpu", "gpus", "ranks", "utilisation", "index", "0"),
    *("phase", "since", "step_time", "slow_seconds", "busy_seconds", "waiting", "by", "seen", "suspects", "how"),
    *("still_seconds", "schema_version", "created", "job", "cluster", "resumes", "allocation", "argv", "versions"),
)
WORDS = ("began", "stage", "exception", "exit", "hang", "superseded", "training", "7", "TERM", "\x1b[2J", "silent", "")
SCALARS = (
    st.none()
    | st.booleans()
    | st.sampled_from([0, 1, -1, 1.5, 10**400, -(10**400), 2**63, 1e300, -1e300, math.nan, math.inf, -math.inf])
    | st.integers()
    | st.floats()
    | st.sampled_from(WORDS)
    | st.text(max_size=5)
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5),
    max_leaves=12,
)
RECORDS = st.dictionaries(st.sampled_from(NAMES), JSON, max_size=12)
EVENTS = RECORDS.flatmap(
    lambda record: st.sampled_from(WORDS[:6]).map(lambda kind: record | {"event": kind, "time": record.get("time", 5)})
)
LINES = st.lists(st.one_of(RECORDS, EVENTS).map(json.dumps) | st.text(max_size=10), max_size=5).map(
    lambda lines: ("\n".join(lines) + "\n").encode(errors="replace")
)
CONTENT = RECORDS.map(lambda record: json.dumps(record).encode()) | LINES | st.binary(max_size=60)
PATHS = (
    *("submission.json", "cancel.json", "finished.json", "requeue.json", "accounting.json", "slurm.log"),
    *("attempts/0/host.json", "attempts/0/host.log", "attempts/0/hang.json", "attempts/0/metrics.jsonl"),
    *("attempts/0/events/rank_00000.jsonl", "attempts/0/events/rank_00003.jsonl", "attempts/1/host.json"),
    *("attempts/0/nodes/00000.beats", "attempts/0/nodes/00000.events.jsonl"),
    *("attempts/0/telemetry/node1.jsonl", "attempts/0/logs/rank_00000.err"),
)
NESTED = b"[" * 100_000
FORGIVING = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


class Silent:
    """A Slurm that does not answer."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def silent(*_: object, **__: object) -> None:
            raise SlurmError("no answer")

        return silent


def read_all(run: RunDir) -> None:
    """Read a run in all the ways that `status`, `monitor`, `report` and `why` do."""
    status = judge(read_evidence(read_record(run)), 2_000_000.0)
    json.dumps(json_output.run(status, 2_000_000.0), allow_nan=False)
    found = diagnose_status(status, lambda cluster: Silent())  # type: ignore[arg-type, return-value]
    json.dumps(json_output.why(found), allow_nan=False)
    assert all("\x1b" not in line for line in explanation(found))
    history = History(run)
    history.update(status.attempts)
    timeline_events(status, history)
    use_of(status, history, 2_000_000.0)
    history.split()


@given(st.lists(st.tuples(st.sampled_from(PATHS), CONTENT), max_size=6))
@FORGIVING
def test_a_run_with_arbitrary_file_contents_has_a_status_and_a_diagnosis(
    fabricate: Fabricate, tmp_path: Path, files: list[tuple[str, bytes]]
) -> None:
    run = fabricate()
    try:
        for name, content in files:
            (run.path / name).parent.mkdir(parents=True, exist_ok=True)
            (run.path / name).write_bytes(content)
        read_all(run)
    finally:
        shutil.rmtree(run.path)


def obstruct_by_pipe(path: Path) -> None:
    os.mkfifo(path)


def obstruct_by_folder(path: Path) -> None:
    path.mkdir()


def obstruct_by_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def obstruct_by_dangling_link(path: Path) -> None:
    path.symlink_to("nowhere")


def obstruct_by_loop(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize(
    "obstruct",
    [obstruct_by_pipe, obstruct_by_folder, obstruct_by_device, obstruct_by_dangling_link, obstruct_by_loop],
    ids=lambda obstruct: obstruct.__name__.removeprefix("obstruct_by_"),
)
def test_a_pipe_or_folder_instead_of_a_file_neither_blocks_nor_raises(
    fabricate: Fabricate, name: str, obstruct: Callable[[Path], None]
) -> None:
    run = fabricate()
    (run.path / name).parent.mkdir(parents=True, exist_ok=True)
    obstruct(run.path / name)
    read_all(run)


@given(content=CONTENT)
@FORGIVING
def test_run_json_is_read_or_refused_with_a_hint(fabricate: Fabricate, content: bytes) -> None:
    run = fabricate()
    run.run_json.write_bytes(content)
    try:
        read_record(run)
    except ConfigError as error:
        assert error.message.startswith(f"cannot read {run.run_json}")
        assert error.hint


@given(
    changes=st.dictionaries(
        st.sampled_from(("created", "job", "cluster", "resumes", "allocation", "argv", "versions")), JSON, max_size=3
    )
)
@FORGIVING
def test_a_run_json_with_odd_fields_is_read_or_refused(fabricate: Fabricate, changes: dict[str, Any]) -> None:
    run = fabricate()
    run.run_json.write_text(json.dumps(json.loads(run.run_json.read_text()) | changes))
    try:
        record = read_record(run)
    except ConfigError as error:
        assert error.hint
    else:
        assert math.isfinite(record.submitted)


@given(CONTENT | st.just(NESTED))
@FORGIVING
def test_the_reader_of_each_small_file_returns_a_value(tmp_path: Path, content: bytes) -> None:
    run = RunDir(tmp_path)
    attempt = run.attempt(0)
    attempt.path.mkdir(parents=True, exist_ok=True)
    for path in (run.submission_json, run.cancel_json, run.finished_json, attempt.host_json, attempt.path / "beat"):
        path.write_bytes(content)
    assert read_submission(run).job_id.isdigit() or not read_submission(run).job_id
    cancellation, finish, host = read_cancellation(run), read_finish(run), read_host(attempt)
    assert cancellation is not None
    assert finish is not None
    assert math.isfinite(cancellation.time + finish.time + (host.start or 0) + (host.end or 0))
    assert bool(host.problem) == bool(read_fields(attempt.host_json).problem)
    for beat in read_beats(attempt.path / "beat").values():
        assert math.isfinite(beat.time + beat.since + (beat.step_time or 0) + (beat.busy_seconds or 0) + beat.step)


@given(LINES | st.binary(max_size=200))
@FORGIVING
def test_the_reader_of_each_growing_file_returns_values(tmp_path: Path, content: bytes) -> None:
    attempt = RunDir(tmp_path).attempt(0)
    for path in (attempt.node_events(0), attempt.events(3)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    events, problems = last_events(attempt)
    assert problems == []
    assert all(isinstance(event, Event) for rank in events for event in events[rank])
    newest_state(attempt)
    beginnings(attempt)
    lines = last_lines(path)
    assert all(isinstance(measured, Measurement) for measured in measurements_in(lines))
    assert all(type(value) in (int, float) for value in newest_values(lines).values())
    pace = pace_of(lines)
    assert pace is None or pace.steps_per_second > 0
    assert all(isinstance(record, dict) for record in GrowingRecords(path).read())


@given(RECORDS)
def test_one_record_of_each_kind_has_typed_fields(record: dict[str, Any]) -> None:
    measured, event, sample = parse_measurement(record), parse_event(record), parse_sample(record)
    assert measured.time is None or math.isfinite(measured.time)
    assert measured.step is None or math.isfinite(measured.step)
    assert event is None or event.time is None or math.isfinite(event.time)
    if sample is not None:
        assert math.isfinite(sample.time + (sample.cpu or 0))
        gpu_utilisation({"node": sample})


@given(st.dictionaries(st.just("x"), JSON))
def test_a_field_of_the_wrong_type_counts_as_missing(record: dict[str, Any]) -> None:
    fields = Fields(record)
    value = record.get("x")
    assert fields.text("x") == (value if isinstance(value, str) else "")
    assert fields.flag("x") == (value is True)
    assert fields.whole("x") in (None, value)
    assert fields.number("x") is None or math.isfinite(fields.number("x") or 0)
    assert fields.moment("x") is None or 0 <= (fields.moment("x") or 0) <= 2**37
    assert all(isinstance(text, str) for text in fields.texts("x"))
    assert fields.digits("x").isdigit() or not fields.digits("x")
    assert isinstance(fields.table("x"), Fields)


def test_a_damaged_file_is_named_in_the_diagnosis(fabricate: Fabricate) -> None:
    run = fabricate(files={"attempts/0/host.json": "{", "attempts/0/host.log": ""})
    (run.path / "attempts/0/events").mkdir()
    os.mkfifo(run.attempt(0).events(2))
    trace = gather(judge(read_evidence(read_record(run)), 0.0))
    assert trace.unknown == (
        "0/host.json: not JSON",
        "the events of rank 2, attempt 0: not a regular file",
    )


def test_a_file_of_many_gigabytes_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    path.touch()
    os.truncate(path, 2**40)
    assert read_fields(path).problem == "not JSON"
    assert nodes_now(RunDir(tmp_path).attempt(0), 2) == NodesNow()
