"""What a shell offers after Tab."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from clusterctl import cli
from clusterctl.runs.layout import RunDir

RUN = "cora-20260102-030405-00a1"


def offered(words: list[str], typed: str) -> list[str]:
    found = ShellComplete(cli.clusterctl, {}, "clusterctl", "_CLUSTERCTL_COMPLETE").get_completions(words, typed)
    return [item.value for item in found]


@pytest.fixture(autouse=True)
def runs(fabricate: Callable[..., RunDir], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fabricate(RUN, {"run.json": "damaged: names need no reading"})
    monkeypatch.setenv("CLUSTERCTL_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("CLUSTERCTL_CLUSTER", "local")


@pytest.mark.parametrize(
    "command", ["attach", "cancel", "logs", "monitor", "release", "report", "resume", "status", "why"]
)
def test_every_command_that_takes_a_run_completes_it(command: str) -> None:
    assert offered([command], "") == ["@last", "cora", RUN]
    assert offered([command], "cora-") == [RUN]
    assert offered([command], "x") == []


def test_where_the_runs_are_not_known_nothing_is_offered() -> None:
    assert offered(["why", "--cluster", "nowhere"], "") == []
