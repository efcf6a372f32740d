"""Where a sandbox may live."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.launcher.sandbox import description
from clusterctl.launcher.sandbox.description import Sandbox, SandboxRequest, commands, current, sandbox_folder
from clusterctl.shared.errors import SlurmError, UsageError


@pytest.mark.parametrize("name", ["two words", "it's", "a,b", "a%b", "größe", "x" * 60])
def test_a_folder_name_that_slurm_cannot_handle_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(description, "state_folder", lambda: Path("/s", name))
    with pytest.raises(UsageError) as caught:
        sandbox_folder()
    assert "XDG_STATE_HOME" in caught.value.hint


def test_slurm_commands_need_a_running_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(description, "state_folder", lambda: Path("/nowhere"))
    with pytest.raises(SlurmError) as caught:
        commands()
    assert caught.value.hint == "clusterctl sandbox up"


def test_a_saved_record_is_read_back_unless_another_version_wrote_it(tmp_path: Path) -> None:
    saved = Sandbox(
        folder=str(tmp_path), boot_id=description.boot_id(), request=SandboxRequest(nodes=2), ports=(1, 2, 3, 4)
    )
    saved.save()
    assert current(tmp_path) == saved
    (tmp_path / "sandbox.json").write_text('{"folder": "/x", "colour": "red"}')
    assert current(tmp_path) is None


def test_each_part_has_its_address_and_port() -> None:
    sandbox = Sandbox(folder="/s", boot_id="", request=SandboxRequest(nodes=2), network="10.1.2", ports=(1, 2, 3, 4))
    assert [sandbox.address_of(name) for name in sandbox.names] == ["10.1.2.1", "10.1.2.2"]
    assert [sandbox.port_of(part) for part in ("slurmctld", "slurmdbd", "node2")] == [1, 2, 4]
