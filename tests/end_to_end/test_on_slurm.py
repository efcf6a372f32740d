"""What only a real Slurm does to a run, and how clusterctl handles it; tests/faults covers how it ends runs."""

from __future__ import annotations

import json
import subprocess
import time

import pytest
from support.recorded import begun
from support.sandbox_fixture import RunningSandbox
from support.scenario import CLUSTERCTL, Stage, wait_until

from clusterctl.shared.record.layout import RunDir

SHAPE = "[resources]\nnodes = 2\ntasks_per_node = 2\n"


@pytest.fixture
def back_end(sandbox: RunningSandbox) -> str:
    return sandbox.cluster


def command(program: str, shape: str = SHAPE) -> str:
    return f'workload = "command"\nargv = ["python", "-c", {json.dumps(program)}]\n{shape}'


def slurm(stage: Stage, *words: str) -> str:
    return subprocess.run(words, env=stage.environment, capture_output=True, text=True, check=True).stdout


def job_id(run: RunDir) -> str:
    return str(json.loads(run.submission_json.read_text())["job_id"])


SHOW_GPUS = "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES', 'unset'))"


@pytest.mark.parametrize(
    ("resources", "seen"),
    [
        pytest.param("gpus_per_node = 2", ["0,1", "0,1"], marks=pytest.mark.long),
        pytest.param('gpus_per_node = "a100:2"', ["0,1", "0,1"], marks=pytest.mark.long),
        ('gpus_per_node = 2\ngpu_bind = "map_gpu:1,0"', ["1", "0"]),
        # unset by Slurm 22.05, 0,1 since
        pytest.param('gpus_per_node = 2\ngpu_bind = "none"', None, marks=pytest.mark.long),
        pytest.param('gpus_per_task = "1"\ntasks_per_node = 2', ["0", "1"], marks=pytest.mark.long),
    ],
)
def test_each_task_sees_the_gpus_that_slurm_gives_it(stage: Stage, resources: str, seen: list[str] | None) -> None:
    run = stage.submit(stage.write_job("gpus", command(SHOW_GPUS, f"[resources]\nnodes = 2\n{resources}\n")), "--wait")
    shown = [stage.log(run, rank).splitlines()[-1] for rank in range(4)]
    assert shown in ([seen * 2] if seen else [["unset"] * 4, ["0,1"] * 4])


@pytest.mark.long
def test_gpus_can_be_requested_as_gres(stage: Stage) -> None:
    (stage.folder / "cluster").mkdir()
    (stage.folder / "cluster" / "gres.toml").write_text('kind = "sandbox"\ngpu_request = "gres"\ngpus_per_node = 2\n')
    done = stage.call("submit", stage.write_job("gpus", command(SHOW_GPUS, "")), "--cluster", "gres", "--wait")
    assert done.returncode == 0, done.stderr
    run = RunDir(stage.runs / done.stdout.strip())
    assert "#SBATCH --gres=gpu:2" in run.script.read_text()
    assert [stage.log(run, rank).splitlines()[-1] for rank in range(2)] == ["0,1", "0,1"]


def test_an_unavailable_gpu_type_is_refused_and_the_available_ones_are_listed(stage: Stage) -> None:
    job = stage.write_job("gpus", command(SHOW_GPUS, '[resources]\ngpus_per_node = "h100:2"\n'))
    done = stage.call("submit", job, "--cluster", stage.cluster)
    assert done.returncode == 4, done.stderr
    assert "requests 2 h100 GPUs per node; main partition nodes have 0 h100 GPUs" in done.stderr
    assert "available GPU types: a100" in done.stderr


@pytest.mark.long
def test_a_training_job_that_requests_gpus_and_sees_none_fails_with_a_message(stage: Stage) -> None:
    """The sandbox's GPUs are device files without a device, which causes exactly this error."""
    job = 'workload = "synthetic"\n[resources]\ngpus_per_node = 2\n[train]\navg_num_nodes = 500\n'
    done = stage.call("submit", stage.write_job("nogpu", job), "--cluster", stage.cluster, "--wait")
    assert done.returncode == 1
    errors = stage.log(RunDir(stage.runs / done.stdout.strip()), 0, "err")
    assert "error: " in errors
    assert "GPU" in errors
    assert "Traceback" not in errors


def test_dry_run_slurm_asks_slurm_without_submitting(stage: Stage) -> None:
    job = stage.write_job("asked", command("pass"))
    possible = stage.call("submit", job, "--cluster", stage.cluster, "--dry-run=slurm")
    assert possible.returncode == 0
    assert possible.stdout.startswith("#!/bin/bash")
    assert "to start at" in possible.stderr
    words = ("--set", "resources.constraint=none")
    impossible = stage.call("submit", job, "--cluster", stage.cluster, "--dry-run=slurm", *words)
    assert impossible.returncode == 4
    assert "error: sbatch refused the job" in impossible.stderr
    assert "hint: " in impossible.stderr
    assert not list(stage.runs.glob("asked-*"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--partition", "none"], "invalid partition"),
        (["--set", "resources.constraint=none"], "sbatch refused the job"),
        (["--set", 'resources.sbatch={"no-such-option"="1"}'], "unrecognized option"),
    ],
)
def test_a_refused_submission_leaves_no_run_behind(stage: Stage, words: list[str], message: str) -> None:
    job = stage.write_job("refused", command("pass"))
    done = stage.call("submit", job, "--cluster", stage.cluster, *words)
    assert done.returncode == 4
    assert message.lower() in done.stderr.lower()
    assert "hint: " in done.stderr
    assert not list(stage.runs.glob("refused-*"))


def test_a_run_is_submitted_from_inside_an_allocation(stage: Stage) -> None:
    """None of the outer job's variables may reach the inner job: nodes, task count, job ID."""
    job = stage.write_job("inner", command("import os; print(os.environ['SLURM_JOB_ID'], os.environ['WORLD_SIZE'])"))
    outer = ["salloc", "--nodes=1", "--ntasks=1", "--job-name=outer"]
    inner = [CLUSTERCTL, "submit", job, "--cluster", stage.cluster, "--wait"]
    done = subprocess.run(
        [*outer, *inner], cwd=stage.folder, env=stage.environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    run = RunDir(stage.runs / done.stdout.strip())
    shown, ranks = stage.log(run, 3).split()[-2:]
    assert (shown, ranks) == (job_id(run), "4")


@pytest.mark.long
def test_while_the_controller_is_down_nothing_hangs_and_nothing_is_lost(stage: Stage, sandbox: RunningSandbox) -> None:
    run = stage.submit(stage.write_job("steady", command("import time; time.sleep(600)", "")))
    wait_until(lambda: begun(run.attempt(0)))
    with sandbox.paused("slurmctld"):  # it accepts connections and never answers: the worst kind of outage
        time.sleep(1)  # the polling floor: Slurm's last answer is reused until then
        began = time.monotonic()
        shown = stage.call("status", run.id, "--cluster", stage.cluster, "-o", "json")
        assert time.monotonic() - began < 60  # one query takes up to 10 s, and this machine may be busy
        assert shown.returncode == 0
        (record,) = json.loads(shown.stdout)["runs"]
        assert (record["stage"], record["sure"]) == ("training", False)
        assert "warning: " in shown.stderr
        cancelled = stage.call("cancel", run.id, "--cluster", stage.cluster)
        assert cancelled.returncode == 4
        assert "error: " in cancelled.stderr
    assert stage.wait_for_state(run, "training", "cancelled", seconds=60)
    assert stage.call("cancel", run.id, "--cluster", stage.cluster).returncode == 0
    stage.wait_for_state(run, "cancelled", seconds=30)


@pytest.mark.long
def test_an_unanswered_submission_is_found_again_if_slurm_accepted_it(stage: Stage, sandbox: RunningSandbox) -> None:
    job = stage.write_job("unanswered", command("print('ran')", ""))
    with sandbox.paused("slurmctld"):  # it accepts connections and never answers: the worst kind of outage
        done = stage.call("submit", job, "--cluster", stage.cluster, timeout=120)
    assert done.returncode == 4
    assert "error: " in done.stderr
    assert "hint: " in done.stderr
    for path in stage.runs.glob("unanswered-*"):  # Slurm may or may not have accepted the job when it resumed
        run = RunDir(path)
        if stage.status(run)["job_id"]:
            stage.wait_for_state(run, "finished")
            assert len(run.attempts()) == 1
