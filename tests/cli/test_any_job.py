"""`why`, `logs`, `status` and `cancel` for any Slurm job, and job IDs in place of the names of runs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.json_schema import schema, violations

import clusterctl as package
from clusterctl.launcher import cli
from clusterctl.launcher.api.jobs import job_log
from clusterctl.launcher.slurm.queue import SEPARATOR
from clusterctl.shared.record.layout import RunDir

Fabricate = Callable[..., RunDir]
Typed = Callable[..., tuple[int, str, str]]
A, B = "cora-20260101-000000-aaaa", "reddit-20260102-000000-bbbb"
FAILED = {"attempts/0/host.json": {"attempt": 0, "start": 1, "end": 2, "exit_code": 3}}
FINISHED = {"finished.json": {"attempt": 0, "time": 5}}
TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\nKeyError: "author"\n'


class Site:
    """A login node whose Slurm commands on PATH record their arguments and print what was put in place of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for command in ("sbatch", "squeue", "scancel", "scontrol", "sacct", "sinfo"):
            path = folder / command
            answer = (
                f'cat "{folder}/{command}.txt" 2>/dev/null; exit $(cat "{folder}/{command}.code" 2>/dev/null || echo 0)'
            )
            path.write_text(f'#!/bin/sh\necho "{command} $*" >> "{folder}/calls"\n{answer}\n')
            path.chmod(0o700)
        self.shows()
        self.answers("sacct", "", 1)

    def answers(self, command: str, text: str, code: int = 0) -> None:
        (self.folder / f"{command}.txt").write_text(text)
        (self.folder / f"{command}.code").write_text(str(code))

    def shows(self, *jobs: str) -> None:
        """scontrol shows these jobs; for none, that it knows no such job."""
        if jobs:
            self.answers("scontrol", "\n".join(jobs))
        else:
            self.answers("scontrol", "", 1)
            path = self.folder / "scontrol"
            if "Invalid" not in path.read_text():
                text = path.read_text().replace(
                    "exit $", f'[ -s "{self.folder}/scontrol.txt" ] || echo Invalid job id >&2; exit $'
                )
                path.write_text(text)

    def lists(self, *rows: tuple[str, str, str, Path]) -> None:
        """squeue --me lists a job's ID, state, name and folder."""
        lines = [
            SEPARATOR.join(
                [number, state, "None", "nia", "main", "1", "node1", "5", "6", "N/A", "1:00", str(folder), name, ""]
            )
            for number, state, name, folder in rows
        ]
        self.answers("squeue", "\n".join(lines))

    def calls(self, command: str) -> list[str]:
        path = self.folder / "calls"
        return [line for line in path.read_text().splitlines() if line.startswith(command)] if path.exists() else []


def shown(number: str, folder: Path, state: str = "FAILED", user: int | None = None, output: str = "out.txt") -> str:
    user = os.geteuid() if user is None else user
    ended = state not in ("RUNNING", "PENDING")
    return f"""JobId={number} JobName=my net
   UserId=somebody({user}) GroupId=users(100)
   JobState={state} Reason=None Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 ExitCode={int(ended)}:0
   TimeLimit=01:00:00 SubmitTime=5 StartTime=6 EndTime={9 if ended else "Unknown"}
   Partition=main NodeList={"(null)" if state == "PENDING" else "node1"}
   NumNodes=1 NumCPUs=1 NumTasks=1
   WorkDir={folder}
   StdErr={folder}/{output}
   StdOut={folder}/{output}
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    for name in ("site", "cluster", "work"):
        (tmp_path / name).mkdir()
    (tmp_path / "cluster" / "site.toml").write_text(f'name = "site"\nruns = "{tmp_path}/runs"\npolling_floor = 0\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLUSTERCTL_CLUSTER", "site")
    monkeypatch.setenv("PATH", f"{tmp_path}/site:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Site(tmp_path / "site")


@pytest.fixture
def typed(site: Site, capfdbinary: pytest.CaptureFixture[bytes]) -> Typed:
    def run(*words: str) -> tuple[int, str, str]:
        code = cli.run(words)
        out, err = capfdbinary.readouterr()
        return code, out.decode(), err.decode()

    return run


def test_why_explains_a_job_from_its_output_with_one_request_to_each_of_slurms_commands(
    site: Site, typed: Typed, tmp_path: Path
) -> None:
    (tmp_path / "work" / "out.txt").write_text(
        f"start\n{TRACEBACK}srun: error: node1: task 0: Exited with exit code 1\n"
    )
    site.shows(shown("812", tmp_path / "work"))
    code, out, err = typed("why", "812.0")
    assert (code, err) == (0, "")
    assert out.startswith('812 failed: error in the job or its program\n  rank 0 on node1: KeyError: "author"\n')
    assert "next: clusterctl logs 812" in out
    assert len(site.calls("scontrol")) == len(site.calls("sacct")) == 1
    code, out, _ = typed("why", "812", "-o", "json")
    found = json.loads(out)
    assert violations(found, schema("why")) == []
    assert (found["id"], found["job_id"], found["run_stage"]) == ("812", "812", "failed")
    assert (found["class"], found["certainty"], found["attempt"], found["rank"]) == ("user-error", "certain", None, 0)


def test_why_is_a_function_too(site: Site, typed: Typed, tmp_path: Path) -> None:
    (tmp_path / "work" / "out.txt").write_text(TRACEBACK)
    site.shows(shown("812", tmp_path / "work"))
    assert package.why("812").headline.cause == 'KeyError: "author"'
    assert package.why(tmp_path / "work" / "out.txt").headline.cause == 'KeyError: "author"'
    site.lists(("812", "RUNNING", "net", tmp_path / "work"), ("7", "RUNNING", "run", tmp_path / "runs" / A))
    assert [job.job_id for job in package.jobs()] == ["812"]


def test_no_file_of_another_users_job_is_opened(site: Site, typed: Typed, tmp_path: Path) -> None:
    (tmp_path / "work" / "out.txt").write_text(TRACEBACK)
    site.shows(shown("812", tmp_path / "work", user=os.geteuid() + 1))
    code, out, _ = typed("why", "812")
    assert code == 0
    assert "KeyError" not in out
    assert "it belongs to somebody: only what Slurm shows is known, no file was opened" in out
    assert "next:" not in out
    code, out, err = typed("logs", "812")
    assert (code, out) == (2, "")
    assert err == "error: job 812 belongs to somebody: its files are not opened\nhint: clusterctl why 812\n"


def test_another_users_job_is_not_cancelled(site: Site, typed: Typed, tmp_path: Path) -> None:
    site.shows(shown("812", tmp_path / "work", "RUNNING", user=os.geteuid() + 1))
    site.lists(("900", "RUNNING", "net", tmp_path / "work"))
    code, _, err = typed("cancel", "812", "900", "--yes")
    assert code == 4
    assert err.startswith("error: job 812 belongs to somebody: only its owner can cancel it\nhint: ")
    assert site.calls("scancel") == []


def test_cancel_ends_jobs_and_arrays_and_leaves_those_that_have_ended(site: Site, typed: Typed, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    site.lists(("812", "RUNNING", "a", folder), ("813_4", "PENDING", "b", folder), ("814", "COMPLETED", "c", folder))
    code, _, err = typed("cancel", "812", "813", "814", "--yes")
    assert (code, err) == (0, "job 814 has already ended: completed\ncancelled job 812\ncancelled job 813\n")
    assert site.calls("scancel") == ["scancel 812 813"]
    assert len(site.calls("squeue")) == 1


def test_the_id_of_a_runs_job_leads_to_the_run_in_every_command(site: Site, typed: Typed, fabricate: Fabricate) -> None:
    fabricate(A, {"submission.json": {"job_id": "12"}, **FAILED})
    code, out, _ = typed("why", "12")
    assert (code, out.splitlines()[0]) == (0, f"{A} failed: launch")
    assert json.loads(typed("status", "12.batch", "-o", "json")[1])["runs"][0]["id"] == A
    assert typed("cancel", "12")[2] == f"{A} has already ended: failed\n"
    assert typed("logs", "12", "--errors")[2] == f"no errors in the logs of {A}\n"


def test_a_plain_job_has_only_some_commands(typed: Typed, fabricate: Fabricate) -> None:
    fabricate(A, FINISHED)
    for command in ("resume", "rerun", "release", "report", "export", "monitor"):
        code, _, err = typed(command, "812", *(["--once"] if command == "monitor" else []))
        assert code == 5, command
        assert err == (
            "error: 812 is not a job of a run: clusterctl did not submit it\n"
            "hint: for any Slurm job there are: clusterctl why 812, and logs, status, cancel\n"
        )


def test_a_job_that_nobody_knows_is_not_found(typed: Typed) -> None:
    for command in ("why", "logs", "status", "cancel"):
        code, _, err = typed(command, "812")
        assert code == 5, command
        assert err.startswith("error: no job 812 ")
        assert err.endswith("hint: its output alone may explain it: clusterctl why ./slurm-812.out\n")


def test_logs_shows_the_output_of_a_job(site: Site, typed: Typed, tmp_path: Path) -> None:
    (tmp_path / "work" / "out.txt").write_bytes(b"one\ntwo \x1b[31m\nthree")
    site.shows(shown("812", tmp_path / "work"))
    assert typed("logs", "812")[:2] == (0, "one\ntwo \x1b[31m\nthree\n")  # to a pipe as it is
    assert typed("logs", "812", "--tail", "1")[1] == "three\n"
    assert typed("logs", "812", "--grep", "^t")[1] == "two \x1b[31m\nthree\n"
    assert typed("logs", "812", "-f")[1] == "one\ntwo \x1b[31m\nthree\n"
    assert typed("logs", "812", "--rank", "1")[2].startswith(
        "error: --rank is for runs: clusterctl did not submit job 812\n"
    )


def test_logs_labels_two_files_and_selects_one(site: Site, typed: Typed, tmp_path: Path) -> None:
    (tmp_path / "work" / "out.txt").write_text("one\n")
    (tmp_path / "work" / "err.txt").write_text("two\n")
    site.shows(
        shown("812", tmp_path / "work").replace(f"StdErr={tmp_path}/work/out.txt", f"StdErr={tmp_path}/work/err.txt")
    )
    assert typed("logs", "812")[1] == "out one\nerr two\n"
    assert typed("logs", "812", "--stderr")[1] == "two\n"


def test_output_that_is_a_named_pipe_blocks_nothing(site: Site, typed: Typed, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "work" / "out.txt")
    site.shows(shown("812", tmp_path / "work"))
    code, out, _ = typed("why", "812")
    assert code == 0
    assert f"{tmp_path}/work/out.txt: not a regular file" in out
    assert "warning: cannot read" in typed("logs", "812")[2]
    assert typed("why", "./work/out.txt")[0] == 3


def test_a_file_is_explained_without_slurm(
    site: Site, typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLUSTERCTL_CLUSTER", "far")
    (tmp_path / "cluster" / "far.toml").write_text('name = "far"\nhost = "nowhere.invalid"\n')
    (tmp_path / "slurm-5.out").write_text("epoch 1\n")
    (tmp_path / "slurm-5.err").write_text(TRACEBACK)
    code, out, err = typed("why", "slurm-5.out", "slurm-5.err")
    assert (code, err) == (0, "")
    assert out.startswith('slurm-5.out: error in the job or its program\n  KeyError: "author" (likely)\n')
    found = json.loads(typed("why", "slurm-5.err", "-o", "json")[1])
    assert violations(found, schema("why")) == []
    assert (found["id"], found["job_id"]) == ("slurm-5.err", None)
    assert typed("why", "./missing")[0] == 5
    assert typed("why", "a", "b", "c")[0] == 2
    assert site.calls("s") == []


def test_status_shows_other_jobs_beside_runs(site: Site, typed: Typed, fabricate: Fabricate, tmp_path: Path) -> None:
    run = fabricate(A, {"submission.json": {"job_id": "12"}, **FINISHED})
    site.lists(("12", "COMPLETED", "cora", run.path), ("812_3", "RUNNING", "my \x1b[2Jnet", tmp_path / "work"))
    code, out, _ = typed("status", "--all-jobs", "-o", "json")
    found = json.loads(out)
    assert code == 0
    assert violations(found, schema("status")) == []
    assert [one["id"] for one in found["runs"]] == [A]
    assert [(one["job_id"], one["state"]) for one in found["jobs"]] == [("812_3", "running")]
    code, out, err = typed("status", "--all-jobs")
    assert (code, err) == (0, "")
    assert A in out
    assert "812_3  my net  running" in out
    assert "\x1b" not in out
    assert typed("status", "812")[1].splitlines()[1].startswith("812_3  my net")
    assert typed("status", "--all-jobs", "--watch")[0] == 2
    assert len(site.calls("squeue")) == 3


def test_following_ends_with_the_job_and_not_with_an_answer_that_is_older_than_it(
    site: Site, typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "work"
    site.shows(shown("812_1", folder, "PENDING").replace("JobId=812_1", "JobId=813 ArrayJobId=812 ArrayTaskId=1"))
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 1:
            (folder / "out.txt").write_text("begun\n")
            site.shows(shown("812_1", folder).replace("JobId=812_1", "JobId=813 ArrayJobId=812 ArrayTaskId=1"))
            clock.append(100.0)

    clock = [0.0]
    monkeypatch.setattr("clusterctl.launcher.api.jobs.time.monotonic", lambda: clock[-1])
    log = job_log("812_1")
    assert [*log.follow(sleep)] == [("out", b"begun")]
    assert len(looks) == 2


def test_failed_names_the_newest_run_that_ended_badly(typed: Typed, fabricate: Fabricate) -> None:
    assert typed("why", "@failed")[0] == 5
    fabricate(A, FAILED)
    fabricate(B, FINISHED)
    assert typed("why", "@failed")[1].splitlines()[0].startswith(f"{A} failed")
    assert package.find("@failed").id == A
    assert json.loads(typed("status", "@failed", "-o", "json")[1])["runs"][0]["id"] == A


def test_an_array_explains_the_element_that_failed(site: Site, typed: Typed, tmp_path: Path) -> None:
    def element(number: int, state: str) -> str:
        one = shown(str(900 + number), tmp_path / "work", state, output=f"out-{number}.txt")
        return one.replace(f"JobId={900 + number} ", f"JobId={900 + number} ArrayJobId=900 ArrayTaskId={number} ")

    (tmp_path / "work" / "out-2.txt").write_text(TRACEBACK)
    site.shows(element(1, "COMPLETED"), element(2, "FAILED"), element(3, "RUNNING"))
    out = typed("why", "900")[1]
    assert out.startswith("900_2 failed")
    assert "one of 3 elements: 1 completed, 1 failed, 1 running" in out


def test_without_a_chosen_cluster_the_slurm_on_path_is_asked(
    site: Site, typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the first day there is no cluster file yet."""
    monkeypatch.delenv("CLUSTERCTL_CLUSTER")
    monkeypatch.setenv("CLUSTERCTL_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "work" / "out.txt").write_text(TRACEBACK)
    site.shows(shown("812", tmp_path / "work"))
    assert typed("why", "812")[1].startswith("812 failed")
