"""Unsuitable surroundings: environment, folders, missing tools, full disks."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from support.mistake import CONFIG, NOT_FOUND, SLURM, USAGE, Desk, Mistake, check_message, rows

from clusterctl.shared.record.files import read_json


def runs(what: str, folder: str, expected: str, prepare: Callable[[Desk], object] = lambda desk: None) -> Mistake:
    """A good job, and a runs folder that cannot be used."""
    return Mistake(
        what=what,
        typed="submit cora",
        environment={"CLUSTERCTL_RUNS": folder},
        code=CONFIG,
        expected=expected,
        hint="choose a folder"
        if expected.startswith("path")
        else "without `~`"
        if "~" in expected
        else "CLUSTERCTL_RUNS",
        prepare=prepare,
    )


@rows(
    runs("it is a device", "/dev/null", "/dev/null: File exists"),
    runs("it is below a file", "/dev/null/runs", "/dev/null/runs: Not a directory"),
    runs("it is a file", "runs", "File exists", lambda desk: desk.write("runs", "")),
    runs(
        "it is a dangling link", "runs", "runs: File exists", lambda desk: (desk.project / "runs").symlink_to("nowhere")
    ),
    runs(
        "it is a link to itself", "runs", "runs: File exists", lambda desk: (desk.project / "runs").symlink_to("runs")
    ),
    runs("the kernel refuses it", "/proc/runs", "cannot create the runs folder: /proc/runs"),
    runs("its name is too long", "x" * 300, "File name too long"),
    runs("its path is too long", "x/" * 3000, "path too long"),
    runs("its path leaves no room for a run", "x/" * 1900, "path too long"),
    runs("it contains a percent sign", "runs%t", "path contains '%'"),
    runs("it contains a backslash", "runs\\x", "path contains"),
    runs("it contains a newline", "runs\nx", "path contains"),
    runs("it contains an escape code", "runs\x1b[2J", "path contains"),
    runs("it is not UTF-8", "runs\udcff", "path contains"),
    runs("its user does not exist", "~nobody-knows-me/runs", "cannot expand `~`"),
)
def test_a_runs_folder_that_cannot_be_used(desk: Desk, mistake: Mistake) -> None:
    mistake.make(desk)
    assert [path.name for path in desk.project.iterdir()] in ([], ["runs"])


@rows(
    Mistake(
        what="the cluster in the environment does not exist",
        typed="submit cora",
        environment={"CLUSTERCTL_CLUSTER": "locl"},
        code=NOT_FOUND,
        expected="no cluster named: locl",
        hint="local?",
    ),
    Mistake(
        what="the cluster in the environment is not a cluster file",
        typed="status",
        environment={"CLUSTERCTL_CLUSTER": "/etc/passwd"},
        code=CONFIG,
        expected="/etc/passwd: not valid TOML",
        hint="quotes",
    ),
    Mistake(
        what="the cluster in the environment contains escape codes",
        typed="status",
        environment={"CLUSTERCTL_CLUSTER": "\x1b]0;owned\x07\u202elacol"},
        code=NOT_FOUND,
        expected="no cluster named",
        hint="known: ",
    ),
    Mistake(
        what="no cluster is set, and there is a Slurm",
        typed="submit cora",
        prepare=lambda desk: (desk.use_slurm(), desk.set(CLUSTERCTL_CLUSTER="")),
        code=USAGE,
        expected="which cluster?",
        hint="--cluster NAME",
    ),
    Mistake(
        what="no cluster is set, there is a Slurm, and a key is wrong",
        typed="submit cora --set lr=1",
        prepare=lambda desk: (desk.use_slurm(), desk.set(CLUSTERCTL_CLUSTER="")),
        code=CONFIG,
        expected="lr: unknown key",
        hint="--set train.lr=1",
    ),
    Mistake(
        what="no cluster is set, there is a Slurm, and a value is wrong",
        typed="submit cora --set train.epochs=x",
        prepare=lambda desk: (desk.use_slurm(), desk.set(CLUSTERCTL_CLUSTER="")),
        code=CONFIG,
        expected="expected a whole number",
        hint="config keys",
    ),
    Mistake(
        what="no cluster is set, there is a Slurm, and a name is wrong",
        typed="submit cara",
        prepare=lambda desk: (desk.use_slurm(), desk.set(CLUSTERCTL_CLUSTER="")),
        code=NOT_FOUND,
        expected="no job named: cara",
        hint="did you mean cora?",
    ),
    Mistake(
        what="no cluster is set, there is a Slurm, and a stage is wrong",
        typed="submit cora --stage first",
        prepare=lambda desk: (desk.use_slurm(), desk.set(CLUSTERCTL_CLUSTER="")),
        code=CONFIG,
        expected="no stage called first",
        hint="no stages",
    ),
    Mistake(
        what="no cluster is set, there is a Slurm, and a script without its interpreter is wrong",
        typed="submit -- train.py",
        prepare=lambda desk: (desk.use_slurm(), desk.set(CLUSTERCTL_CLUSTER="")),
        code=CONFIG,
        expected="not a program on PATH",
        hint="submit -- python train.py",
    ),
    Mistake(
        what="no cluster is set, there is a Slurm, and a swept key is wrong",
        typed="submit cora --sweep lr=1,2",
        prepare=lambda desk: (desk.use_slurm(), desk.set(CLUSTERCTL_CLUSTER="")),
        code=USAGE,
        expected="--sweep lr: neither",
        hint="train.lr",
    ),
    Mistake(
        what="no cluster is set, there is a Slurm, and a swept value is wrong",
        typed="submit cora --sweep train.epochs=1,x",
        prepare=lambda desk: (desk.use_slurm(), desk.set(CLUSTERCTL_CLUSTER="")),
        code=CONFIG,
        expected="expected a whole number",
        hint="config keys",
    ),
    Mistake(
        what="the partition in the environment has a newline",
        typed="submit cora",
        environment={"SBATCH_PARTITION": "a\nb"},
        code=CONFIG,
        expected="environment SBATCH_PARTITION: resources.partition: must be",
        hint="config keys",
    ),
    Mistake(
        what="the state folder cannot be created",
        typed="submit cora",
        environment={"XDG_STATE_HOME": "/dev/null"},
        code=CONFIG,
        expected="cannot create the state folder: /dev/null/clusterctl: Not a directory",
        hint="XDG_STATE_HOME",
    ),
    Mistake(
        what="the home is not a folder",
        typed="submit cora",
        environment={"XDG_STATE_HOME": None, "HOME": "/dev/null"},
        code=CONFIG,
        expected="cannot create the state folder",
        hint="export HOME=FOLDER",
    ),
    Mistake(
        what="the home is unknown",
        typed="status",
        environment={"XDG_STATE_HOME": None, "HOME": None},
        prepare=lambda desk: desk.patch.setattr("pwd.getpwuid", {}.__getitem__),
        code=CONFIG,
        expected="HOME is not set, and user",
        hint="export HOME=FOLDER",
    ),
    Mistake(
        what="there is no sbatch",
        typed="submit cora",
        prepare=lambda desk: (desk.use_slurm(), desk.set(PATH="/nowhere")),
        code=SLURM,
        expected="sbatch is not on PATH",
        hint="--cluster local",
    ),
    Mistake(
        what="there is no PATH",
        typed="submit cora",
        prepare=lambda desk: (desk.use_slurm(), desk.set(PATH="")),
        code=SLURM,
        expected="sbatch is not on PATH",
        hint="--cluster local",
    ),
    Mistake(
        what="sbatch is a folder",
        typed="submit cora",
        prepare=lambda desk: (
            desk.use_slurm(),
            (desk.folder / "x" / "sbatch").mkdir(parents=True),
            desk.set(PATH="../x"),
        ),
        code=SLURM,
        expected="sbatch is not on PATH",
        hint="--cluster local",
    ),
    Mistake(
        what="the current folder no longer exists",
        typed="submit cora",
        prepare=lambda desk: desk.project.rmdir(),
        code=USAGE,
        expected="the current folder no longer exists",
        hint="cd ",
    ),
)
def test_an_invalid_environment(desk: Desk, mistake: Mistake) -> None:
    mistake.make(desk)
    assert desk.asked("sbatch") == 0


@pytest.mark.parametrize("width", ["", "0", "-5", "abc", "1", "9999999"])
def test_any_terminal_width_is_accepted(desk: Desk, width: str) -> None:
    desk.set(COLUMNS=width, LINES=width)
    assert desk.type("status")[0] == 0
    assert desk.type("--help")[0] == 0
    assert desk.type("statsu")[0] == USAGE


@pytest.mark.parametrize(
    "environment",
    [
        {"HOME": None},
        {"PATH": None},
        {"PATH": ""},
        {"LANG": "C", "LC_ALL": "C"},
        {"NO_COLOR": "1", "TERM": "dumb"},
        {"XDG_CONFIG_HOME": "/dev/null"},
        {"XDG_CONFIG_HOME": "relative"},
        {"SLURM_CONF": "/nowhere", "SBATCH_JOB_NAME": "x", "SLURM_JOB_ID": "7"},
        {"TZ": "Nowhere/Nowhere"},
        {"USER": None, "LOGNAME": None},
    ],
    ids=str,
)
def test_unrelated_variables_do_no_harm(desk: Desk, environment: dict[str, str | None]) -> None:
    desk.set(**environment)
    code, out, err = desk.type("submit cora --hold")
    assert (code, err) == (0, "")
    assert desk.run_directories() == [desk.runs / out.strip()]
    assert desk.type("status")[0] == 0
    assert desk.type("cancel @last")[0] == 0


def test_without_git_the_whole_repository_is_copied(desk: Desk) -> None:
    (desk.project / ".git").mkdir()
    desk.write("train.py", "")
    desk.set(PATH="/nowhere")
    code, out, err = desk.type("submit command --hold")
    assert (code, err) == (0, "")
    run = desk.runs / out.strip()
    assert (run / "code" / "project" / "train.py").exists()
    assert read_json(run / "run.json")["git"] is None


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Limit files to `size` bytes, as a quota would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_no_partial_snapshot(desk: Desk) -> None:
    with largest_file(2000):
        code, out, err = desk.type("submit cora")
    assert (code, out) == (CONFIG, "")
    check_message(err, "cannot copy the run's code", "is the disk full?")
    assert desk.run_directories() == desk.submitted() == []
    assert [path.name for path in (desk.runs / ".code").iterdir()] == [".files"]


def test_a_full_disk_leaves_no_partial_run(desk: Desk) -> None:
    assert desk.type("submit cora --dry-run")[0] == 0
    assert desk.type("submit cora --hold")[0] == 0
    assert desk.type("cancel @last")[0] == 0
    before = desk.run_directories()
    with largest_file(2000):
        code, out, err = desk.type("submit cora")
    assert (code, out) == (CONFIG, "")
    check_message(err, "cannot write the run directory", "is the disk full?")
    assert desk.run_directories() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
def test_a_full_file_system_is_reported(desk: Desk) -> None:
    desk.runs.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", desk.runs], check=True)
    try:
        code, _, err = desk.type("submit cora")
    finally:
        subprocess.run(["umount", desk.runs], check=True)
    assert code == CONFIG
    check_message(err, "the disk is full", "df -h")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
def test_a_full_home_is_named(desk: Desk, tmp_path: Path) -> None:
    """A failed write does not name its file."""
    state = tmp_path / "small state"
    state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", state], check=True)
    try:
        with suppress(OSError):
            (state / "fill").write_bytes(bytes(2**16))
        desk.set(XDG_STATE_HOME=str(state))
        code, _, err = desk.type("submit cora")
    finally:
        subprocess.run(["umount", state], check=True)
    assert code == 1
    check_message(err, f"No space left on device: {state}", f"df -h '{state}")


def test_runs_are_private_whatever_the_umask(desk: Desk) -> None:
    desk.runs.mkdir(mode=0o777)
    before = os.umask(0)
    try:
        code, out, _ = desk.type("submit cora --hold")
    finally:
        os.umask(before)
    assert code == 0
    for path in (desk.runs / out.strip(), desk.runs / ".code"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, path
    assert desk.type("cancel @last")[0] == 0


def test_a_code_folder_of_another_user_is_refused(desk: Desk) -> None:
    (desk.runs / ".code").mkdir(parents=True)
    desk.patch.setattr("os.geteuid", lambda: os.getuid() + 1)
    code, _, err = desk.type("submit cora")
    assert code == CONFIG
    check_message(err, "owned by another user", "ls -ld")
