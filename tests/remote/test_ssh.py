"""ssh's output becomes an error with a hint."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from clusterctl.launcher.remote import ssh
from clusterctl.shared.errors import HostError

CHANGED = "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed."


@pytest.mark.parametrize(
    ("output", "terminal", "message", "hint"),
    [
        (
            "Permission denied (password).",
            False,
            "asks for a password or a code, but there is no terminal",
            "connect once",
        ),
        ("me@far: Permission denied (publickey).", True, "denied access: me@far: Permission", "ssh far"),
        ("Too many authentication failures", False, "there is no terminal: Too many", "connect once"),
        (CHANGED, True, f"does not trust this host:\n{CHANGED}", "in a terminal: ssh far"),
        ("ssh: Could not resolve hostname far: unknown", True, "cannot connect to far: ssh: Could not", "ssh far"),
        ("", True, "cannot connect to far: no reason given by ssh", "ssh far"),
    ],
)
def test_a_failed_connection_is_explained(output: str, terminal: bool, message: str, hint: str) -> None:
    error = ssh.failure("far", output, terminal=terminal)
    assert message in error.message
    assert hint in (error.hint or "")
    assert error.exit_code == 4


def test_a_login_timeout_is_reported_as_one() -> None:
    assert "within 180 s" in ssh.failure("far", "", terminal=True, seconds=180).message


@pytest.fixture
def short_folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="s", dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.parametrize("length", [20, 49, 54, 55, 63, 64, 74, 80, 200])
@pytest.mark.parametrize("letter", ["a", "\u00e9"])
def test_ssh_can_make_the_socket_wherever_the_users_folder_is(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch, length: int, letter: str
) -> None:
    """macOS's temporary folder has a name of 49 characters or more, and a socket's may have 103 (Linux: 107)."""
    folder = short_folder
    while (missing := length - len(str(folder))) > 0:
        folder /= letter * max(1, min(missing - 1, 100))
    folder.mkdir(parents=True, exist_ok=True)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    path = ssh.socket_of("login.example.org" * 20)
    assert len(os.fsencode(path)) + len(".0123456789abcdef") <= 103  # ssh binds it under a temporary name
    assert path.parent.stat().st_mode & 0o077 == 0
    assert ssh.socket_of("a") != ssh.socket_of("b")


@pytest.mark.parametrize("made", ["link", "dangling link", "open folder", "file"])
def test_a_socket_folder_that_is_not_a_private_folder_of_ours_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(ssh, "_LONGEST_FOLDER", 1000)
    folder, other = tmp_path / "clusterctl-ssh", tmp_path / "other"
    if made != "dangling link":
        other.mkdir(mode=0o700)
    if "link" in made:
        folder.symlink_to(other)
    elif made == "file":
        folder.touch()
    else:
        folder.mkdir()
        folder.chmod(0o750)
    with pytest.raises(HostError, match=str(folder)):
        ssh.socket_of("far")
    assert not other.exists() or not [*other.iterdir()]


def test_a_socket_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    ssh.socket_of("far")
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.raises(HostError, match="another user"):
        ssh.socket_of("far")
