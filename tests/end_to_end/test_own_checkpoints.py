"""The programs of the guide, which know nothing of clusterctl, through what ends them on a cluster."""

from __future__ import annotations

import os
import re
import shlex
import signal
from pathlib import Path

import pytest
from support.scenario import Stage, alive, wait_until

from clusterctl.shared.record.files import read_json
from clusterctl.shared.record.layout import RunDir

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "own-checkpoints.md").read_text()
_PROGRAM = re.compile(r"[Ss]ave this\s+as `([\w.]+)`:\n\n```\w+\n(.*?)```\n\n    clusterctl submit (.*?)\n", re.DOTALL)
PROGRAMS = {name: (text, words) for name, text, words in _PROGRAM.findall(GUIDE)}
SAVES = {"counter.py": "state.json", "train.py": "model.pt", "epochs.sh": "epoch"}
ENDS = {"counter.py": "total 20100", "train.py": "weights [", "epochs.sh": "trained 20 epochs"}


def submit(stage: Stage, name: str, *more: str, slowly: bool = False) -> RunDir:
    """Save the program and type the command of the guide."""
    text, line = PROGRAMS[name]
    if slowly:  # longer than a minute
        text = text.replace("sleep(0.05)", "sleep(0.3)").replace("sleep 0.5", "sleep 3")
    (stage.folder / name).write_text(text)
    words = shlex.split(line)
    given, argv = words[: words.index("--")], words[words.index("--") :]
    done = stage.call("submit", *given, *more, "--cluster", stage.cluster, *argv)
    assert done.returncode == 0, done.stderr
    return RunDir(stage.runs / done.stdout.strip())


def wait_until_saved(run: RunDir, name: str) -> None:
    wait_until((run.work / SAVES[name]).exists, 90, "what the program saves")


def assert_went_on(stage: Stage, run: RunDir, name: str, seconds: float = 120) -> None:
    """The second start took up what the first one had saved, and finished with the result of an undisturbed program."""
    stage.wait_for_state(run, "finished", seconds=seconds)
    assert len(run.attempts()) >= 2
    *_, last = run.attempts()
    lines = stage.log(run, 0, attempt=last.number).splitlines()
    assert any(line.startswith("going on from step") and not line.endswith(" 0") for line in lines)
    assert any(line.startswith(ENDS[name]) for line in lines)


def preempt(stage: Stage) -> None:
    """Run a job that needs all nodes at once."""
    urgent = '[resources]\nnodes = 4\nexclusive = true\npartition = "urgent"\n'
    job = stage.write_job("urgent", f'workload = "command"\nargv = ["sleep", "1"]\n{urgent}')
    assert stage.call("submit", job, "--cluster", stage.cluster, "--wait").returncode == 0


@pytest.mark.parametrize(
    "name",
    [
        "counter.py",
        pytest.param("train.py", marks=pytest.mark.long),
        pytest.param("epochs.sh", marks=pytest.mark.long),
    ],
)
def test_a_program_with_its_own_checkpoints_goes_on_after_a_warning(stage: Stage, name: str) -> None:
    run = submit(stage, name, "--set", "resources.warning=12")  # without signals, it is ended 10 s before the limit
    wait_until_saved(run, name)
    stage.slurm("scancel", "--signal=USR2", stage.job_id(run))
    assert_went_on(stage, run, name)
    host = read_json(run.attempt(0).host_json)
    assert (host["exit_code"], host["unasked"], host["requeued"]) == (75, True, True)


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_with_its_own_checkpoints_outlives_its_time_limit(stage: Stage, name: str) -> None:
    run = submit(stage, name, "--time", "1m", slowly=True)
    assert_went_on(stage, run, name, seconds=300)
    assert read_json(run.attempt(0).host_json)["unasked"] is True


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_with_its_own_checkpoints_survives_a_kill(stage: Stage, name: str) -> None:
    run = submit(stage, name)
    wait_until_saved(run, name)
    *_, victim = [pid for pid in alive(run) if f"\0{name}\0" in Path(f"/proc/{pid}/cmdline").read_text()]
    os.kill(victim, signal.SIGKILL)
    assert_went_on(stage, run, name)
    assert read_json(run.attempt(0).host_json)["restarting"] is True


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_with_its_own_checkpoints_survives_a_preemption(stage: Stage, name: str) -> None:
    run = submit(
        stage, name, "--partition", "preemptable", "--set", "resources.exclusive=true", slowly=name == "epochs.sh"
    )
    wait_until_saved(run, name)
    preempt(stage)
    assert_went_on(stage, run, name)


# It keeps a list of the signals that it has been sent, and saves on the one that its job names.
LISTENS = """
import os, signal, sys, time
heard = "heard.%s" % os.environ["CLUSTERCTL_ATTEMPT"]
def hear(number, _):
    with open(heard, "a") as file:
        print(signal.Signals(number).name, file=file)
    if number == signal.SIGUSR1:
        open("saved", "w").close()
        sys.exit(3)
for name in sys.argv[1:]:
    signal.signal(signal.Signals[name], hear)
if os.path.exists("saved"):
    sys.exit()
open("ready", "w").close()
while True:
    time.sleep(0.1)
"""


@pytest.mark.long
@pytest.mark.parametrize("warned", [True, False], ids=["warned", "unwarned"])
@pytest.mark.parametrize("handles", ["USR1", "USR1,TERM"])
def test_what_a_program_that_saves_on_usr1_gets_at_a_preemption(stage: Stage, warned: bool, handles: str) -> None:
    """A site that warns gives it time to save; otherwise Slurm sends TERM to each process. The run goes on anyway."""
    (stage.folder / "listens.py").write_text(LISTENS)
    names = [f"SIG{name}" for name in handles.split(",")]
    job = [*("--partition", "preemptable"), *("--set", "resources.exclusive=true"), *("--set", "restart.signal=USR1")]
    job += ["--set", f"resources.warning={60 * warned}", "--set", "restart.progress=saved"]
    done = stage.call("submit", *job, "--cluster", stage.cluster, "--", "python", "listens.py", *names)
    assert done.returncode == 0, done.stderr
    run = RunDir(stage.runs / done.stdout.strip())
    wait_until((run.work / "ready").exists, 60, "the program")
    preempt(stage)
    seen, first = run.work / "heard.0", run.attempt(0).host_json
    heard = [] if handles == "USR1" else ["SIGTERM"]  # its default action ends the program
    if warned or heard:
        stage.wait_for_state(run, "finished", seconds=120)
        assert sorted(seen.read_text().splitlines()) == [*([] if warned else heard), "SIGUSR1"]
    else:
        wait_until((run.attempt(1).path / "marks" / "00000.running").exists, 120, "the next attempt")
        assert not seen.exists()
    host = read_json(first)
    assert (host["requeued"], host.get("unasked", False)) == (True, warned)
    assert host["signal"] == ("" if warned else "TERM")
