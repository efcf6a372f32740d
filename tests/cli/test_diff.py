"""`diff` from the command line: the differences between two runs, as a table and as JSON."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.json_schema import schema, violations
from support.mistake import USAGE, Desk, check_message, check_plain

from clusterctl.shared.record.files import read_json, write_json
from clusterctl.shared.record.layout import RunDir

JOB = """
workload = "command"
argv = ["python", "train.py"]
code = "."
[env]
RATE = "0.1"
HF_TOKEN = "hunter2"
"""
RUN_AND_LIST = """
import json, sys
from clusterctl.launcher.cli import run
assert run(sys.argv[1:]) == 0
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


def finish(run: RunDir, *lines: dict[str, Any]) -> None:
    run.attempt(0).path.mkdir()
    write_json(run.attempt(0).host_json, {"attempt": 0, "job_id": "7", "exit_code": 0, "start": 10, "end": 75})
    run.attempt(0).metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_json(run.finished_json, {"attempt": 0, "time": 75})


@pytest.fixture
def runs(desk: Desk) -> list[RunDir]:
    """Two finished runs; code, configuration and environment changed in between."""
    desk.use_slurm(sbatch="echo Submitted batch job 7")
    desk.set(HF_TOKEN="hunter2")
    desk.write("train.py", "rate = 1\nuse('hunter2')\n")
    desk.write("weights.bin", b"\0\1")
    desk.write("job.toml", JOB)
    first = RunDir(desk.runs / desk.type("submit ./job.toml --name before")[1].strip())
    finish(first, {"step": 5, "loss": 0.5, "seconds": 1.0}, {"step": 10, "loss": 0.25, "fold_\x1b[2J": 3})
    desk.write("train.py", "rate = 2\nuse('hunter2')\n")
    desk.write("weights.bin", b"\0\2")
    desk.write("a\x1b[2J.py", "")
    desk.write("job.toml", JOB.replace("0.1", "0.2"))
    second = RunDir(desk.runs / desk.type("submit ./job.toml --name after --nodes 2")[1].strip())
    finish(second, {"step": 10, "loss": float("nan"), "val_accuracy": 0.75})
    record = read_json(second.run_json)
    write_json(second.run_json, record | {"versions": record["versions"] | {"torch": "2.99"}, "image": {"digest": "d"}})
    return [first, second]


def test_a_table_shows_what_differs_and_how_the_runs_ended(desk: Desk, runs: list[RunDir]) -> None:
    code, out, err = desk.type("diff before after")
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines()]
    assert rows[0] == [run.id for run in runs]
    for row in (
        ["state", "finished", "finished"],
        ["ran", "1m05s", "1m05s"],
        ["resources.nodes", "1", "2"],
        ["env.RATE", '"0.1"', '"0.2"'],
        ["project/train.py", "changed"],
        ["project/a.py", "added"],
        ["step", "10", "10"],
        ["loss", "0.2500", "nan"],  # NaN is a result too
        ["val", "accuracy", "0.7500"],
    ):
        assert row in rows, out
    assert "2.99" in out
    assert not any(row[:1] == ["seconds"] for row in rows)
    check_plain(out)


@pytest.mark.parametrize("columns", [30, 60])
def test_names_of_runs_are_whole_in_a_narrow_terminal(columns: int, desk: Desk, runs: list[RunDir]) -> None:
    desk.set(COLUMNS=str(columns))
    lines = desk.type(f"diff before {runs[1].id}")[1].splitlines()
    assert lines[:3] == [f"first:  {runs[0].id}", f"second: {runs[1].id}", ""]
    assert lines[3].split() == ["first", "second"]


def test_json_output_matches_its_schema(desk: Desk, runs: list[RunDir]) -> None:
    code, out, err = desk.type("diff before after -o json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert violations(found, schema("diff")) == []
    assert [run["id"] for run in found["runs"]] == [run.id for run in runs]
    assert {"key": "env.RATE", "first": "0.1", "second": "0.2"} in found["configuration"]
    assert {"key": "torch", "second": "2.99"}.items() <= found["versions"][-1].items()
    assert found["image"] == [{"key": "digest", "first": None, "second": "d"}]
    assert {"metric": "loss", "first": 0.25, "second": None} in found["results"]
    assert [file["name"] for file in found["code"] if "diff" not in file] == [
        "project/a\x1b[2J.py",
        "project/job.toml",
        "project/train.py",
        "project/weights.bin",
    ]


def test_code_diffs_are_shown_without_secrets(desk: Desk, runs: list[RunDir]) -> None:
    desk.set(HF_TOKEN=None)  # still known from the job file
    code, out, err = desk.type("diff before after --code")
    assert (code, err) == (0, "")
    assert "\n-rate = 1\n+rate = 2\n use('***')\n" in out
    assert "project/weights.bin changed: binary, or too large" in out
    assert "project/a.py added: " in out
    assert "hunter2" not in out
    check_plain(out)
    code, out, _ = desk.type("diff before after --code -o json")
    found = json.loads(out)
    assert violations(found, schema("diff")) == []
    assert "hunter2" not in out
    diffs = {file["name"]: file["diff"] for file in found["code"]}
    assert diffs["project/weights.bin"] is None
    assert diffs["project/train.py"].startswith(
        "--- a/project/train.py\n+++ b/project/train.py\n@@ -1,2 +1,2 @@\n-rate"
    )


def test_a_secret_from_a_dotenv_file_is_hidden(desk: Desk, runs: list[RunDir]) -> None:
    desk.write(".env", "export WANDB_API_KEY='wandb-secret'\nMODE=visible\n")
    desk.type("submit ./job.toml --name third")
    code, out, _ = desk.type("diff after third --code")
    assert code == 0
    assert "+MODE=visible" in out
    assert "wandb-secret" not in out


def test_identical_runs_are_not_an_error(desk: Desk, runs: list[RunDir]) -> None:
    code, out, _ = desk.type("rerun after --name twin")
    assert code == 0
    twin = out.strip()
    code, out, _ = desk.type(["diff", twin, "after", "-o", "json"])
    found = json.loads(out)
    assert (code, found["code"], [one["key"] for one in found["configuration"]]) == (0, [], ["name"])
    code, out, _ = desk.type(["diff", twin, "after"])
    assert code == 0
    assert "no difference: code" in out


def test_without_a_snapshot_the_rest_is_compared(desk: Desk, runs: list[RunDir]) -> None:
    shutil.move(runs[0].code.resolve(), desk.folder / "aside")
    code, out, err = desk.type("diff before after --code")
    assert code == 0
    assert "env.RATE" in out
    assert "CODE" not in out
    assert err.startswith(f"warning: cannot compare the code: the copy of {runs[0].id} no longer exists: ")
    code, out, _ = desk.type("diff before after -o json --code")
    assert (code, json.loads(out)["code"]) == (0, None)
    assert violations(json.loads(out), schema("diff")) == []


def test_uncommitted_changes_are_compared_for_jobs_without_a_project(desk: Desk, runs: list[RunDir]) -> None:
    trainings = []
    for number in range(2):
        run = RunDir(desk.runs / desk.type("submit synthetic")[1].strip())
        run.git_patch.write_text(f"+line {number}\n")
        trainings.append(run.id)
    code, out, err = desk.type(["diff", *trainings, "--code"])
    assert (code, err) == (0, "")
    assert "git.patch" in out
    assert "\n-+line 0\n++line 1\n" in out


def test_environments_from_lock_files_are_compared_package_by_package(desk: Desk, runs: list[RunDir]) -> None:
    """The versions that run.json records, which are those that were installed (`new_run.environment_fields`)."""
    installed = {"alpha": "1.0", "beta": "2.0", "same": "3.0"}, {"alpha": "1.1", "gamma": "4.0", "same": "3.0"}
    for run, packages in zip(runs, installed, strict=True):
        environment = {"folder": f"/envs/{run.id}", "lock": "uv.lock", "python": "3.11.2", "packages": packages}
        write_json(run.run_json, read_json(run.run_json) | {"environment": environment})
    code, out, err = desk.type("diff before after")
    rows = [re.split(r"  +", line.strip()) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert ["alpha", "1.0", "1.1"] in rows
    assert ["beta", "2.0", "not installed"] in rows
    assert ["gamma", "not installed", "4.0"] in rows
    assert not any("same" in row for row in rows)
    # Of a run without a lock nobody knows what was installed.
    record = read_json(runs[0].run_json)
    del record["environment"]
    write_json(runs[0].run_json, record)
    found = json.loads(desk.type("diff before after -o json")[1])
    assert {"key": "gamma", "first": None, "second": "4.0"} in found["versions"]
    assert "not installed" not in json.dumps(found)


def test_comparing_a_run_with_itself_is_a_usage_error(desk: Desk, runs: list[RunDir]) -> None:
    code, out, err = desk.type(["diff", "after", runs[1].id])
    assert (code, out) == (USAGE, "")
    check_message(err, f"both names refer to the same run: {runs[1].id}", "clusterctl status")


def test_no_heavy_modules_are_loaded(desk: Desk, runs: list[RunDir]) -> None:
    words = [sys.executable, "-c", RUN_AND_LIST, "diff", "before", "after", "--code", "-o", "json"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    modules = set(json.loads(done.stderr.splitlines()[-1]))
    assert not modules & {"torch", "numpy", "submitit", "rich", "textual"}


def test_the_project_need_not_exist_any_more(desk: Desk, runs: list[RunDir]) -> None:
    for path in [path for path in desk.project.iterdir() if path.name != "cluster"]:
        path.unlink()
    assert Path.cwd() == desk.project
    assert "project/train.py" in desk.type("diff before after")[1]
