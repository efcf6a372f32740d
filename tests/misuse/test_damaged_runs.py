"""Run directories damaged by a user or a crash: reported or ignored, and never in the way of other runs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.damage import healthy
from support.damage import write as write_run
from support.mistake import CONFIG, NOT_FOUND, SLURM, Desk, check_message, check_plain

from clusterctl import __version__
from clusterctl.launcher import cli
from clusterctl.shared.record.layout import RUN_FORMAT, RunDir

Fabricate = Callable[..., RunDir]
GOOD, BAD = "cora-20260101-000000-aaaa", "cora-20260102-000000-bbbb"
FINISHED = {"finished.json": {"attempt": 0, "time": 5}}
LOG = {
    "attempts/0/logs/rank_00000.out": "hello\n",
    "attempts/0/host.json": {"job_id": "7", "exit_code": 0, "signal": ""},
}


@pytest.fixture
def damaged(desk: Desk, fabricate: Fabricate) -> Callable[[Callable[[Path], object]], RunDir]:
    """A good run, and a newer one that `damage` is applied to."""

    def make(damage: Callable[[Path], object]) -> RunDir:
        fabricate(GOOD, FINISHED | LOG)
        run = fabricate(BAD, FINISHED | LOG)
        damage(run.path)
        return run

    return make


def write(name: str, content: str | bytes) -> Callable[[Path], object]:
    def damage(run: Path) -> None:
        path = run / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    return damage


def change(**changes: object) -> Callable[[Path], object]:
    def damage(run: Path) -> None:
        record = json.loads((run / "run.json").read_text())
        for key, value in changes.items():
            table = record
            *tables, name = key.split("__")
            for part in tables:
                table = table[part]
            table[name] = value
        (run / "run.json").write_text(json.dumps(record))

    return damage


def pipe(name: str) -> Callable[[Path], object]:
    """A named pipe without a writer: opening it blocks."""

    def damage(run: Path) -> None:
        path = run / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        os.mkfifo(path)

    return damage


def folder(name: str) -> Callable[[Path], object]:
    def damage(run: Path) -> None:
        path = run / name
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.mkdir(parents=True)

    return damage


def replaced(name: str, target: str) -> Callable[[Path], object]:
    def damage(run: Path) -> None:
        path = run / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        path.symlink_to(target)

    return damage


UNREADABLE = {
    "run.json is cut off": write("run.json", '{"job": {"na'),
    "run.json is empty": write("run.json", ""),
    "run.json is a list": write("run.json", "[]"),
    "run.json is a number": write("run.json", "5"),
    "run.json is null": write("run.json", "null"),
    "run.json is binary": write("run.json", b"\xff\x00\xfe"),
    "run.json is nested too deep": write("run.json", "[" * 100_000),
    "run.json has a number of 5000 digits": write("run.json", "9" * 5000),
    "run.json is a folder": folder("run.json"),
    "run.json is a link to a device": replaced("run.json", "/dev/null"),
    "run.json is a link to an endless device": replaced("run.json", "/dev/zero"),
    "run.json is a named pipe": pipe("run.json"),
    "run.json is a link to itself": replaced("run.json", "run.json"),
    "run.json has no job": write("run.json", '{"schema_version": 1, "cluster": {}, "created": 1}'),
    "the job is a number": change(job=5),
    "the job is null": change(job=None),
    "the job's workload is a list": change(job__workload=[]),
    "the job's workload is from a later version": change(job__workload="future"),
    "the job's name is a path out of the folder": change(job__name="../../etc"),
    "the job's name contains an escape code": change(job__name="\x1b[2J"),
    "the job's nodes are a string": change(job__resources__nodes="2"),
    "the cluster is a list": change(cluster=[]),
    "the time is a word": change(created="yesterday"),
    "the time is null": change(created=None),
    "the time is NaN": change(created=float("nan")),
}


@pytest.mark.parametrize("damage", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("command", ["status", "logs", "cancel", "release", "rerun"])
def test_an_unreadable_run_is_reported(
    damaged: Callable[..., RunDir], desk: Desk, damage: object, command: str
) -> None:
    run = damaged(damage)
    code, out, err = desk.type([command, run.id])
    assert (code, out) == (CONFIG, "")
    check_message(err, f"cannot read {run.run_json}", f"ls {run.path}")


@pytest.mark.parametrize("damage", UNREADABLE.values(), ids=UNREADABLE)
def test_an_unreadable_run_cannot_be_compared(damaged: Callable[..., RunDir], desk: Desk, damage: object) -> None:
    run = damaged(damage)
    code, out, err = desk.type(["diff", GOOD, run.id])
    assert (code, out) == (CONFIG, "")
    check_message(err, f"cannot read {run.run_json}", f"ls {run.path}")


@pytest.mark.parametrize("damage", UNREADABLE.values(), ids=UNREADABLE)
def test_an_unreadable_run_hides_no_other(damaged: Callable[..., RunDir], desk: Desk, damage: object) -> None:
    damaged(damage)
    code, out, err = desk.type("status")
    assert code == 0
    assert GOOD in out
    assert err.startswith("warning: cannot read")
    assert desk.type(["status", "-o", "json"])[0] == 0


def test_a_run_whose_attempts_cannot_be_listed_hides_no_other(damaged: Callable[..., RunDir], desk: Desk) -> None:
    run = damaged(replaced("attempts", "attempts"))
    code, out, err = desk.type("status")
    assert (code, GOOD in out) == (0, True)
    assert f"warning: cannot read {run.attempts_folder}: Too many levels of symbolic links" in err
    assert desk.type("monitor --once")[0] == 0


def test_an_unreadable_log_is_named_and_the_others_are_shown(damaged: Callable[..., RunDir], desk: Desk) -> None:
    run = damaged(replaced("attempts/0/logs/rank_00001.err", "rank_00001.err"))
    code, out, err = desk.type(["logs", run.id])
    assert (code, "hello" in out) == (0, True)
    assert f"warning: cannot read {run.attempt(0).log(1, 'err')}: Too many levels of symbolic links" in err


@pytest.mark.parametrize(
    "damage",
    [
        change(origins={"name": {"": None}}),
        change(origins=[1]),
        change(resumes=5),
        change(resumes=[5]),
        change(after=5),
        change(after=[5, {"run": "../x", "condition": "finished"}]),
        pipe("script.sh"),
        pipe("cancel.json"),
        pipe("git.patch"),
        change(git=[], changes={"key": 1}, rerun_of=5),
    ],
)
@pytest.mark.parametrize("command", ["resume", "rerun"])
def test_resume_and_rerun_reach_sbatch_despite_other_damage(
    desk: Desk, damage: Callable[[Path], object], command: str
) -> None:
    desk.use_slurm(sbatch="echo 'sbatch: error: no nodes' >&2; exit 1")
    files = healthy(desk.runs, BAD)
    del files["finished.json"], files["cancel.json"]
    write_run(desk.runs / BAD, files)
    damage(desk.runs / BAD)
    code, out, err = desk.type([command, BAD])
    assert (code, out) == (SLURM, ""), err
    check_message(err, "sbatch refused the job: no nodes", "")


@pytest.mark.parametrize("version", [3, 0, "1", None], ids=repr)
@pytest.mark.parametrize("command", ["status", "logs", "why", "cancel", "resume", "rerun", "report"])
def test_a_run_in_another_format_is_reported_and_hides_no_other(
    damaged: Callable[..., RunDir], desk: Desk, version: object, command: str
) -> None:
    run = damaged(change(schema_version=version, versions={"clusterctl": "9.8.7"}, job="of another shape"))
    code, out, err = desk.type([command, run.id])
    assert (code, out) == (CONFIG, "")
    check_message(err, "by clusterctl 9.8.7 in format", "use clusterctl 9.8.7 for this run")
    assert f"clusterctl {__version__} reads format {RUN_FORMAT}" in err
    code, out, err = desk.type("status")
    assert code == 0
    assert GOOD in out
    assert "9.8.7" in err


SURVIVED = {
    "attempts is a file": lambda run: (shutil.rmtree(run / "attempts"), (run / "attempts").write_text("")),
    "attempts is a dangling link": replaced("attempts", "nowhere"),
    "an attempt is a file": lambda run: (run / "attempts" / "1").write_text(""),
    "an attempt has a strange name": lambda run: (run / "attempts" / "٣").mkdir(),
    "an attempt has a huge number": lambda run: (run / "attempts" / ("9" * 200)).mkdir(),
    "an attempt's name has a superscript": lambda run: (run / "attempts" / "²").mkdir(),
    "an attempt has copies beside it": lambda run: [
        (run / "attempts" / name).mkdir() for name in ("0.bak", "old_0", "00")
    ],
    "a log is a link to itself": replaced("attempts/0/logs/rank_00000.out", "rank_00000.out"),
    "a log has no rank": write("attempts/0/logs/rank_x.out", "x"),
    "a log is a folder": folder("attempts/0/logs/rank_00001.out"),
    "a log is a dangling link": replaced("attempts/0/logs/rank_00000.out", "nowhere"),
    "a log is binary": write("attempts/0/logs/rank_00000.out", bytes(range(256)) * 100),
    "the events have no rank": write("attempts/0/events/rank_.jsonl", ""),
    "the node's events have no rank": write(
        "attempts/0/nodes/00000.events.jsonl",
        '{"event": "exit", "code": 1}\n{"rank": -3, "event": "exit", "code": 1}\n',
    ),
    "a node's events have a huge node number": write("attempts/0/nodes/" + "9" * 200 + ".events.jsonl", "{}\n"),
    "the events are a folder": folder("attempts/0/events/rank_00000.jsonl"),
    "the events are nonsense": write(
        "attempts/0/events/rank_00000.jsonl", '{"event": []}\n{"event": "stage", "stage": {}}\n'
    ),
    "the metrics are nonsense": write(
        "attempts/0/metrics.jsonl", '{"loss": 1e999, "epoch": NaN}\n[]\n{"step": "x"}\n\x00\n'
    ),
    "the metrics have huge numbers": write("attempts/0/metrics.jsonl", '{"epoch": ' + "9" * 400 + "}\n"),
    "the metrics' names contain escape codes": write("attempts/0/metrics.jsonl", '{"\\u001b[2J": 1}\n'),
    "the metrics are a folder": folder("attempts/0/metrics.jsonl"),
    "host.json is a list": write("attempts/0/host.json", "[]"),
    "host.json is cut off": write("attempts/0/host.json", '{"attem'),
    "host.json is a folder": folder("attempts/0/host.json"),
    "host.json has wrong types": write("attempts/0/host.json", '{"job_id": [], "start": "x", "exit_code": 1e999}'),
    "submission.json is a list": write("submission.json", "[1]"),
    "submission.json is a folder": folder("submission.json"),
    "submission.json names an option": write("submission.json", '{"job_id": "--user=root"}'),
    "cancel.json is a folder": folder("cancel.json"),
    "finished.json is null": write("finished.json", "null"),
    "finished.json is a folder": folder("finished.json"),
    "hang.json is nonsense": write("attempts/0/hang.json", '{"seen": "x", "suspects": {"a": 1}}'),
    "hang.json is odd": write("attempts/0/hang.json", '{"seen": 7, "suspects": ["x", 1e400], "still_seconds": 1e400}'),
    "a heartbeat is binary": write("attempts/0/nodes/00000.beats", b"\x00\xff" * 300),
    "a heartbeat has huge times": write(
        "attempts/0/nodes/00000.beats", '{"rank": 0, "time": 1e308, "phase": "\\u001b[2J", "since": -1e308, "step": 3}'
    ),
    "an exception contains escape codes": write(
        "attempts/0/events/rank_00000.jsonl",
        '{"event": "exception", "time": 1, "type": "\\u001b[2JE", "message": "\\u202e", "traceback": "\\u009b2J"}\n',
    ),
    "stderr contains escape codes": write("attempts/0/logs/rank_00000.err", b"\x1b]0;owned\x07\xff\n"),
    "requeue.json is a list": write("requeue.json", "[]"),
    "cancel.json has no user": write("cancel.json", '{"by": ["x"], "time": 1e400}'),
    **{
        f"{name} is a named pipe": pipe(name)
        for name in (
            "submission.json",
            "cancel.json",
            "slurm.log",
            "attempts/0/host.json",
            "attempts/0/host.log",
            "attempts/0/hang.json",
            "attempts/0/metrics.jsonl",
            "attempts/0/events/rank_00000.jsonl",
            "attempts/0/nodes/00000.beats",
            "attempts/0/nodes/00000.events.jsonl",
            "attempts/0/telemetry/node1.jsonl",
            "attempts/0/logs/rank_00000.err",
        )
    },
    "telemetry is odd": write(
        "attempts/0/telemetry/node1.jsonl",
        '{"time": 1, "cpu": '
        + "9" * 400
        + ', "gpus": [{"utilisation": 1e999}], "ranks": {"'
        + "9" * 5000
        + '": {}}}\n',
    ),
    "the times are huge": write(
        "attempts/0/host.json", '{"job_id": "7", "start": 1e300, "end": NaN, "exit_code": ' + "9" * 300 + "}"
    ),
    "the metrics' times and steps are huge": write(
        "attempts/0/metrics.jsonl", '{"time": ' + "9" * 400 + ', "step": ' + "9" * 400 + ', "loss": 1}\n' * 2
    ),
    "finished.json is nonsense": write("finished.json", '{"time": "never"}'),
}


# In `make test`, every other damage is that of an ended run.
@pytest.mark.parametrize(
    ("ended", "damage"),
    [
        pytest.param(ended, damage, id=f"{name}-{ended}", marks=pytest.mark.long if ended == place % 2 else ())
        for place, (name, damage) in enumerate(SURVIVED.items())
        for ended in (True, False)
    ],
)
def test_damaged_files_are_ignored(
    damaged: Callable[..., RunDir], desk: Desk, damage: Callable[[Path], object], ended: bool
) -> None:
    desk.use_slurm()
    run = damaged(lambda run: (None if ended else (run / "finished.json").unlink(), damage(run)))
    for typed in (
        ["status"],
        ["status", run.id],
        ["status", "-o", "json"],
        ["logs", run.id],
        ["logs", run.id, "--host"],
        ["why", run.id],
        ["why", run.id, "-o", "json"],
        ["diff", run.id, GOOD, "--code"],
        ["diff", GOOD, run.id, "-o", "json"],
        *([] if ended else [["report", run.id, "--output", "-"], ["monitor", "--once", run.id]]),
    ):
        code, out, err = desk.type(typed)
        assert code == 0, err
        if typed[0] in ("status", "why", "diff"):
            check_plain(out + err)
        if typed[0] == "status":
            assert GOOD in out or run.id in typed


@pytest.mark.parametrize("job_id", ["--user=root", "7;touch hacked", "", " ", "*", "7_[1-9]", "-1", "\x1b[2J"])
def test_an_invalid_job_id_reaches_no_slurm_command(desk: Desk, fabricate: Fabricate, job_id: str) -> None:
    desk.use_slurm()
    fabricate(GOOD, {"submission.json": {"job_id": job_id}})
    desk.type(["cancel", "--yes", GOOD])
    desk.type(["release", GOOD])
    assert desk.asked("scancel") == desk.asked("scontrol") == 0


def test_foreign_folders_are_ignored(desk: Desk) -> None:
    for name in ("notes", "cora-20260101-000000", "-20260101-000000-aaaa", "cora-20260101-000000-aaaa.bak"):
        (desk.runs / name).mkdir(parents=True)
    desk.write("../runs/\x1b[2J\u202e-20260101-000000-aaaa/run.json", "{}")
    desk.write("../runs/cora-20260101-000000-bbbb", "a file")
    (desk.runs / "cora-20260101-000000-cccc").mkdir()
    assert desk.type("status")[:2] == (0, "")
    assert desk.type("status @last")[0] == NOT_FOUND


def test_a_run_that_is_a_symlink_is_read_but_not_written(desk: Desk, fabricate: Fabricate) -> None:
    run = fabricate(GOOD, FINISHED)
    run.path.rename(desk.folder / "elsewhere")
    run.path.symlink_to(desk.folder / "elsewhere")
    before = sorted((desk.folder / "elsewhere").iterdir())
    assert desk.type(["cancel", GOOD])[0] == 0
    assert sorted((desk.folder / "elsewhere").iterdir()) == before


NASTY = ("\ud800", "\udcff x", "\x1b]0;x\x07", 'a,b\n"c')
EVERYWHERE = (
    ["export", BAD, "--force"], ["report", BAD, "--output", "report.html"], ["report", BAD, "--output", "-"],
    ["report", BAD, GOOD, "--output", "two.html"], ["status", "-o", "csv"], ["status", "-o", "json"],
    ["status", "-o", "jsonl"], ["status", BAD, "-o", "wide"], ["status", BAD], ["why", BAD], ["why", BAD, "-o", "json"],
    ["logs", BAD, "-t"], ["logs", BAD, "--errors"], ["monitor", BAD, "--once"], ["diff", GOOD, BAD], ["usage"],
    ["usage", "-o", "csv"], ["notify", BAD],
)  # fmt: skip


@pytest.mark.parametrize("text", NASTY)
def test_text_that_no_file_can_hold_stops_no_command(text: str, desk: Desk, fabricate: Fabricate) -> None:
    numbers = {"loss": 1.0, text: 1.0, "huge": 10**400, "long": 10**4000, "nan": float("nan"), "most": float("inf")}
    records = [{"step": step, "time": 1e6 + step, **numbers} for step in range(3)]
    files = FINISHED | LOG | {
        "attempts/0/metrics.jsonl": records,
        "attempts/0/logs/rank_00000.err": b"a \xff \xed\xa0\x80 line\n".decode(errors="surrogateescape"),
        "attempts/0/events/rank_00000.jsonl": [
            {"time": 1e6, "event": "began", "node": text},
            {"time": 2e6, "event": "exception", "type": text, "message": text, "traceback": text},
        ],
        "attempts/0/host.json": {"job_id": "7", "exit_code": 1, "signal": text, "nodes": text},
        "attempts/0/hang.json": {"rank": 0, "text": text},
        "submission.json": {"job_id": text},
    }  # fmt: skip
    logged = files.pop("attempts/0/logs/rank_00000.err")
    fabricate(GOOD, FINISHED | LOG)
    run = fabricate(BAD, files)
    (run.path / "attempts/0/logs/rank_00000.err").write_bytes(logged.encode(errors="surrogateescape"))
    record = json.loads(run.run_json.read_text())
    record["argv"] = ["submit", text]
    record["origins"] = {text: text}
    record["git"] = {"commit": text, "dirty": True}
    run.run_json.write_text(json.dumps(record))
    cli.prepare_streams()
    for words in EVERYWHERE:
        code, _, errors = desk.type(words)
        assert code in (0, 1, 2, 3, 4), (words, errors)
        assert "Traceback" not in errors, (words, errors)
        assert "no such option" not in errors, (words, errors)
