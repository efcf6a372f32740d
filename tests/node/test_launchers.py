"""The last words of torchrun and accelerate tell a worker that was killed from one that failed by itself."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import astuple
from pathlib import Path

import pytest
from support.traces import TRACEBACK, block, entry

from clusterctl.shared.node.launchers import Summary, read_summary, summary_of

ACCELERATE = """Traceback (most recent call last):
  File "/venv/bin/accelerate", line 8, in <module>
    sys.exit(main())
  File "/venv/lib/python3.12/site-packages/accelerate/commands/launch.py", line 999, in simple_launcher
    raise subprocess.CalledProcessError(returncode=process.returncode, cmd=cmd)
subprocess.CalledProcessError: Command '['/venv/bin/python', 'train.py', 'a\\nb']' """


OLD = f"""{TRACEBACK}*****************************************
       train.py FAILED
=======================================
Root Cause:
[0]:
  time: 2021-08-02_10:11:12
  rank: 4 (local_rank: 0)
  exitcode: -9 (pid: 100)
  error_file: <N/A>
  msg: "Signal 9 (SIGKILL) received by PID 100"
=======================================
Other Failures:
  <NO_OTHER_FAILURES>
*****************************************
"""
LONG = 'Traceback (most recent call last):\n    File "t.py", line 3, in main\n      raise KeyError(x)\n  KeyError: 3\n'
TRACKER = (
    "/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: 4 leaked objects\n"
)


@pytest.mark.parametrize(
    ("text", "rank", "code"),
    [
        (block(entry(1, -9), entry(0, -15)), 5, -9),
        ("step 1\nloss 3\n" + block(entry(0, -11)), 4, -11),
        (block(entry(1, 137)), 5, 137),
        (block(entry(1, 1), entry(0, -15)), 5, 1),
        (block(entry(1, 1, LONG)), 5, 1),
        (OLD, 4, -9),
        (block(entry(1, -9)) + f"\n{TRACKER}  warnings.warn('resource_tracker: ...'\n+ exit 1\n", 5, -9),
        (block(entry(1, -9)).replace("train.py FAILED", "\x1b[31mtrain.py FAILED\x1b[0m"), 5, -9),
        (f"{ACCELERATE}died with <Signals.SIGKILL: 9>.\n", 0, -9),
        (f"{ACCELERATE}returned non-zero exit status 3.\n", 0, 3),
        # two failures in one second: the lower rank's broken connection comes first
        (block(entry(0, 1), entry(0, 1) + entry(1, -9)), 5, -9),
        # torchrun killed a worker that did not react to TERM
        ("W1 api.py:1] Sending process 101 closing signal SIGTERM\n" + block(entry(0, 1), entry(1, -9)), 4, 1),
    ],
)
def test_the_worker_that_failed_first_is_read(text: str, rank: int, code: int) -> None:
    summary = summary_of(text)
    assert summary is not None
    assert (summary.first.rank, summary.first.exit_code) == (rank, code)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Root Cause (first observed failure):\n" + entry(0, -9),
        block(entry(0, -9)) + "trying again without the launcher\n",
        block(entry(0, -9)) + "KeyError: 'x'\n",
        block(entry(0, -9)).replace(TRACEBACK, ""),
        block(entry(0, -9)).replace("train.py FAILED", "all well"),
        block(entry(0, -9)) + "=" * 60 + "\nepoch 3 begins\n" + "=" * 60 + "\n",
        "subprocess.CalledProcessError: Command '['gzip', 'x']' died with <Signals.SIGKILL: 9>.\n",
        # the program's own call, not accelerate's
        f"{ACCELERATE}died with <Signals.SIGKILL: 9>.\n".replace("accelerate/commands/launch.py", "mine/launch.py"),
    ],
)
def test_what_only_looks_like_a_launchers_last_words_is_not(text: str) -> None:
    assert summary_of(text) is None


def test_every_failed_worker_is_read_with_its_place(tmp_path: Path) -> None:
    log = tmp_path / "rank_00000.err"
    log.write_text("x" * (1 << 19) + "\n" + block(entry(1, -9), entry(0, -15) + entry(2, 1, LONG)))
    summary = read_summary(log)
    assert isinstance(summary, Summary)
    assert summary.launcher == "torchrun"
    assert astuple(summary.first) == (-9, 5, 1, 101, "node1", "Signal 9 (SIGKILL) received by PID 101")
    assert [(one.rank, one.exit_code) for one in summary.others] == [(4, -15), (6, 1)]
    assert summary.others[1].message.endswith("KeyError: 3")
    assert read_summary(tmp_path / "none.err") is None


WORKER = """
import os, sys
if os.environ["RANK"] == "1":
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), 9)
    raise KeyError("a worker's own")
__import__("time").sleep(60)
"""


@pytest.mark.long
@pytest.mark.parametrize(("how", "code"), [("killed", -9), ("raised", 1)])
def test_the_words_are_those_of_the_torchrun_here(tmp_path: Path, how: str, code: int) -> None:
    program = tmp_path / "worker.py"
    program.write_text(WORKER)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run([*torchrun, program, how], capture_output=True, text=True, check=False, env=environment)
    summary = summary_of(done.stderr)
    assert done.returncode == 1
    assert summary is not None
    assert (summary.first.rank, summary.first.exit_code) == (1, code)
