"""JSON output matches its schemas; the tests of other commands check theirs."""

from __future__ import annotations

import json
import subprocess
import tempfile

import pytest
from support.json_schema import SCHEMAS, schema, violations
from support.mistake import Desk
from support.sandbox_fixture import RunningSandbox
from support.scenario import CLUSTERCTL

from clusterctl.launcher import cli


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("config-show", ["config", "show", "cora"]),
        ("doctor", ["doctor", "--cluster", "local"]),
        ("sandbox-status", ["sandbox", "status"]),
    ],
)
def test_json_output_matches_its_schema(
    name: str,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with tempfile.TemporaryDirectory() as folder:  # a sandbox needs a short path, and pytest's are long
        monkeypatch.setenv("XDG_STATE_HOME", folder)
        monkeypatch.setenv("CLUSTERCTL_RUNS", f"{folder}/runs")
        monkeypatch.setenv("CLUSTERCTL_CLUSTER", "local")
        cli.run([*words, "-o", "json"])
    assert violations(json.loads(capsys.readouterr().out), schema(name)) == []


def test_the_status_of_a_running_sandbox_matches_its_schema(sandbox: RunningSandbox) -> None:
    words = [CLUSTERCTL, "sandbox", "status", "-o", "json"]
    done = subprocess.run(words, env=sandbox.environment, capture_output=True, text=True, check=True, timeout=60)
    content = json.loads(done.stdout)
    assert violations(content, schema("sandbox-status")) == []
    assert (content["up"], len(content["nodes"])) == (True, 4)


def test_json_output_of_submit_matches_its_schema(desk: Desk) -> None:
    desk.use_slurm(sbatch="echo Submitted batch job 7")
    desk.write("job.toml", 'workload = "command"\nargv = ["true"]\n')
    code, out, err = desk.type("submit ./job.toml -o json")
    assert (code, err) == (0, "")
    assert violations(json.loads(out), schema("submit")) == []
    assert json.loads(out)["job_id"] == "7"


def test_every_output_schema_has_a_version_and_its_command_as_title() -> None:
    outputs = [path for path in SCHEMAS.glob("*.json") if path.stem not in ("job", "cluster")]  # schemas of files
    assert len(outputs) >= 10
    for path in outputs:
        found = schema(path.stem)
        assert found["properties"]["schema_version"] == {"const": 1}, path
        assert found["title"].startswith("clusterctl "), path
