"""Using clusterctl from Python, on the emulator: the guide, the example, a notebook cell."""

from __future__ import annotations

import doctest
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.guide import GUIDES, alike
from support.mistake import Desk
from support.scenario import wait_until

import clusterctl

DOCS = Path(__file__).resolve().parents[2] / "docs"


class Alike(doctest.OutputChecker):
    """Compares outputs as the other guides do: ids, times and the like may differ."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        lines, printed = want.replace("<BLANKLINE>", "").rstrip().splitlines(), got.rstrip().splitlines()
        is_whole = len(lines) == len(printed) and "..." not in want
        return is_whole and all(alike(line)(one) for line, one in zip(lines, printed, strict=True))


@pytest.mark.long
def test_every_line_of_the_guide_runs_with_the_output_shown(desk: Desk) -> None:
    desk.set(CLUSTERCTL_CLUSTER=None)
    page = GUIDES / "from-python.md"
    lines = doctest.DocTestParser().get_doctest(page.read_text(), {}, page.name, str(page), 0)
    failed, tried = doctest.DocTestRunner(Alike()).run(lines)
    out, _ = desk.capture.readouterr()
    assert failed == 0, out.decode()
    assert tried > 30


@pytest.mark.long
def test_the_example_submits_three_runs_waits_and_prints_a_table(desk: Desk) -> None:
    program = [sys.executable, DOCS / "examples" / "three_runs.py"]
    done = subprocess.run(program, env=dict(os.environ), capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["RUN", "RATE", "STATE", "LOSS", "TEST"]
    assert [row.split()[1:3] for row in rows] == [[rate, "finished"] for rate in ("0.001", "0.003", "0.01")]
    assert all(re.fullmatch(r"\d+\.\d{3}", number) for row in rows for number in row.split()[3:])


@pytest.mark.long
def test_a_notebook_cell_prints_nothing_and_does_not_change_its_process(desk: Desk) -> None:
    small = {"train.epochs": 5, "resources.nodes": 1, "resources.tasks_per_node": 1}
    before = [signal.getsignal(number) for number in signal.valid_signals()], dict(os.environ), Path.cwd()
    run = clusterctl.submit("cora", cluster="local", overrides=small)
    run.wait(timeout=600)
    assert run.status().state == "finished"
    assert run.metrics()[-1]["epoch"] == 5
    assert [str(finding) for finding in run.why().findings] == ["the run finished"]
    assert [(one.name, one.path) for one in clusterctl.runs(state="failed")] == []
    assert desk.capture.readouterr() == (b"", b"")
    assert ([signal.getsignal(number) for number in signal.valid_signals()], dict(os.environ), Path.cwd()) == before


def test_a_wait_can_time_out_and_the_run_continues(desk: Desk) -> None:
    program = {"argv": ["sleep", "60"], "resources.nodes": 1}
    run = clusterctl.submit("command", cluster="local", overrides=program)
    with pytest.raises(TimeoutError, match="is still") as caught:
        run.wait(timeout=0.5)
    assert isinstance(caught.value, clusterctl.WaitTimedOut)
    assert not run.status().state.ended
    run.cancel()
    with pytest.raises(clusterctl.RunFailed, match="ended: cancelled") as failed:
        run.wait(timeout=60)
    assert "cancelled by" in str(failed.value.diagnosis.findings[0])


@pytest.mark.long
def test_a_command_runs_beside_a_rank_and_its_output_is_returned(desk: Desk) -> None:
    program = {"argv": ["sleep", "600"], "resources.nodes": 2, "resources.tasks_per_node": 1}
    run = clusterctl.submit("command", cluster="local", overrides=program)
    try:
        wait_until(lambda: run.status().state == "training")
        assert run.exec(["printenv", "RANK"], rank=1) == (0, "1\n", "")
        failed = run.exec(["sh", "-c", "echo no >&2; exit 3"])
        assert (failed.code, failed.stdout, failed.stderr.splitlines()[0]) == (3, "", "no")
        assert len(run.exec(["head", "-c", "3000000", "/dev/zero"]).stdout) == 2**20
        with pytest.raises(clusterctl.WaitTimedOut, match="sleep has not ended after 1 s"):
            run.exec(["sleep", "600"], timeout=1)
        with pytest.raises(clusterctl.UsageError, match="no such rank: 2"):
            run.exec(["true"], rank=2)
        with pytest.raises(clusterctl.UsageError, match="no command"):
            run.exec([])
        assert run.status().state == "training"
    finally:
        run.cancel()
    with pytest.raises(clusterctl.RunFailed):
        run.wait(timeout=60)
    with pytest.raises(clusterctl.UsageError, match="is not running"):
        run.exec(["true"])
