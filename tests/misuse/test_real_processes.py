"""Problems that need a separate process to show: permissions, closed streams, another encoding."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.mistake import CONFIG, NOT_FOUND, OTHER, Desk, check_message, check_plain


def run_process(desk: Desk, *words: str, shell: str = 'exec "$@"') -> subprocess.CompletedProcess[str]:
    """Run clusterctl in a separate process, which permissions apply to even if root runs the tests."""
    powerless = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    return subprocess.run(
        [*powerless, "sh", "-c", shell, "sh", sys.executable, "-m", "clusterctl", *words],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("what", "mode", "words", "code", "expected", "hint"),
    [
        ("../state/clusterctl", 0o500, "submit cora", OTHER, "emulator: Permission denied", "ls -ld"),
        ("..", 0o500, "submit cora", CONFIG, "cannot create the state folder", "set XDG_STATE_HOME"),
        ("../runs", 0o500, "submit cora", CONFIG, "cannot write to the runs folder", "set CLUSTERCTL_RUNS"),
        ("job.toml", 0o000, "submit ./job.toml", CONFIG, "cannot read job.toml: Permission denied", "ls -l job.toml"),
        ("cluster", 0o000, "submit cora --cluster site", NOT_FOUND, "no cluster named: site", "known: "),
        ("secret.bin", 0o000, "submit command", CONFIG, "secret.bin: Permission denied", ".gitignore"),
        ("../runs", 0o000, "status", OTHER, "runs: Permission denied", "ls -ld"),
        ("../runs", 0o000, "logs @last", OTHER, "runs: Permission denied", "ls -ld"),
    ],
)
def test_files_without_permission_are_reported(
    desk: Desk, what: str, mode: int, words: str, code: int, expected: str, hint: str
) -> None:
    path = desk.project / what
    path.write_text("") if path.suffix else path.mkdir(parents=True, exist_ok=True)
    path.chmod(mode)
    try:
        done = run_process(desk, *words.split())
    finally:
        path.chmod(0o700)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    check_message(done.stderr, expected, hint)
    assert desk.run_directories() == desk.submitted() == []


@pytest.mark.parametrize(
    ("shell", "code"),
    [
        ('exec "$@" >&-', 0),
        ('exec "$@" 2>&-', 0),
        ('exec "$@" <&-', 0),
        ('exec "$@" >/dev/full', OTHER),
        ('LC_ALL=POSIX PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 PYTHONIOENCODING=ascii exec "$@"', 0),
    ],
)
def test_closed_full_or_ascii_streams_cause_no_traceback(desk: Desk, shell: str, code: int) -> None:
    desk.write("jobs/läufe.toml", 'workload = "synthetic"')
    done = run_process(desk, "config", "list", shell=shell)
    assert "Traceback" not in done.stderr
    assert done.returncode == code, done.stderr
    check_plain(done.stdout + done.stderr)
