"""The lines of `node_setup` on one node: what they share, which one is blamed, and when nobody is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from support.scenario import wait_until

from clusterctl.launcher.submission.script import part


def begin(folder: Path, *lines: str) -> subprocess.Popen[bytes]:
    variables = {"CLUSTERCTL_RUN_DIR": str(folder), "CLUSTERCTL_ATTEMPT": "3", "SLURMD_NODENAME": "n7"}
    words = ["bash", "-c", part("node_setup.sh"), "node_setup", *lines]
    return subprocess.Popen(words, env={**os.environ, **variables}, start_new_session=True)


def result(folder: Path, *lines: str) -> tuple[int, dict[str, Any], str]:
    """The exit code, what the node recorded, and what the lines printed."""
    code = begin(folder, *lines).wait(60)
    place = folder / "attempts/3/node_setup"
    return code, json.loads((place / "n7.json").read_text()), (place / "n7.log").read_text()


@pytest.mark.parametrize(
    ("lines", "line", "code"),
    [
        (["true", "echo fine"], 0, 0),
        (["false", "echo never"], 1, 1),
        (["true", "false || true", "no-such-program-here", "echo never"], 3, 127),
        (["cd /", "(exit 9); true", "exit 5", "echo never"], 3, 5),
        (["true", "exit 0", "false"], 0, 0),
        (["set -e", "false; echo never"], 2, 1),
        (["set -u", "echo ${nothing_here:?} || true", "echo never"], 2, 127),
        (["trap 'echo mine' ERR", "f() { return 4; }; f", "echo never"], 2, 4),
        (["kill -KILL $BASHPID"], None, -9),
    ],
)
def test_the_line_that_fails_is_recorded_with_its_code(
    tmp_path: Path, lines: list[str], line: int | None, code: int
) -> None:
    if line is None:  # killed, for example for its memory: nobody's line
        assert begin(tmp_path, *lines).wait(60) == code
        assert not (tmp_path / "attempts/3/node_setup/n7.json").exists()
        return
    found, record, printed = result(tmp_path, *lines)
    assert (found, record["node"], record["line"], record["code"]) == (code, "n7", line, code)
    assert "never" not in printed


def test_the_lines_share_one_shell(tmp_path: Path) -> None:
    code, record, printed = result(tmp_path, "X='a  b'", "cd /usr", 'echo "$X" $PWD', "echo problem >&2")
    assert (code, record["line"], printed) == (0, 0, "a  b /usr\nproblem\n")


def test_a_node_that_is_ended_for_another_blames_no_line(tmp_path: Path) -> None:
    node = begin(tmp_path, "echo begun; sleep 60")
    log = tmp_path / "attempts/3/node_setup/n7.log"
    wait_until(lambda: log.exists() and log.read_text(), what="the line to begin")
    time.sleep(0.1)
    os.killpg(node.pid, signal.SIGTERM)
    assert node.wait(60) == 143
    assert not log.with_name("n7.json").exists()
