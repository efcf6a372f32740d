"""A secret reaches only the tasks: no script, no record, no message, no output of clusterctl."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.mistake import CONFIG, USAGE, Desk, check_message

from clusterctl.shared.record.files import read_json

VALUE = "hunter2-çé\"'\\$x"
TOML = json.dumps(VALUE)
JOB = f"""
workload = "command"
argv = [{json.dumps(sys.executable)}, "-c", "import os; print(ascii(os.environ['HF_TOKEN'])[::-1])"]
env = {{ HF_TOKEN = {TOML}, PLAIN = "visible" }}
code = "code"
"""


def leaks(folder: Path) -> list[Path]:
    """The files below `folder` that contain part of the secret, except the copies of the user's own files."""
    files = [path for path in folder.rglob("*") if path.is_file() and not {".code", "work"} & set(path.parts)]
    return [path for path in files if b"hunter2" in path.read_bytes()]


@pytest.fixture
def job(desk: Desk) -> Callable[..., list[str]]:
    """A job file with a secret, modified since its last commit; returns the command line that submits it."""
    (desk.project / "code").mkdir()
    desk.write("job.toml", "")
    desk.write("code/.gitkeep", "")
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@y", "-C", str(desk.project)]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *words], check=True)
    desk.write("job.toml", JOB.replace('code = "code"', ""))
    return lambda *more: ["submit", "./job.toml", *more]


def test_a_secret_reaches_the_tasks_and_no_file(desk: Desk, job: Callable[..., list[str]]) -> None:
    code, _, err = desk.type(job("--wait", "--timeout", "60"))
    assert code == 0, err
    (run,) = desk.run_directories()
    assert (run / "attempts/0/logs/rank_00000.out").read_text().strip()[::-1] == ascii(VALUE)
    assert (run / "git.patch").read_text().count("***") == 1
    assert leaks(run) == []
    assert read_json(run / "run.json")["job"]["env"] == {"HF_TOKEN": "***", "PLAIN": "visible"}
    assert "\n  PLAIN=visible\n" in (run / "script.sh").read_text()


@pytest.mark.parametrize(
    "words",
    [
        ("--set", f"env.HF_TOKEN={TOML}"),
        (f"--set=env.HF_TOKEN={TOML}",),
        ("--set", f"env={{HF_TOKEN={TOML}}}"),
        ("--set", "env.HF_TOKEN=hunter2-first", "--set", "env.HF_TOKEN=hunter2-second"),
        ("--set", "env.wandb_api_key=hunter2"),
    ],
)
def test_a_secret_on_the_command_line_is_not_kept(
    desk: Desk, job: Callable[..., list[str]], words: tuple[str, ...]
) -> None:
    typed = job("--hold", *words)
    desk.patch.setattr(sys, "argv", ["clusterctl", *typed])
    code, out, _ = desk.type(typed)
    assert code == 0
    run = desk.runs / out.strip()
    assert [word for word in read_json(run / "run.json")["argv"] if "hunter2" in word] == []
    assert leaks(run) == []


@pytest.mark.parametrize(
    "typed", ["config show ./job.toml", "config show ./job.toml -o json", "submit ./job.toml --dry-run"]
)
def test_a_secret_is_not_shown(desk: Desk, job: object, typed: str) -> None:
    code, out, err = desk.type(typed)
    assert code == 0
    assert "hunter2" not in out + err
    assert "visible" in out


@pytest.mark.parametrize(
    ("words", "code", "expected", "hint"),
    [
        ("--set env.HF_TOKEN:hunter2", USAGE, "expected KEY=VALUE, not: env.HF_TOKEN", "train.lr=3e-3"),
        ("--set 'env.HF_TOKEN hunter2'", USAGE, "expected KEY=VALUE, not: env.HF_TOKEN", "train.lr=3e-3"),
        ("--set env=HF_TOKEN=hunter2", CONFIG, "env: expected a table", "config keys"),
        ("--set env.HF_TOKEN.x=hunter2", CONFIG, "env.HF_TOKEN: expected a string", "config keys"),
        ("--set env.HF_TOKEN='\"hunter2\\u0000\"'", CONFIG, "env.HF_TOKEN: must be text without NUL", "config keys"),
        ("--set 'env.HF TOKEN=hunter2'", CONFIG, "env.HF TOKEN: must be a shell variable's name", "config keys"),
    ],
)
def test_a_message_about_a_secret_does_not_repeat_it(
    desk: Desk, words: str, code: int, expected: str, hint: str
) -> None:
    got, out, err = desk.type(["submit", "cora", *shlex.split(words)])
    assert (got, out) == (code, "")
    check_message(err, expected, hint)
    assert "hunter2" not in err


def test_a_secret_in_the_cluster_file_reaches_no_file_either(desk: Desk) -> None:
    desk.use_slurm('env = {SITE_PASSWORD = "hunter2"}', sbatch='env >"$0.env"; echo Submitted batch job 7')
    code, out, _ = desk.type("submit cora")
    assert code == 0
    assert leaks(desk.runs / out.strip()) == []
    assert "SITE_PASSWORD=hunter2" in (desk.folder / "fakes" / "sbatch.env").read_text().splitlines()


def test_the_cluster_file_names_further_secrets(desk: Desk) -> None:
    desk.use_slurm('secrets = ["GEHEIM*"]')
    words = ["config", "show", "cora", "--set", "env.geheimnis=hunter2", "--set", "env.HF_TOKEN=shown"]
    code, out, _ = desk.type(words)
    assert code == 0
    assert "hunter2" not in out
    assert "shown" in out
