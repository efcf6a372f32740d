"""A real run on the screens: one frame of the monitor while it trains, its report in a browser when it has ended."""

from __future__ import annotations

import pytest
from support.browser import BROWSER, opened
from support.scenario import Stage


@pytest.mark.long
@pytest.mark.parametrize("back_end", ["emulator"])
@pytest.mark.skipif(BROWSER is None, reason="no chromium; as root: tests/install-browser.sh")
def test_a_run_is_seen_while_it_trains_and_told_of_when_it_has_ended(stage: Stage) -> None:
    run = stage.submit("cora")
    stage.wait_for_stage(run, "training", "evaluating")
    frame = stage.call("monitor", "--once", "--cluster", stage.cluster)
    assert frame.returncode == 0, frame.stderr
    assert run.id in frame.stdout
    stage.wait_for_stage(run, "finished")
    done = stage.call("report", run.id, "--cluster", stage.cluster)
    assert done.stdout.strip() == str(run.report), done.stderr
    shown = opened(run.report)
    assert (shown.console, shown.calls) == ([], [])
    assert "finished" in shown.text("p")
    assert shown.text("figcaption").count("accuracy") >= 1
