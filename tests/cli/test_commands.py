"""`status`, `logs`, `cancel` and `release`: from the command line to the output and the calls to Slurm."""

from __future__ import annotations

import csv
import io
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.launcher import cli
from clusterctl.launcher.display.logs import local_stamp
from clusterctl.shared.record.files import read_json, write_json
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.stamp import stamp

Fabricate = Callable[..., RunDir]
Typed = Callable[..., tuple[int, str, str]]
A, B = "cora-20260101-000000-aaaa", "cora-20260102-000000-bbbb"
SUBMITTED = {"submission.json": {"job_id": "12"}}
FINISHED = {"finished.json": {"attempt": 0, "time": 5}}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A login node whose Slurm commands on PATH record their arguments; squeue prints `site/queue`."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "queue").write_text("")
    for command in ("sbatch", "squeue", "scancel", "scontrol"):
        path = folder / command
        answer = f'cat "{folder}/queue"' if command == "squeue" else ""
        path.write_text(f'#!/bin/sh\necho "{command} $*" >> "{folder}/calls"\n{answer}\n')
        path.chmod(0o700)
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "site.toml").write_text(f'name = "site"\nruns = "{tmp_path}/runs"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLUSTERCTL_CLUSTER", "site")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def calls(site: Path) -> list[str]:
    path = site / "calls"
    return [line for line in path.read_text().splitlines() if not line.startswith("squeue")] if path.exists() else []


def queue(site: Path, *jobs: tuple[str, str]) -> None:
    lines = ["\x1f".join([number, state, *["0"] * 6, ""]) for number, state in jobs]
    (site / "queue").write_text("\n".join(lines))


@pytest.fixture
def typed(site: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> Typed:
    def run(*words: str) -> tuple[int, str, str]:
        code = cli.run(words)
        out, err = capfdbinary.readouterr()
        return code, out.decode(), err.decode()

    return run


def test_status_without_runs_shows_what_to_type(typed: Typed) -> None:
    assert typed("status") == (0, "", "no runs yet; try: clusterctl submit cora --follow\n")


def test_status_shows_the_newest_runs_first(typed: Typed, fabricate: Fabricate) -> None:
    for run in (A, B):
        fabricate(run, FINISHED)
    _, out, _ = typed("status")
    assert [line.split()[0] for line in out.splitlines()] == ["RUN", B, A]
    _, out, _ = typed("status", "-n", "1")
    assert [line.split()[0] for line in out.splitlines()] == ["RUN", B]
    _, out, _ = typed("status", A)
    assert [line.split()[0] for line in out.splitlines()] == ["RUN", A]


def test_own_metrics_sort_runs_and_are_columns_in_csv(typed: Typed, fabricate: Fabricate) -> None:
    for run, own in ((A, 0.5), (B, 0.25)):
        metrics = [{"step": 1, "steps": 2, "my score": own, "loss": 1 - own, "sampling": 0.1}]
        fabricate(run, {**FINISHED, "attempts/0/metrics.jsonl": metrics})
    _, out, _ = typed("status", "-o", "csv", "--sort", "my score")
    head, *rows = out.splitlines()
    assert head.endswith(",work,gpu_hours,note,tags,my score")
    assert [(row.split(",")[0], row.split(",")[-1]) for row in rows] == [(A, "0.5"), (B, "0.25")]
    _, out, _ = typed("status", "--sort", "LOSS")
    assert [line.split()[0] for line in out.splitlines()] == ["RUN", A, B]
    code, out, err = typed("status", "--sort", "accuracy")
    assert (code, out) == (2, "")
    assert "nothing to sort by: accuracy\nhint: one of run, age," in err


def test_scores_of_any_name_are_columns_in_csv(typed: Typed, fabricate: Fabricate) -> None:
    others = {"val_error_worst": 3.0, "val_hits@20": 0.5, "test_score_mine": 0.25, "started": 7.0, "after": 8.0}
    metrics = [{"step": 1, "steps": 2, "loss": 1.0}, {"step": 2, "steps": 2, **others}]
    fabricate(A, {**FINISHED, "attempts/0/metrics.jsonl": metrics})
    (row,) = csv.DictReader(io.StringIO(typed("status", A, "-o", "csv")[1]))
    shown = {name: float(row[name]) for name in ("val_error_worst", "val_hits@20", "test_score_mine", "loss")}
    assert shown == {**{name: others[name] for name in shown if name != "loss"}, "loss": 1.0}
    assert (row["metrics.started"], row["metrics.after"]) == ("7.0", "8.0")  # beside the columns with these names
    assert row["started"] != "7.0"


def test_notes_and_tags_are_shown_and_select_runs(typed: Typed, fabricate: Fabricate) -> None:
    for run, tags in ((A, ["paper", "v:1"]), (B, ["paper"])):
        directory = fabricate(run, FINISHED)
        record = read_json(directory.run_json)
        record["job"] |= {"note": "lower \N{GREEK SMALL LETTER MU}", "tags": tags}
        write_json(directory.run_json, record)
    _, out, _ = typed("status", "-o", "wide")
    assert [line.split()[0] for line in out.splitlines() if "lower \N{GREEK SMALL LETTER MU}" in line] == [B, A]
    assert "paper,v:1" in out
    assert [line.split()[0] for line in typed("status", "--tag", "v:1")[1].splitlines()] == ["RUN", A]
    assert [line.split()[0] for line in typed("status", "--tag", "paper")[1].splitlines()] == ["RUN", B, A]
    assert typed("status", "--tag", "paper", "--tag", "x") == (0, "", "no matching runs\n")
    _, out, _ = typed("status", "--tag", "paper", "--tag", "v:1", "-o", "json")
    (found,) = json.loads(out)["runs"]
    assert (found["id"], found["note"], found["tags"]) == (A, "lower \N{GREEK SMALL LETTER MU}", ["paper", "v:1"])
    assert typed("status", A, "--tag", "paper")[0] == 2
    assert typed("status", "--tag", "v:1", "-o", "csv")[1].endswith(",paper v:1\n")


def test_the_note_of_a_failed_run_is_its_cause(typed: Typed, fabricate: Fabricate) -> None:
    event = {"event": "exception", "stage": "training", "step": 3, "time": 50}
    event |= {"type": "ValueError", "message": "lr is negative"}
    host = {"job_id": "12", "start": 10, "end": 60, "exit_code": 1}
    for run in (A, B):
        files = {"attempts/0/events/rank_00000.jsonl": [{"event": "began", "node": "node1"}, event]}
        fabricate(run, {"submission.json": {"job_id": "12"}, "attempts/0/host.json": host, **files})
    _, out, _ = typed("status")
    assert [line.count("ValueError: lr is negative") for line in out.splitlines()] == [0, 1, 1]
    assert "exit code 1" not in out


def test_status_json_has_a_schema_version_and_state_names(typed: Typed, fabricate: Fabricate) -> None:
    fabricate(A, FINISHED)
    code, out, err = typed("status", "@last", "-o", "json")
    content = json.loads(out)
    assert (code, err, content["schema_version"]) == (0, "", 1)
    assert [(run["id"], run["stage"]) for run in content["runs"]] == [(A, "finished")]


def test_status_is_also_written_as_jsonl_and_csv(typed: Typed, fabricate: Fabricate) -> None:
    for run in (A, B):
        fabricate(run, FINISHED)
    _, out, _ = typed("status", "-o", "jsonl")
    assert [json.loads(line)["id"] for line in out.splitlines()] == [B, A]
    _, out, _ = typed("status", "-o", "csv")
    head, *rows = out.splitlines()
    assert head.startswith("id,job,sweep,stage,sure,")
    assert [row.split(",")[:4] for row in rows] == [[B, "cora", "", "finished"], [A, "cora", "", "finished"]]
    assert typed("status", "--name", "x*", "-o", "csv")[1] == head + "\n"
    assert "NOTE" not in typed("status", "-o", "wide")[1]  # no run has one


def test_status_says_how_many_older_runs_it_leaves_out(typed: Typed, fabricate: Fabricate) -> None:
    runs = [f"cora-20260102-0304{number:02}-0000" for number in range(12)]
    for run in runs:
        fabricate(run, FINISHED)
    for words in ((), ("-o", "json"), ("-o", "csv"), ("--sort", "age")):
        assert typed("status", *words)[2] == "2 older not shown: add -a, or --state alive\n"
    for words in (("-a",), ("-n", "12"), ("--name", "other*", "-n", "1"), (runs[0],)):
        assert "older" not in typed("status", *words)[2]
    assert typed("status", "--state", "finished", "-n", "7")[2] == "5 older not shown: add -a\n"


def test_status_filters_by_state_and_reports_if_none_matches(
    typed: Typed, fabricate: Fabricate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # in narrow terminals, notes stand below their runs
    fabricate(A, FINISHED)
    fabricate(B, {"attempts/0/host.json": {"start": 1, "end": 2, "exit_code": 3}})
    assert [line.split()[0] for line in typed("status", "--state", "failed,lost")[1].splitlines()] == ["RUN", B]
    assert len(typed("status", "--state", "ended")[1].splitlines()) == 3
    assert typed("status", "--state", "running") == (0, "", "no matching runs\n")


def test_in_a_pipe_each_run_is_one_whole_line(
    typed: Typed, fabricate: Fabricate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    metrics = {f"{letter * 90} of my own": 0.125 for letter in "abc"}
    fabricate(A, {**FINISHED, "attempts/0/metrics.jsonl": [{"time": 4, "step": 1, "steps": 1, **metrics}]})
    fabricate(B, FINISHED)
    head, *lines = typed("status")[1].splitlines()
    assert [line.split()[0] for line in lines] == [B, A]
    assert "NOTE" in head
    assert lines[1].endswith(f"{'c' * 90} of my own 0.1250")
    monkeypatch.setenv("COLUMNS", "120")
    assert "..." in typed("status")[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--state", "finish"), "error: no such state: finish\nhint: did you mean finished?\n"),
        (("--since", "tomorrow"), "error: --since tomorrow: not a duration"),
        (("--watch", "-o", "json"), "error: --watch cannot write json"),
        (("cora", "--state", "failed"), "error: RUN cannot be combined with"),
    ],
)
def test_contradictory_options_of_status_are_refused_with_a_hint(
    typed: Typed, words: tuple[str, ...], message: str
) -> None:
    code, out, err = typed("status", *words)
    assert (code, out) == (2, "")
    assert err.startswith(message)


def test_if_slurm_fails_status_shows_the_files_and_warns(typed: Typed, site: Path, fabricate: Fabricate) -> None:
    fabricate(A, SUBMITTED)
    (site / "squeue").write_text("#!/bin/sh\necho 'squeue: error: Unable to contact slurm controller' >&2\nexit 1\n")
    code, out, err = typed("status")
    assert code == 0
    assert "queued?" in out
    assert err.startswith("warning: squeue: Unable to contact slurm controller\nhint: ")


def test_status_of_a_damaged_run_is_an_error_without_a_traceback(typed: Typed, fabricate: Fabricate) -> None:
    fabricate(A, {"run.json": "{"})
    code, out, err = typed("status", A)
    assert (code, out) == (3, "")
    assert err.startswith("error: cannot read ")
    fabricate(B, FINISHED)
    code, out, err = typed("status")
    assert code == 0
    assert B in out
    assert err.startswith("warning: cannot read ")


def test_an_unknown_run_is_not_found(typed: Typed, fabricate: Fabricate) -> None:
    fabricate(A, FINISHED)
    for command in ("status", "logs", "cancel", "release"):
        assert typed(command, "crao") == (5, "", "error: no run named: crao\nhint: did you mean cora?\n")


def test_logs_mark_each_line_with_its_rank_and_keep_its_bytes(typed: Typed, fabricate: Fabricate) -> None:
    logs = {f"attempts/0/logs/rank_0000{rank}.out": f"hello \x1b[1m{rank}\n" for rank in (0, 1)}
    fabricate(A, FINISHED | logs | {"attempts/0/events/rank_00000.jsonl": "{}\n"})
    assert typed("logs", "cora") == (0, "r00 hello \x1b[1m0\nr01 hello \x1b[1m1\n", "")
    assert typed("logs", "cora", "--rank", "1") == (0, "hello \x1b[1m1\n", "")
    assert typed("logs", "cora", "--stderr") == (0, "", "")


def test_logs_are_merged_and_labelled_and_identical_lines_are_shown_once(typed: Typed, fabricate: Fabricate) -> None:
    began = {
        f"attempts/0/events/rank_0000{rank}.jsonl": [{"event": "began", "node": f"node{rank // 2}"}]
        for rank in range(4)
    }
    logs = {
        f"attempts/0/logs/rank_0000{rank}.out": f"{stamp(100)}ready\n{stamp(110 - rank)}rank {rank}\n"
        for rank in range(4)
    }
    fabricate(A, FINISHED | began | logs)
    assert typed("logs", A)[1].splitlines() == [
        "r00-03 x4 ready", "r03 node1 rank 3", "r02 node1 rank 2", "r01 node0 rank 1", "r00 node0 rank 0",
    ]  # fmt: skip
    assert len(typed("logs", A, "--no-collapse")[1].splitlines()) == 8
    assert typed("logs", A, "--node", "node1", "--grep", "rank [0-3]", "--times")[1].splitlines() == [
        f"r03 node1 {local_stamp(107)}rank 3", f"r02 node1 {local_stamp(108)}rank 2",
    ]  # fmt: skip
    assert typed("logs", A, "--since", "1970-01-01T00:01:50Z")[1] == "r00 node0 rank 0\n"
    assert typed("logs", A, "--since", "5m")[1] == ""
    assert typed("logs", A, "--node", "node9") == (5, "", f"error: no node node9 in {A}\nhint: it has node0, node1\n")


def test_errors_are_shown_in_order_of_time(typed: Typed, fabricate: Fabricate) -> None:
    def failed(time: float, error: str) -> list[dict[str, object]]:
        text = f'Traceback (most recent call last):\n  File "t.py", line 3, in f\n{error}\n'
        return [{"event": "began"}, {"time": time, "event": "exception", "traceback": text}]

    messages = ["ValueError: \x1b[2Jbatch 7", "ValueError: \x1b[2Jbatch 9", "RuntimeError: peer gone"]
    events = {f"attempts/0/events/rank_0000{n}.jsonl": failed(50 + n, error) for n, error in enumerate(messages)}
    logs = {f"attempts/0/logs/rank_0000{n}.err": "" for n in range(3)}
    fabricate(A, FINISHED | events | logs)
    assert typed("logs", A, "--errors")[1].splitlines() == [
        f"r00-01 x2 {local_stamp(50)}".rstrip(),
        "Traceback (most recent call last):",
        '  File "t.py", line 3, in f',
        "ValueError: batch 7",
        f"then r02 {local_stamp(52)}RuntimeError: peer gone",
    ]
    fabricate(B, FINISHED | {"attempts/0/logs/rank_00000.out": "fine\n"})
    assert typed("logs", B, "--errors") == (0, "", f"no errors in the logs of {B}\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--grep", "("), "error: --grep (: missing ), unterminated subpattern"),
        (("--since", "noon"), "error: --since noon: not an age or a time"),
        (("--errors", "-f"), "error: --errors cannot be combined with"),
    ],
)
def test_contradictory_options_of_logs_are_refused_with_a_hint(
    typed: Typed, fabricate: Fabricate, words: tuple[str, ...], message: str
) -> None:
    fabricate(A, FINISHED)
    code, out, err = typed("logs", "cora", *words)
    assert (code, out) == (2, "")
    assert err.startswith(message)


def test_logs_of_a_missing_rank_are_not_found(typed: Typed, fabricate: Fabricate) -> None:
    fabricate(A, FINISHED | {"attempts/0/logs/rank_00000.out": "x\n"})
    assert typed("logs", A, "--rank", "4") == (5, "", f"error: no rank 4 in {A}\nhint: it has 0\n")


def test_following_logs_ends_with_the_run(typed: Typed, fabricate: Fabricate) -> None:
    fabricate(
        A, FINISHED | {"attempts/0/logs/rank_00000.out": "one\ntwo", "attempts/0/events/rank_00000.jsonl": "{}\n"}
    )
    assert typed("logs", "-f", A) == (0, "r00 one\nr00 two\n", f"{A}: finished\n")


def test_cancel_records_the_user_and_calls_scancel_once_for_all(typed: Typed, site: Path, fabricate: Fabricate) -> None:
    runs = [fabricate(run, {"submission.json": {"job_id": number}}) for run, number in ((A, "12"), (B, "13"))]
    queue(site, ("12", "RUNNING"), ("13", "PENDING"))
    code, out, err = typed("cancel", A, B, "--yes")
    assert (code, out, err) == (0, "", f"cancelled {A}\ncancelled {B}\n")
    assert calls(site) == ["scancel 12 13"]
    assert all("@" in read_json(run.cancel_json)["by"] for run in runs)


@pytest.mark.parametrize(
    ("answer", "code", "cancelled"),
    [("y\n", 0, True), ("yes", 0, True), ("n\n", 0, False), ("\n", 0, False), ("", 2, False), ("what\n", 2, False)],
)
def test_several_runs_are_cancelled_after_confirmation_on_stdin(
    typed: Typed,
    site: Path,
    fabricate: Fabricate,
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    code: int,
    cancelled: bool,
) -> None:
    for run, number in ((A, "12"), (B, "13")):
        fabricate(run, {"submission.json": {"job_id": number}})
    queue(site, ("12", "RUNNING"), ("13", "PENDING"))
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    found, out, err = typed("cancel", A, B)
    assert (found, out) == (code, "")
    assert "Cancel 2 runs?" in err
    assert (calls(site) == ["scancel 12 13"]) == cancelled
    if code:
        assert err.splitlines()[-2].startswith("error: no answer on stdin")
        assert "--yes" in err.splitlines()[-1]


def test_without_stdin_only_cancelling_several_runs_needs_yes(
    typed: Typed, site: Path, fabricate: Fabricate, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run, number in ((A, "12"), (B, "13")):
        fabricate(run, {"submission.json": {"job_id": number}})
    queue(site, ("12", "RUNNING"), ("13", "PENDING"))
    monkeypatch.setattr("sys.stdin", None)
    assert typed("cancel", A, B)[0] == 2
    assert calls(site) == []
    assert typed("cancel", A)[0] == 0
    assert calls(site) == ["scancel 12"]


@pytest.mark.parametrize("command", ["cancel", "release"])
def test_a_jobs_name_means_the_run_that_has_not_ended(
    typed: Typed, site: Path, fabricate: Fabricate, command: str
) -> None:
    fabricate(A, {"submission.json": {"job_id": "12"}})
    fabricate(B, FINISHED)
    queue(site, ("12", "PENDING"))
    code, out, err = typed(command, "cora")
    assert (code, out, err) == (0, "", f"{'cancelled' if command == 'cancel' else 'released'} {A}\n")
    (call,) = calls(site)
    assert call.endswith(" 12")
    assert typed(command, B)[2].startswith(f"{B} has already ended" if command == "cancel" else f"error: {B} ")
    assert typed(command, "cor")[0] == 2  # begins both


def test_a_jobs_name_all_of_whose_runs_have_ended_means_the_newest(
    typed: Typed, site: Path, fabricate: Fabricate
) -> None:
    for run in (A, B):
        fabricate(run, FINISHED)
    assert typed("cancel", "cora") == (0, "", f"{B} has already ended: finished\n")
    assert calls(site) == []


def test_a_run_that_has_ended_is_not_cancelled_again(typed: Typed, site: Path, fabricate: Fabricate) -> None:
    run = fabricate(A, FINISHED)
    assert typed("cancel", A) == (0, "", f"{A} has already ended: finished\n")
    assert calls(site) == []
    assert not run.cancel_json.exists()


def test_the_cancellation_is_recorded_before_scancel_is_called(typed: Typed, site: Path, fabricate: Fabricate) -> None:
    """A rank that receives TERM looks for the record; the command may die in between."""
    run = fabricate(A, SUBMITTED)
    queue(site, ("12", "RUNNING"))
    (site / "scancel").write_text(f'#!/bin/sh\n[ -e "{run.cancel_json}" ] || exit 9\n')
    assert typed("cancel", A)[0] == 0


DENIED = "scancel: error: Kill job error on job id 12: Access/permission denied"
UNREACHABLE = "scancel: error: Unable to contact slurm controller (connect failure)"


def refuse(site: Path, complaint: str, then: str) -> None:
    """Let scancel fail with `complaint`, and squeue answer with the shell command `then` from that moment on."""
    (site / "scancel").write_text(
        f"#!/bin/sh\necho '{complaint}' >&2\nprintf '#!/bin/sh\\n{then}\\n' >'{site}/squeue'\nexit 1\n"
    )


@pytest.mark.parametrize(
    ("complaint", "then", "message"),
    [
        (DENIED, "cat {}/queue", f"Kill job error on job id 12: Access/permission denied; not cancelled: {A} goes on"),
        (
            UNREACHABLE,
            "exit 1",
            f"Unable to contact slurm controller (connect failure); not cancelled: {A} goes on, unless Slurm got it",
        ),
    ],
)
def test_a_refused_cancellation_leaves_no_record_and_the_run_goes_on(
    typed: Typed, site: Path, fabricate: Fabricate, complaint: str, then: str, message: str
) -> None:
    run = fabricate(A, SUBMITTED)
    queue(site, ("12", "RUNNING"))
    refuse(site, complaint, then.format(site))
    code, _, err = typed("cancel", A)
    assert (code, err.splitlines()[0]) == (4, f"error: scancel: {message}")
    assert not run.cancel_json.exists()


@pytest.mark.parametrize("state", ["CANCELLED", "COMPLETING", None])
def test_a_cancellation_that_slurm_got_although_its_answer_was_lost_counts(
    typed: Typed, site: Path, fabricate: Fabricate, state: str | None
) -> None:
    run = fabricate(A, SUBMITTED)
    queue(site, *([("12", state)] if state else []))
    (site / "queue").rename(site / "later")
    queue(site, ("12", "RUNNING"))
    refuse(site, UNREACHABLE, f"cat {site}/later")
    assert typed("cancel", A)[0] == 0
    assert run.cancel_json.exists()


def test_no_run_is_marked_as_cancelled_if_one_of_them_has_no_job_yet(
    typed: Typed, site: Path, fabricate: Fabricate
) -> None:
    run = fabricate(A, SUBMITTED)
    fabricate(B, created=time.time())
    queue(site, ("12", "RUNNING"))
    assert "has no job yet" in typed("cancel", A, B, "--yes")[2]
    assert (run.cancel_json.exists(), calls(site)) == (False, [])


def test_a_run_of_a_newer_version_is_shown_explained_and_cancelled(
    typed: Typed, site: Path, fabricate: Fabricate
) -> None:
    run = fabricate(A, SUBMITTED)
    queue(site, ("12", "RUNNING"))
    record = read_json(run.run_json)
    record["job"]["colour"], record["cluster"]["moon"] = "blue", {"phase": 1}
    record["job"]["watchdog"]["mood"] = "calm"
    write_json(run.run_json, record)
    notice = f"{A}: submitted by a newer version; skipped what this one does not know: job."
    for command in ("status", "why", "cancel"):
        code, out, err = typed(command, *([] if command == "status" else [A]))
        assert (code, (out + err).count(notice)) == (0, 1), command
    record["versions"] = {"clusterctl": "99.1.0"}
    record["job"] |= {"workload": "quantum", "train": {"qubits": 3}}
    record["job"]["checkpoint"]["keep"] = "all"
    write_json(run.run_json, record)
    code, _, err = typed("status")
    assert (code, "clusterctl 99.1.0" in err, "workload" in err) == (0, True, True)
    record["versions"] = {"clusterctl": "0.0.1"}
    write_json(run.run_json, record)
    assert "cannot read" in typed("why", A)[2], "a damaged record is not read as one of a newer version"


def test_a_held_run_is_released(typed: Typed, site: Path, fabricate: Fabricate) -> None:
    fabricate(A, SUBMITTED)
    queue(site, ("12", "PENDING"))
    assert typed("release", A) == (0, "", f"released {A}\n")
    assert calls(site) == ["scontrol release 12"]


def test_a_run_that_is_not_queued_cannot_be_released(typed: Typed, fabricate: Fabricate) -> None:
    fabricate(A, FINISHED)
    assert typed("release", A)[0] == 2
