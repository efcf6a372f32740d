"""All missing packages are reported together, and only those."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.launcher.sandbox.description import SandboxRequest
from clusterctl.launcher.sandbox.lifecycle import check_packages
from clusterctl.shared.errors import SlurmError

COMMANDS = (
    "munged", "slurmctld", "slurmd", "sbatch", "ip", "unshare", "mount", "slurmdbd", "mariadbd", "mariadb-install-db"
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in COMMANDS:
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    return tmp_path


def test_no_error_if_everything_is_installed(folder: Path) -> None:
    check_packages(SandboxRequest(accounting=True), str(folder))


def test_the_hint_names_the_missing_packages_and_no_others(folder: Path) -> None:
    for name in ("munged", "slurmd", "mariadbd", "mariadb-install-db"):
        (folder / name).unlink()
    with pytest.raises(SlurmError) as caught:
        check_packages(SandboxRequest(accounting=True), str(folder))
    assert caught.value.message == "not installed here: munged, slurmd, mariadbd, mariadb-install-db"
    assert caught.value.hint == "apt-get install -y --no-install-recommends munge slurmd mariadb-server"


def test_root_needs_the_namespace_tools(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ip", "unshare", "mount"):
        (folder / name).unlink()
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    check_packages(SandboxRequest(), str(folder))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with pytest.raises(SlurmError) as caught:
        check_packages(SandboxRequest(), str(folder))
    assert caught.value.hint.endswith("iproute2 util-linux mount")


def test_the_database_is_needed_only_for_accounting(folder: Path) -> None:
    (folder / "mariadbd").unlink()
    check_packages(SandboxRequest(), str(folder))
