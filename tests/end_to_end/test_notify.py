"""Notifications about a run, sent by the run itself and by `clusterctl notify`."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from support.scenario import Stage, wait_until
from support.web_hook import TOKEN, WebHook, dead_url, web_hook

from clusterctl.shared.record.layout import RunDir

THROUGH_A_HOST = True

WEBHOOK = '[notify]\nurl_variable = "HOOK"\n'
RESTARTED_THEN_FAILED = """
import os, clusterctl.program as run
run.log(step=1, loss=0.5)
if os.environ["CLUSTERCTL_ATTEMPT"] == "0":
    run.request_restart(1)
run.log(step=2, loss=0.25)
raise ValueError("no good")
"""
STALLED_THEN_FINISHED = """
import os, time, clusterctl.program as run
for step in range(1, 30):
    run.log(step=step, loss=1 / step)
    time.sleep(0.05)
    while step == 20 and not os.path.exists(os.environ["CLUSTERCTL_RUN_DIR"] + "/go-on"):
        time.sleep(0.2)
"""


ON_THIS_MACHINE = pytest.mark.parametrize("back_end", ["emulator"], indirect=True)  # nodes reach the server on loopback


@pytest.fixture
def server(stage: Stage) -> Iterator[WebHook]:
    with web_hook() as hook:
        stage.environment["HOOK"] = hook.url
        yield hook


def command(program: str, more: str) -> str:
    return f'workload = "command"\nargv = ["python", "-c", {json.dumps(program)}]\n{more}'


def files_with_the_url(run: RunDir) -> list[str]:
    files = [path for path in run.path.rglob("*") if path.is_file() and "work" not in path.parts]
    return [str(path) for path in files if TOKEN.encode() in path.read_bytes()]


class Listener:
    """A notification command that records the messages it receives."""

    def __init__(self, stage: Stage) -> None:
        self._file = stage.folder / "messages"
        argv = ["sh", "-c", 'cat >>"$0" && echo >>"$0"', str(self._file)]
        self.table = f"[notify]\ncommand = {json.dumps(argv)}\n"

    def first_lines(self) -> list[str]:
        """The first line of each message."""
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        return [line for line in lines if line.startswith("noted ")]


def test_a_restart_and_a_failure_are_each_notified_once(stage: Stage) -> None:
    listener = Listener(stage)
    job = stage.write_job("noted", command(RESTARTED_THEN_FAILED, listener.table))
    done = stage.call("submit", job, "--cluster", stage.cluster, "--wait")
    run = RunDir(stage.runs / done.stdout.strip())
    wait_until(lambda: len(listener.first_lines()) == 2, what="both messages")
    restarted, failed = listener.first_lines()
    assert restarted.startswith("noted restarted after")
    assert failed.startswith("noted failed after")
    assert "ValueError: no good" in failed
    again = stage.call("notify", "--cluster", stage.cluster)
    assert (again.returncode, again.stdout, len(listener.first_lines())) == (0, "", 2), again.stderr
    assert {path.name for path in run.notified.iterdir()} == {"restarted-0.command.0", "failed-1.command.0"}


@pytest.mark.long
def test_the_watchdog_notifies_of_a_stall_and_the_script_of_the_end(stage: Stage) -> None:
    listener = Listener(stage)
    watchdog = '[watchdog]\naction = "report"\nfloor = 3\nfactor = 2\n'
    run = stage.submit(stage.write_job("noted", command(STALLED_THEN_FINISHED, watchdog + listener.table)))
    wait_until(listener.first_lines, what="the alarm")
    assert stage.status(run)["stage"] == "training"
    (run.path / "go-on").touch()
    stage.wait_for_state(run, "finished")
    wait_until(lambda: len(listener.first_lines()) == 2, what="the end")
    stalled, finished = listener.first_lines()
    assert "rank 0 made no progress for" in stalled
    assert finished.startswith("noted finished after")


@pytest.mark.long
@ON_THIS_MACHINE
def test_notify_sends_what_the_run_could_not(stage: Stage, server: WebHook) -> None:
    live, stage.environment["HOOK"] = stage.environment["HOOK"], dead_url()
    run = stage.submit(stage.write_job("noted", command("print(1)", WEBHOOK)), "--wait")
    wait_until(lambda: list(run.notified.glob("*")), what="the first try")
    failing = stage.call("notify", "--cluster", stage.cluster)
    assert failing.returncode == 1
    assert failing.stdout == f"refused: {run.id} finished (webhook): Connection refused\n"
    stage.environment["HOOK"] = live
    sent = stage.call("notify", run.id, "--cluster", stage.cluster)
    assert (sent.returncode, sent.stdout) == (0, f"sent: {run.id} finished (webhook)\n"), sent.stderr
    assert server.events() == ["finished"]
    assert files_with_the_url(run) == []


@ON_THIS_MACHINE
def test_a_run_without_a_valid_webhook_url_is_not_submitted(stage: Stage, server: WebHook) -> None:
    job = stage.write_job("noted", command("print(1)", WEBHOOK))
    for value, message in ((None, "HOOK is not set"), (f"hooks.slack.com/{TOKEN}", "HOOK is not a URL")):
        stage.environment.pop("HOOK")
        stage.environment |= {"HOOK": value} if value else {}
        refused = stage.call("submit", job, "--cluster", stage.cluster)
        assert (refused.returncode, message in refused.stderr) == (3, True), refused.stderr
        assert TOKEN not in refused.stderr
        stage.environment["HOOK"] = ""
