"""When the connection breaks, no run is lost or submitted twice, and commands that watch continue."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.far import FarStage, made, staged
from support.scenario import wait_until

from clusterctl.shared.record.layout import RunDir

PROGRAM = "import time; print('up', flush=True); time.sleep(600)"
JOB = f'workload = "command"\nargv = ["python", "-c", {json.dumps(PROGRAM)}]\n[resources]\nnodes = 1\n'
FILES = 400


@pytest.fixture
def stage(far_shared: Path, tmp_path: Path) -> Iterator[FarStage]:
    """A cluster connected through the relay, and a project that takes a while to send."""
    with made(far_shared, through_relay=True) as far, staged(far, tmp_path) as stage:
        stage.do("nodes")  # installs clusterctl and Slurm's stand-ins there
        for number in range(FILES):
            (stage.folder / f"file{number}.bin").write_bytes(os.urandom(4096))
        yield stage


class Gate:
    """Makes a remote command wait before or after its work until the test opens the gate."""

    def __init__(self, command: Path, when: str) -> None:
        self._reached, self._opened = (command.with_name(f".{command.name}-{name}") for name in ("reached", "opened"))
        os.mkfifo(self._opened)
        real = command.with_name(f".{command.name}-real")
        command.rename(real)
        wait = f"if ! [ -e '{self._reached}' ]; then : >'{self._reached}'; read -r _ <'{self._opened}'; fi"
        work = f"'{real}' \"$@\"; code=$?"
        lines = [wait, work] if when == "before" else [work, wait]
        command.write_text("\n".join(["#!/bin/sh", *lines, "exit $code", ""]))
        command.chmod(0o700)

    def wait(self) -> None:
        wait_until(self._reached.exists, 60, "the command to be reached")

    def open(self) -> None:
        self._opened.write_text("\n")


def stand_in(stage: FarStage, command: str) -> Path:
    (found,) = Path(stage.far.variables["XDG_STATE_HOME"]).glob(f"clusterctl/emulator/bin-*/{command}")
    return found


def require_one_run(stage: FarStage, submission: subprocess.Popen[str], *, noticed: bool = True) -> None:
    """Assert that the submission succeeds and prints the ID of the only run, which has the only job."""
    printed, errors = submission.communicate(timeout=150)
    assert submission.returncode == 0, errors
    runs = [path.name for path in stage.runs.glob("[!.]*")]
    assert printed.split() == runs, errors
    assert len(runs) == 1
    assert len(stage.slurm("squeue", "-h", "--states=all").splitlines()) == 1
    if noticed:
        assert "the connection to far broke; reconnecting" in errors
        assert "reconnected to far" in errors


def submission(stage: FarStage) -> subprocess.Popen[str]:
    return stage.begin("submit", stage.write_job("held", JOB), "--hold", "--cluster", "far")


def cut_after(stage: FarStage, direction: str, size: int) -> None:
    (stage.far.link / "cut").write_text(f"{direction} {size}")


# Byte offsets into a submission over an existing connection: the request takes 2,000 bytes, the manifest of 400 files
# 15,000, and the files 1,640,000.
@pytest.mark.long
@pytest.mark.parametrize(
    ("direction", "size"),
    [
        pytest.param("up", 100, marks=pytest.mark.long, id="when the session is opened"),
        pytest.param("up", 1500, marks=pytest.mark.long, id="in the request"),
        pytest.param("up", 9000, marks=pytest.mark.long, id="in the manifest"),
        pytest.param("up", 800_000, id="in the files"),
        pytest.param("down", 100, marks=pytest.mark.long, id="before the first answer"),
        pytest.param("down", 900, marks=pytest.mark.long, id="in a question"),
    ],
)
def test_submit_survives_a_broken_connection_while_the_project_is_sent(
    stage: FarStage, direction: str, size: int
) -> None:
    cut_after(stage, direction, size)
    require_one_run(stage, submission(stage), noticed=False)
    assert (stage.far.link / "cut-done").exists()


@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.long), "after"])
@pytest.mark.parametrize("reconnects", [pytest.param(True, marks=pytest.mark.long), False])
def test_submit_survives_a_broken_connection_around_sbatch(stage: FarStage, when: str, reconnects: bool) -> None:
    gate = Gate(stand_in(stage, "sbatch"), when)
    submitting = submission(stage)
    gate.wait()
    stage.far.cut()
    if reconnects:  # the client then waits for the command that is still running
        wait_until(stage.far.sessions, 30, "the client to reconnect")
    gate.open()
    require_one_run(stage, submitting)


@pytest.mark.long
def test_submit_survives_a_broken_connection_between_two_stages(stage: FarStage) -> None:
    stages = '[[stage]]\nname = "first"\n[[stage]]\nname = "second"\n'
    job = stage.write_job("staged", f"{JOB}{stages}")
    gate = Gate(stand_in(stage, "sbatch"), "after")
    submitting = stage.begin("submit", job, "--hold", "--cluster", "far")
    gate.wait()
    stage.far.cut()
    gate.open()
    printed, errors = submitting.communicate(timeout=150)
    assert submitting.returncode == 0, errors
    assert sorted(printed.split()) == sorted(path.name for path in stage.runs.glob("[!.]*"))
    assert len(printed.split()) == len(stage.slurm("squeue", "-h", "--states=all").splitlines()) == 2
    assert "reconnected to far" in errors


@pytest.mark.long
def test_submit_waits_for_a_machine_that_is_temporarily_unreachable(stage: FarStage) -> None:
    gate = Gate(stand_in(stage, "sbatch"), "after")
    submitting = submission(stage)
    gate.wait()
    stage.far.stop()
    gate.open()
    wait_until(lambda: list(stage.runs.glob("*/submission.json")), 30, "the run to be submitted")
    stage.far.start()
    require_one_run(stage, submitting)


@pytest.mark.long
@pytest.mark.parametrize("size", [1, 60])
def test_submit_survives_a_broken_connection_in_the_answer(stage: FarStage, size: int) -> None:
    gate = Gate(stand_in(stage, "sbatch"), "after")
    submitting = submission(stage)
    gate.wait()
    cut_after(stage, "down", size)
    gate.open()
    require_one_run(stage, submitting)


@pytest.mark.long
def test_a_silent_connection_is_dropped_and_reopened(stage: FarStage) -> None:
    gate = Gate(stand_in(stage, "sbatch"), "after")
    submitting = submission(stage)
    gate.wait()
    (stage.far.link / "silent").touch()
    gate.open()
    wait_until(lambda: not stage.far.masters(), 60, "ssh to give up")
    (stage.far.link / "silent").unlink()
    require_one_run(stage, submitting)


@pytest.mark.long
def test_submit_survives_a_broken_connection_while_clusterctl_is_copied(far_shared: Path, tmp_path: Path) -> None:
    with made(far_shared) as far:
        far.variables["XDG_DATA_HOME"] = str(far.home / "data")
        far.through_relay = True
        far.restart()
        with staged(far, tmp_path) as stage:
            cut_after(stage, "up", 1_000_000)
            require_one_run(stage, submission(stage), noticed=False)
            assert (far.link / "cut-done").exists()
            assert [path for path in far.installed.iterdir() if path.name.startswith(".")] == []


@pytest.mark.long
def test_logs_and_status_continue_after_a_break_without_repeating_lines(stage: FarStage) -> None:
    program = "import os, time\nfor i in range(100000):\n print('line', i, flush=True)\n time.sleep(0.05)"
    run = RunDir(stage.runs / stage.do("submit", stage.write_job("talking", JOB.replace(
        json.dumps(PROGRAM), json.dumps(program)))).strip())  # fmt: skip
    stage.wait_for_state(run, "running", "training", "importing", "loading")
    wait_until(lambda: run.attempt(0).log(0).is_file() and "line 3" in stage.log(run, 0))
    followed = stage.begin("logs", "-f", run.id, "--cluster", "far")
    watched = stage.begin("status", run.id, "--watch", "-o", "jsonl", "--cluster", "far")
    assert json.loads(first_line(watched))["id"] == run.id
    assert "line" in first_line(followed)
    stage.far.cut()
    assert wait_until(stage.far.sessions, 60, "the commands to reconnect")
    stage.do("cancel", run.id)
    printed, errors = followed.communicate(timeout=100)
    assert "the connection to far broke; reconnecting\nreconnected to far\n" in errors
    numbers = [int(line.rsplit(" ", 1)[1]) for line in printed.splitlines() if " line " in f" {line}"]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    wait_until(lambda: "cancelled" in first_line(watched), 60, "the end to be seen")
    os.killpg(watched.pid, signal.SIGINT)
    _, errors = watched.communicate(timeout=60)
    assert errors.count("reconnected to far") == 1


@pytest.mark.long
def test_ctrl_c_ends_the_command_that_opened_the_connection_but_not_the_connection(stage: FarStage) -> None:
    """The command also started the ProxyCommand of the connection."""
    stage.far.cut()
    run = stage.do("submit", stage.write_job("held", JOB), "--hold").strip()
    stage.far.cut()
    watched = stage.begin("status", run, "--watch", "-o", "jsonl", "--cluster", "far")
    assert json.loads(first_line(watched))["id"] == run
    (connection,) = stage.far.masters()
    os.killpg(watched.pid, signal.SIGINT)
    _, errors = watched.communicate(timeout=60)
    assert (watched.returncode, errors.strip()) == (130, "")
    assert run in stage.do("status")
    assert stage.far.masters() == [connection]


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline()


@pytest.mark.long
@pytest.mark.parametrize("words", [("status",), ("cancel", "--yes", "nowhere")])
def test_a_command_gives_up_if_its_remote_process_keeps_being_killed(stage: FarStage, words: tuple[str, ...]) -> None:
    (start,) = stage.far.installed.glob("*/start")
    text = start.read_text()
    try:
        start.write_text("kill -9 $$\n")
        done = stage.call(*words, "--cluster", "far", timeout=60)
    finally:
        start.write_text(text)
    assert done.returncode == 4
    assert "error: " in done.stderr
