"""`rerun` from the command line: its messages and its JSON."""

from __future__ import annotations

import json

import pytest
from support.json_schema import schema, violations
from support.mistake import Desk, check_message, check_plain

JOB = 'workload = "command"\nargv = ["true"]\n[env]\nMODE = "fast"\nHF_TOKEN = "hunter2"\n'


@pytest.fixture
def run(desk: Desk) -> str:
    """The ID of a submitted run."""
    desk.use_slurm(sbatch="echo Submitted batch job 7")
    desk.set(HF_TOKEN="hunter2")
    desk.write("job.toml", JOB)
    code, out, _ = desk.type("submit ./job.toml")
    assert code == 0
    return out.strip()


def test_changes_go_to_stderr_and_only_the_new_id_to_stdout(desk: Desk, run: str) -> None:
    code, out, err = desk.type(["rerun", run, "--set", "env.MODE=slow", "--nodes", "3", "--name", "other"])
    assert code == 0
    assert (desk.runs / out.strip() / "run.json").exists()
    assert out.startswith("other-")
    assert err.splitlines() == ['name: "job" -> "other"', "resources.nodes: 1 -> 3", 'env.MODE: "fast" -> "slow"']
    assert desk.type(["rerun", run])[2] == f"no changes from {run}\n"


def test_json_output_matches_its_schema(desk: Desk, run: str) -> None:
    code, out, _ = desk.type(["rerun", "job", "--set", "env.NEW=1", "-o", "json"])
    assert code == 0
    assert violations(json.loads(out), schema("rerun")) == []
    assert json.loads(out)["rerun_of"] == run
    assert json.loads(out)["changes"] == [{"key": "env.NEW", "first": None, "second": "1"}]


def test_a_dry_run_prints_the_script_and_the_changes(desk: Desk, run: str) -> None:
    code, out, err = desk.type(["rerun", run, "--dry-run", "--time", "5"])
    assert code == 0
    assert out.startswith("#!/bin/bash\n")
    assert 'resources.time: "1h" -> "5m"\n' in err
    assert "hunter2" not in out + err
    assert [path.name for path in desk.run_directories()] == [run]


def test_escape_sequences_in_a_value_are_removed(desk: Desk, run: str) -> None:
    code, _, err = desk.type(["rerun", run, "--set", 'env.MODE="\\u001b[2J\\u202e"'])
    assert code == 0
    check_plain(err)


def test_a_removed_snapshot_is_an_error(desk: Desk, run: str) -> None:
    (desk.runs / run / "code").resolve().rename(desk.folder / "aside")
    code, out, err = desk.type(["rerun", run])
    assert (code, out) == (3, "")
    check_message(err, "the run's code has been removed", "submit the job again")
