"""What users do, from the command line to the end of the run. Written once, run on every back end."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from support.recorded import begun, recorded
from support.scenario import ON_SLURM, Stage, alive, wait_until

from clusterctl.shared.record.files import read_lines
from clusterctl.shared.record.layout import RunDir

THROUGH_A_HOST = True

CORA = Path(__file__).resolve().parents[2] / "data" / "cora"
SHAPE = "[resources]\nnodes = 2\ntasks_per_node = 2\n"
REDDIT = (
    f'workload = "reddit"\n{SHAPE}\n[train]\nepochs = 2\nbatch_size = 128\n[data]\nroot = {json.dumps(str(CORA))}\n'
)


def command(program: str, shape: str = SHAPE) -> str:
    return f'workload = "command"\nargv = ["python", "-c", {json.dumps(program)}]\n{shape}'


@ON_SLURM
def test_a_users_program_gets_its_rank_its_peers_and_its_code(stage: Stage) -> None:
    (stage.folder / "helper.py").write_text("GREETING = 'hallo'\n")
    program = """
import os, helper, clusterctl.program
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OWN")
print(helper.GREETING, *(os.environ[name] for name in names))
clusterctl.program.log(step=7, loss=0.25)
"""
    job = stage.write_job("own", command(program, f'{SHAPE}[env]\nOWN = "it\'s $HOME"\n'))
    run = stage.submit(job, "--wait")
    lines = [stage.log(run, rank).splitlines()[-1].split(" ", 7) for rank in range(4)]
    assert [line[:4] for line in lines] == [["hallo", str(rank), "4", str(rank % 2)] for rank in range(4)]
    assert {line[4] for line in lines} == {"2"}
    assert len({tuple(line[5:7]) for line in lines}) == 1
    assert {line[7] for line in lines} == {"it's $HOME"}
    status = stage.status(run)
    assert (status["stage"], status["exit_code"], status["loss"], status["step"]) == ("finished", 0, 0.25, 7)


@pytest.mark.long
@ON_SLURM
def test_reddit_trains_on_real_data_and_its_accuracy_is_in_the_json(stage: Stage) -> None:
    run = stage.submit(stage.write_job("cora", REDDIT), "--wait")
    status = stage.status(run)
    assert status["stage"] == "finished"
    assert 0.3 < status["test_accuracy"] <= 1
    assert status["metrics"]["test_nodes"] == 542
    losses = [line["loss"] for line in read_lines(run.attempt(0).metrics) if "loss" in line]
    assert losses[-1] < losses[0]
    stages = [e["stage"] for e in recorded(run.attempt(0), 3) if e["event"] == "stage"]
    assert stages[:4] == ["importing", "rendezvous", "loading", "training"]
    assert not (CORA / "processed").exists()


@pytest.mark.long
@ON_SLURM
def test_a_failing_rank_ends_the_other_ranks_and_the_run_within_seconds(stage: Stage) -> None:
    program = "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(3)\ntime.sleep(600)"
    began = time.monotonic()
    done = stage.call("submit", stage.write_job("failing", command(program)), "--cluster", stage.cluster, "--wait")
    run = RunDir(stage.runs / done.stdout.strip())
    assert done.returncode == 1
    assert f"error: run {run.id} ended: failed" in done.stderr
    exits = {
        rank: [e for e in recorded(run.attempt(0), rank) if e["event"] == "exit"][-1] for rank in begun(run.attempt(0))
    }
    assert exits[1]["code"] == 3
    host = json.loads(run.attempt(0).host_json.read_text())
    assert host["end"] - exits[1]["time"] < 5  # KillWait is 30 s
    assert time.monotonic() - began < 60
    assert alive(run) == []


@pytest.mark.long
@ON_SLURM
def test_a_killed_rank_does_not_leave_its_peers_in_a_collective(stage: Stage) -> None:
    job = REDDIT.replace("epochs = 2", "epochs = 10000") + "[restart]\nlimit = 0\n"
    run = stage.submit(stage.write_job("killed", job))
    stage.wait_for_state(run, "training", "evaluating")
    (victim,) = alive(run, rank=2)
    os.kill(victim, signal.SIGKILL)
    killed = time.time()
    assert stage.wait_for_state(run, "failed")["exit_code"] != 0
    assert json.loads(run.attempt(0).host_json.read_text())["end"] - killed < 5
    wait_until(lambda: not alive(run), 10, "the tasks, and those that clean up, to be gone")


@pytest.mark.long
@ON_SLURM
def test_cancel_ends_a_run_and_reports_it(stage: Stage) -> None:
    run = stage.submit(stage.write_job("endless", command("import time; time.sleep(600)")))
    wait_until(lambda: len(begun(run.attempt(0))) == 4)
    assert stage.call("cancel", run.id, "--cluster", stage.cluster).returncode == 0
    status = stage.wait_for_state(run, "cancelled", seconds=20)
    assert status["exit_code"] != 0
    wait_until(lambda: not alive(run), 10, "the tasks to be gone")
    again = stage.call("cancel", run.id, "--cluster", stage.cluster)
    assert again.returncode == 0
    assert "cancelled" in again.stderr + again.stdout


@pytest.mark.long
def test_the_time_limit_warns_first_and_then_ends_the_run(stage: Stage) -> None:
    program = """
import signal, time
signal.signal(signal.SIGUSR2, lambda *_: print("warned", time.time(), flush=True))
print("began", flush=True)
while True: time.sleep(0.1)
"""
    shape = '[resources]\nnodes = 1\ntasks_per_node = 2\ntime = "10s"\nwarning = "6s"\n'
    done = stage.call(
        "submit", stage.write_job("limited", command(program, shape)), "--cluster", stage.cluster, "--wait", timeout=200
    )
    run = RunDir(stage.runs / done.stdout.strip())
    assert done.returncode == 1
    assert stage.status(run)["stage"] == "timed-out"
    assert all("warned" in stage.log(run, rank) for rank in range(2))


@pytest.mark.parametrize(
    "name",
    [
        "$HOME `id`",
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in ["two words", "it's", 'a "q"', "größe-数", "#1; exit 9 &"]
        ),
    ],
)
def test_runs_and_data_live_in_folders_of_any_name(stage: Stage, name: str) -> None:
    folder = stage.folder.parent / name
    folder.mkdir()
    stage.keep_runs_in(folder / "runs")
    (folder / "data").symlink_to(CORA)
    program = "import os, sys; print(os.getcwd()); print(os.environ['CLUSTERCTL_RUN_DIR'])"
    text = command(
        program, f"[resources]\nnodes = 2\n[data]\nroot = {json.dumps(str(folder / 'data'), ensure_ascii=False)}\n"
    )
    run = stage.submit(stage.write_job("paths", text), "--wait")
    assert stage.log(run, 1).splitlines()[-1] == str(run.path)
    assert run.finished_json.is_file()


@pytest.mark.long
@ON_SLURM
def test_a_run_reads_data_from_a_folder_with_a_hostile_name(stage: Stage) -> None:
    folder = stage.folder.parent / 'it\'s "data" $HOME ü'
    folder.mkdir()
    (folder / "cora").symlink_to(CORA)
    stage.keep_runs_in(folder / "runs")
    job = REDDIT.replace(json.dumps(str(CORA)), json.dumps(str(folder / "cora"), ensure_ascii=False))
    run = stage.submit(stage.write_job("cora", job), "--nodes", "1", "--tasks-per-node", "1", "--wait")
    assert stage.status(run)["metrics"]["test_nodes"] == 542


@pytest.mark.long
def test_two_concurrent_runs_do_not_interfere(stage: Stage) -> None:
    job = stage.write_job("cora", REDDIT)
    runs = [stage.submit(job, "--tasks-per-node", "1") for _ in range(2)]
    accuracies = [stage.wait_for_state(run, "finished", "failed")["test_accuracy"] for run in runs]
    assert accuracies[0] == accuracies[1] is not None
    ports = [json.loads(run.attempt(0).rendezvous.read_text())["port"] for run in runs]
    assert ports[0] != ports[1]


@pytest.mark.long
@ON_SLURM
def test_a_held_run_waits_until_it_is_released(stage: Stage) -> None:
    run = stage.submit(stage.write_job("held", command("print('ran')", "")), "--hold")
    assert stage.status(run)["stage"] == "queued"
    assert stage.call("release", run.id, "--cluster", stage.cluster).returncode == 0
    stage.wait_for_state(run, "finished")


@pytest.mark.long
def test_wait_times_out_and_the_run_continues(stage: Stage) -> None:
    job = stage.write_job("slow", command("import time; time.sleep(600)", ""))
    done = stage.call("submit", job, "--cluster", stage.cluster, "--wait", "--timeout", "1")
    assert done.returncode == 124
    run = RunDir(stage.runs / done.stdout.strip())
    assert stage.status(run)["stage"] not in ("cancelled", "failed", "lost")


def test_ctrl_c_during_follow_detaches_without_ending_the_run(stage: Stage) -> None:
    job = stage.write_job("followed", command("import time; print('up', flush=True); time.sleep(600)", ""))
    follow = stage.begin("submit", job, "--cluster", stage.cluster, "--follow")
    run = wait_until(lambda: next((RunDir(p) for p in stage.runs.glob("followed-*")), None))
    wait_until(lambda: run.attempt(0).log(0).is_file() and "up" in stage.log(run, 0))
    os.killpg(follow.pid, signal.SIGINT)  # as a terminal does: to the whole foreground group
    _, errors = follow.communicate(timeout=60)
    assert follow.returncode == 130
    assert "the run continues" in errors
    assert alive(run)
    assert stage.status(run)["stage"] not in ("cancelled", "failed", "lost")


def test_logs_show_every_rank_and_follow_to_the_end(stage: Stage) -> None:
    program = (
        "import os, time\nfor i in range(3): print('line', i, 'of', os.environ['RANK'], flush=True); time.sleep(0.3)"
    )
    run = stage.submit(stage.write_job("talking", command(program)))
    followed = stage.call("logs", "-f", run.id, "--cluster", stage.cluster)
    assert followed.returncode == 0
    assert all(f"line {i} of {rank}" in followed.stdout for i in range(3) for rank in range(4))
    one = stage.call("logs", run.id, "--rank", "2", "--tail", "1", "--cluster", stage.cluster)
    assert one.stdout.strip().endswith("line 2 of 2")


@pytest.mark.here
def test_a_user_error_is_reported_by_the_task_without_a_traceback(stage: Stage) -> None:
    raw = stage.folder / "broken" / "raw"
    raw.mkdir(parents=True)
    for name in ("reddit_data.npz", "reddit_graph.npz"):
        (raw / name).write_text("no archive")
    job = REDDIT.replace(json.dumps(str(CORA)), '"./broken"')
    small = ("--nodes", "1", "--tasks-per-node", "1")
    done = stage.call("submit", stage.write_job("nodata", job), "--cluster", stage.cluster, "--wait", *small)
    assert done.returncode == 1
    run = RunDir(stage.runs / done.stdout.strip())
    errors = stage.log(run, 0, "err")
    assert "error: " in errors
    assert "as a Reddit data set" in errors
    assert "hint: " in errors
    assert "Traceback" not in errors
