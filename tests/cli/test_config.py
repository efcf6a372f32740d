"""`config`: values, keys and schemas, from the command line."""

from __future__ import annotations

import json
import re

import pytest
from support.json_schema import schema

from clusterctl.launcher import cli


@pytest.fixture(autouse=True)
def at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTERCTL_CLUSTER", "local")


def test_show_prints_durations_as_typed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["config", "show", "cora"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r'^resources\.time +"20m" +jobs/cora\.toml:\d+$', shown, re.MULTILINE)
    assert re.search(r'^checkpoint\.every +"10m" +default$', shown, re.MULTILINE)


def test_keys_have_type_default_and_a_description_below(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["config", "keys"]) == 0
    lines = capsys.readouterr().out.splitlines()
    position = next(number for number, line in enumerate(lines) if line.startswith("resources.time "))
    assert lines[position].split() == ["resources.time", "duration", "(minutes)", "|", "auto", '"1h"']
    assert lines[position + 1].startswith("    Time limit")
    keys = [number for number, line in enumerate(lines) if re.match(r"[a-z_.]+ {2,}", line)]
    assert len(keys) > 150
    assert all(re.match(r"    \S.*\.$", lines[number + 1]) for number in keys)


@pytest.mark.parametrize("name", ["job", "cluster"])
def test_schema_prints_the_shipped_schema(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["config", "schema", name]) == 0
    assert json.loads(capsys.readouterr().out) == schema(name)
