"""What the checks look at: interpreters, folders, file systems; and `doctor` as a whole, on this machine."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from clusterctl.launcher import cli
from clusterctl.launcher.checks import interpreters
from clusterctl.launcher.checks.interpreters import ask_packages
from clusterctl.launcher.checks.look import QUESTIONS, file_system, look_at, look_at_cluster
from clusterctl.launcher.checks.surroundings import Seen
from clusterctl.shared.spec import Cluster


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("CLUSTERCTL_RUNS", str(tmp_path / "runs"))


def interpreter(tmp_path: Path, program: str) -> str:
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{program}\n")
    path.chmod(0o700)
    return str(path)


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ("exit 3", "exit code 3"),
        ("echo no >&2; exit 1", "no"),
        ("echo nonsense", "exit code 0"),
        ("exec sleep 60", "no answer within"),
    ],
)
def test_an_interpreter_that_fails_is_reported_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, problem: str
) -> None:
    monkeypatch.setattr(interpreters, "PACKAGES_SECONDS", 0.3)
    found = look_at_cluster(Cluster(name="local", kind="emulator", python=interpreter(tmp_path, program)))
    assert found.interpreter is not None
    assert problem in found.interpreter.problem


def test_a_missing_interpreter_is_not_run() -> None:
    found = look_at_cluster(Cluster(name="local", kind="emulator", python="/nowhere/python"))
    assert found.interpreter is not None
    assert not found.interpreter.seen.there
    assert found.interpreter.seen.visible


def test_an_unwritable_home_is_a_finding_and_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/proc/nobody")
    state = look_at_cluster(Cluster(name="local", kind="emulator", python="/nowhere/python")).login_node
    assert state is not None
    assert (state.state.exists, state.state.path) == (False, "/proc/nobody/.local/state/clusterctl")


def test_looking_at_a_folder_changes_nothing(tmp_path: Path) -> None:
    folder = look_at(tmp_path / "a" / "b")
    assert (folder.exists, folder.writable) == (False, True)
    assert not (tmp_path / "a").exists()
    (tmp_path / "file").write_text("")
    assert not look_at(tmp_path / "file" / "runs").writable


def test_the_file_system_is_that_of_the_longest_mount_point(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("a / ext4 rw 0 0\nb /nfs nfs4 rw 0 0\nc /nfs/a\\040b lustre rw 0 0\n")
    assert file_system(Path("/home"), mounts) == "ext4"
    assert file_system(Path("/nfs/x"), mounts) == "nfs4"
    assert file_system(Path("/nfs/a b/c"), mounts) == "lustre"
    assert file_system(Path("/nfsx"), mounts) == "ext4"
    assert file_system(Path("/"), tmp_path / "none") == ""


def test_missing_slurm_commands_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    found = look_at_cluster(Cluster(name="site", python=sys.executable))
    assert {str(answer) for answer in found.slurm.values()} == {
        f"{words[0]} is not on PATH" for words in QUESTIONS.values()
    }


def test_doctor_finds_this_machine_healthy_in_a_few_seconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    assert cli.run(["doctor", "--cluster", "local", "-o", "json"]) == 0
    assert time.monotonic() - began < 20  # 2 s on an idle machine
    record = json.loads(capsys.readouterr().out)
    assert record["ok"]
    verdicts = {check["name"]: check["verdict"] for check in record["checks"]}
    assert verdicts["torch"] == verdicts["runs"] == "OK"
    assert list(tmp_path.iterdir()) == []  # doctor creates no files


def test_doctor_fails_with_a_hint_if_a_check_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "site.toml").write_text(f'python = "{interpreter(tmp_path, "exit 1")}"\n')
    monkeypatch.setenv("PATH", "/nowhere")
    assert cli.run(["doctor", "--cluster", str(tmp_path / "site.toml")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("FAIL  slurm ") for line in lines)
    assert any(line.strip().startswith("hint: set `python`") for line in lines)


def test_versions_are_read_without_importing_the_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\n")
    metadata = tmp_path / "torch-9.8.7.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.8.7\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    asked = ask_packages(Seen(sys.executable, True))
    assert (asked.packages or {})["torch"] == "9.8.7"
    assert not (tmp_path / "imported").exists()


def test_a_package_without_metadata_is_imported_for_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("__version__ = '1.2+site'\n")
    bare = interpreter(tmp_path, f'exec {sys._base_executable} -S "$@"')  # type: ignore[attr-defined]
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert ask_packages(Seen(bare, True)).packages == {"torch": "1.2+site"}


def test_python_without_torch_is_a_warning_with_the_command_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = interpreter(tmp_path, f'exec {sys._base_executable} -S "$@"')  # type: ignore[attr-defined]
    (tmp_path / "bare.toml").write_text(f'kind = "emulator"\npython = "{bare}"\n')
    assert cli.run(["doctor", "--cluster", str(tmp_path / "bare.toml")]) == 0
    lines = capsys.readouterr().out.splitlines()
    (torch,) = [number for number, line in enumerate(lines) if line.startswith("WARN  torch ")]
    assert "only jobs with workload `command` run without it" in lines[torch]
    hint = lines[torch + 1].split("hint: ")[1]
    assert hint.startswith(f"{bare} -m ensurepip && {bare} -m pip install 'torch>=2.6' ")  # it has no pip either
