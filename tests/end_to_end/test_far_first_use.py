"""clusterctl copies itself to the remote machine once, on any kind of machine."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.far import Far, FarStage, made, staged

COPYING = "copying clusterctl to far (once)"


@pytest.fixture
def far(far_shared: Path) -> Iterator[Far]:
    """A machine without clusterctl."""
    with made(far_shared) as far:
        fresh(far)
        yield far


@pytest.fixture
def stage(far: Far, tmp_path: Path) -> Iterator[FarStage]:
    with staged(far, tmp_path) as stage:
        yield stage


def fresh(far: Far, **variables: str) -> None:
    del far.variables["XDG_DATA_HOME"]
    far.variables |= variables
    far.restart()


def installed(stage: FarStage) -> list[str]:
    return sorted(path.name for path in (stage.far.home / ".local/share/clusterctl/remote").iterdir())


def messages(stage: FarStage) -> str:
    done = stage.call("status", "--cluster", "far")
    assert done.returncode == 0, done.stderr
    assert "no runs yet" in done.stderr
    return done.stderr


@pytest.mark.long
def test_clusterctl_is_copied_once_and_again_if_damaged(stage: FarStage) -> None:
    assert COPYING in messages(stage)
    assert COPYING not in messages(stage)
    (name,) = installed(stage)
    folder = stage.far.home / ".local/share/clusterctl/remote" / name
    assert folder.stat().st_mode & 0o077 == 0
    (folder / "start").unlink()
    (folder.parent / f".{name}.half").mkdir()
    assert COPYING in messages(stage)
    assert COPYING not in messages(stage)


@pytest.mark.long
def test_an_incomplete_installation_is_replaced(stage: FarStage) -> None:
    messages(stage)
    (name,) = installed(stage)
    folder = stage.far.home / ".local/share/clusterctl/remote" / name
    (folder / "lib" / "clusterctl" / "shared" / "errors.py").unlink()
    assert COPYING in messages(stage)


@pytest.mark.long
def test_concurrent_commands_and_other_versions_do_not_interfere(stage: FarStage) -> None:
    both = [stage.begin("status", "--cluster", "far") for _ in range(2)]
    for process in both:
        _, errors = process.communicate(timeout=100)
        assert process.returncode == 0, errors
    (name,) = installed(stage)
    other = stage.far.home / ".local/share/clusterctl/remote/0.0.1-0123456789ab"
    shutil.copytree(other.with_name(name), other, ignore=shutil.ignore_patterns("__pycache__"))
    assert COPYING not in messages(stage)
    assert installed(stage) == sorted([name, other.name])


@pytest.mark.long
def test_without_a_recent_python_there_is_an_error_with_a_hint(stage: FarStage) -> None:
    for path in stage.far.bin.iterdir():
        path.unlink()
    empty = stage.far.folder / "tools"
    empty.mkdir()
    for tool in ("sh", "true"):
        (empty / tool).symlink_to(f"/bin/{tool}")
    old = empty / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o700)
    stage.far.variables["PATH"] = str(empty)
    stage.far.restart()
    assert stage.do("status", code=4) == (
        "copying clusterctl to far (once): 3.5 MiB\n"
        "error: far has no Python 3.11 or later on its PATH\n"
        'hint: set it in the cluster file: remote_python = "/path/to/python3"\n'
    ).replace("3.5 MiB", stage.do("status", code=4).split(": ", 1)[1].split("\n")[0])
    stage.far.write_cluster('kind = "emulator"\nremote_python = "/nowhere/python3"\n')
    assert "error: far has no Python 3.11 at /nowhere/python3" in stage.do("status", code=4)
    stage.far.write_cluster(f'kind = "emulator"\nremote_python = "{Path(sys.executable).resolve()}"\n')
    assert "no runs yet" in messages(stage)


@pytest.mark.long
@pytest.mark.parametrize("shell", ["bash", "fish", "tcsh"])
def test_output_of_a_login_shell_is_ignored(far: Far, tmp_path: Path, shell: str) -> None:
    if shell != "bash":
        if shutil.which(shell) is None:
            pytest.skip(f"no {shell}; as root: tests/install.sh shells")
        far.server["ForceCommand"] = f'exec {shutil.which(shell)} -c "$SSH_ORIGINAL_COMMAND"'
    noise = "echo 'Welcome to far'; echo; printf 'O\\000\\000\\000\\003abc'; echo 'Unauthorized use' >&2\n"
    files = {"bash": ".bashrc", "fish": ".config/fish/config.fish", "tcsh": ".cshrc"}
    file = far.home / files[shell]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(noise if shell != "tcsh" else "echo 'Welcome to far'\n")
    far.variables["XDG_CONFIG_HOME"] = str(far.home / ".config")
    far.restart()
    with staged(far, tmp_path) as stage:
        assert messages(stage).splitlines()[1:] == ["no runs yet; try: clusterctl submit --cluster far cora --follow"]
        assert stage.do("status") == ""


@pytest.mark.long
def test_an_installation_folder_that_cannot_be_created_is_reported(stage: FarStage) -> None:
    share = stage.far.home / ".local"
    share.write_text("in the way")
    errors = stage.do("status", code=4)
    assert "error: clusterctl does not start on far: " in errors
    assert "hint: " in errors
    assert [path.name for path in stage.far.home.iterdir()] == [".local"]
