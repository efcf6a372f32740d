"""Options of `clusterctl sandbox up`."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from clusterctl.launcher.cli.sandbox import sandbox
from clusterctl.launcher.sandbox.description import Sandbox


@pytest.mark.parametrize(("typed", "written"), [("4", 4), ("a100:4", "a100:4")])
def test_gpus_may_have_a_type(monkeypatch: pytest.MonkeyPatch, typed: str, written: int | str) -> None:
    requested: list[Any] = []

    def up(request: Any) -> None:
        requested.append(request.gpus_per_node.written)
        raise SystemExit(0)

    monkeypatch.setattr("clusterctl.launcher.api.sandbox.up", up)
    CliRunner().invoke(sandbox, ["up", "--gpus-per-node", typed])
    assert requested == [written]


@pytest.mark.parametrize(("torch", "next_"), [(None, "submit --nodes 2"), (object(), "submit cora")])
def test_the_next_command_needs_no_torch_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch, torch: object, next_: str
) -> None:
    found = Sandbox(folder="/x", boot_id="1")
    monkeypatch.setattr("clusterctl.launcher.api.sandbox.up", lambda _: (found, True))
    monkeypatch.setattr("clusterctl.launcher.cli.sandbox.find_spec", lambda _: torch)
    assert f"next: clusterctl {next_} " in CliRunner().invoke(sandbox, ["up"]).output


@pytest.mark.parametrize("typed", ["many", "-1", "65", "a100", "a100:65", "a100:1 File=/dev/sda"])
def test_an_invalid_number_of_gpus_is_refused(typed: str) -> None:
    done = CliRunner().invoke(sandbox, ["up", "--gpus-per-node", typed])
    assert done.exit_code == 2
    assert "not a number up to 64, or a type and number such as a100:4" in done.output
