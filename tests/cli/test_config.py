"""`config`: values, keys and schemas, from the command line."""

from __future__ import annotations

import json
import re
from collections import Counter

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


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_on_a_terminal_one_long_value_does_not_push_all_origins_aside(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    assert cli.run(["config", "show", "cora", "--set", f"note={'x' * 50}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(re.split(" {2,}", line)) == 3 for line in lines)
    columns = Counter(line.rindex("  ") for line in lines)
    assert columns.most_common(1)[0][1] > 0.8 * len(lines)
    assert sum(len(line) > width for line in lines) < (0.1 if width >= 80 else 0.3) * len(lines)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_doctor_wraps_its_messages_between_words_below_each_other(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    cli.run(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    column = next(line.index("3.") for line in lines if line.startswith("OK    python"))
    rest = [line for line in lines if not re.match("OK|WARN|FAIL", line)]
    assert all(line[:column].isspace() and not line[column].isspace() for line in rest)
    assert all(len(line) <= width or len(line.split()) <= 4 for line in lines if "hint: " not in line)


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
