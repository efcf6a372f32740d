"""A user's own batch script as a run: submitted as it is, followed, explained, ended and started again."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from support.scenario import Stage, wait_until

from clusterctl.launcher.observe.run_names import job_name
from clusterctl.shared.record.layout import RunDir

TWO_BY_TWO = "#SBATCH --nodes=2 --ntasks-per-node=2\n"
UNTIL_A_FILE = "while [ ! -e go ]; do sleep 0.2; done\n"


def write(stage: Stage, text: str, name: str = "train.sbatch") -> str:
    (stage.folder / name).write_text(f"#!/bin/bash\n{text}")
    return f"./{name}"


def why(stage: Stage, run: RunDir) -> dict[str, Any]:
    done = stage.call("why", run.id, "--cluster", stage.cluster, "-o", "json")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def logs(stage: Stage, run: RunDir, *words: str) -> str:
    done = stage.call("logs", run.id, "--cluster", stage.cluster, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_script_runs_as_it_is_and_is_a_run(stage: Stage) -> None:
    script = write(stage, f'{TWO_BY_TWO}echo "got $*, LR=$LR"\nsrun bash -c "echo rank \\$SLURM_PROCID"\n')
    run = stage.submit(script, "--set", "env.LR=3", "--wait", "--", "a b", "--epochs")
    found = stage.status(run)
    assert (job_name(run.id), found["stage"], found["exit_code"]) == ("train", "finished", 0)
    assert "got a b --epochs, LR=3" in logs(stage, run)
    assert {f"rank {rank}" in logs(stage, run) for rank in range(4)} == {True}
    of_two = logs(stage, run, "--rank", "2")
    assert "rank 2" in of_two
    assert "rank 1" not in of_two
    assert [path.name for path in stage.folder.glob("slurm-*.out")] == [f"slurm-{stage.job_id(run)}.out"]
    assert stage.call("report", run.id, "--cluster", stage.cluster).returncode == 0
    listed = stage.call("status", "--all-jobs", "--cluster", stage.cluster, "-o", "json")
    others = {job["job_id"] for job in json.loads(listed.stdout)["jobs"]}  # of other tests
    assert stage.job_id(run) not in others, "its job is the run's"


@pytest.mark.long
def test_a_sweep_varies_variables_and_arguments(stage: Stage) -> None:
    script = write(stage, 'echo "LR=$LR $*"\n')
    words = ("--sweep", "env.LR=1,2", "--sweep", "seed=5,6", "--wait", "--", "--seed", "{seed}")
    done = stage.call("submit", script, "--cluster", stage.cluster, *words)
    assert done.returncode == 0, done.stderr
    runs = [RunDir(stage.runs / f"{done.stdout.strip()}.{place}") for place in range(4)]
    shown = [logs(stage, run).split("LR=")[1].strip() for run in runs]
    assert shown == ["1 --seed 5", "1 --seed 6", "2 --seed 5", "2 --seed 6"]


def test_a_killed_rank_is_named_and_the_run_repeated(stage: Stage) -> None:
    ending = 'srun -K bash -c "if [ \\$SLURM_PROCID = \\$WHICH ]; then kill -9 \\$\\$; fi; sleep 20"\n'
    run = stage.submit(write(stage, f"{TWO_BY_TWO}{ending}"), "--set", "env.WHICH=3")
    stage.wait_for_state(run, "failed")
    found = why(stage, run)
    assert (found["class"], found["rank"], found["node"]) == ("killed", 3, "node2")
    again = stage.call("rerun", run.id, "--cluster", stage.cluster, "--set", "env.WHICH=9", "--set", "resources.time=5")
    assert again.returncode == 0, again.stderr
    stage.call("cancel", "--yes", "--cluster", stage.cluster, again.stdout.strip())


VICTIM = """
import os, signal, time
print("rank", os.environ.get("SLURM_PROCID"), flush=True)
if os.environ.get("RANK", os.environ.get("SLURM_PROCID")) == os.environ.get("WHICH", "1"):
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(30)
"""
HEAD = "head=$(scontrol show hostnames | head -n 1)\n"
# How people write scripts, and the rank that is killed there; None: it is no task of Slurm's.
SHAPES: dict[str, tuple[str, int | None]] = {
    "ranks": (f"{TWO_BY_TWO}srun -K python3 victim.py\n", 1),
    "meeting at the first node": (
        (
            f"{TWO_BY_TWO}{HEAD}export MASTER_ADDR=$head MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))\n"
            "srun --kill-on-bad-exit=1 bash -c 'RANK=$SLURM_PROCID python3 victim.py'\n"
        ),
        1,
    ),
    "strict, after a step": (
        f"{TWO_BY_TWO}set -euo pipefail\nsrun -n 1 -N 1 true\nsrun -K python3 victim.py\necho never\n",
        1,
    ),
    "steps in the background": (
        (
            f"{TWO_BY_TWO}srun -N 1 -n 1 --exact --overlap sleep 30 & first=$!\n"
            "srun -N 1 -n 2 --exact --overlap -K python3 victim.py & second=$!\n"
            "wait $second; code=$?; kill $first; exit $code\n"
        ),
        1,
    ),
    "a server beside a trainer": (
        (
            f"{TWO_BY_TWO}WHICH=0 srun -N 1 -n 1 --overlap python3 victim.py & server=$!\n"
            "srun -N 1 -n 1 --overlap sleep 30 & trainer=$!\nwait $server || { kill $trainer; exit 1; }\n"
        ),
        0,
    ),
    "a loop over folds": (
        f"{TWO_BY_TWO}for fold in 0 1 2; do\n  WHICH=$((2 - fold)) srun -K python3 victim.py || exit\ndone\n",
        2,
    ),
    "a here-document": (f"{TWO_BY_TWO}srun -K -n 1 -N 1 bash <<'EOF'\nsleep 0.5\nkill -9 $$\nEOF\n", 0),
    "a pipe to a log": (f"{TWO_BY_TWO}set -o pipefail\nsrun -K --label python3 victim.py 2>&1 | tee log.txt\n", 1),
    "exec": (f"{TWO_BY_TWO}exec srun -K python3 victim.py\n", 1),
    "conda and modules": (
        (
            f"{TWO_BY_TWO}conda() {{ export CONDA_DEFAULT_ENV=$2; }}\nmodule() {{ :; }}\n"
            "module load cuda; conda activate own\nsrun -K env python3 -u victim.py\n"
        ),
        1,
    ),
    "no srun": ("#SBATCH --nodes=1\nset -o pipefail\nWHICH=0 python3 victim.py 2>&1 | tee log.txt\n", None),
    "torchrun": (
        (
            f"#SBATCH --nodes=2 --ntasks-per-node=1\n{HEAD}export WHICH=3\n"
            f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH\n"
            "srun -K torchrun --nnodes=2 --nproc-per-node=2 "
            "--rdzv-backend=c10d --rdzv-endpoint=$head:29517 --rdzv-id=$SLURM_JOB_ID victim.py\n"
        ),
        1,  # its workers are rank 2 and 3
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES)
def test_who_was_killed_is_certain_however_the_script_is_written(stage: Stage, shape: str) -> None:
    (stage.folder / "victim.py").write_text(VICTIM)
    text, rank = SHAPES[shape]
    run = stage.submit(write(stage, text))
    stage.wait_for_state(run, "failed", seconds=120)
    found = why(stage, run)
    assert (found["class"], found["rank"], found["certainty"]) == ("killed", rank, "certain")
    assert "SIGKILL" in found["cause"]
    assert ("worker with rank 3" in " ".join([found["cause"], *found["facts"]])) == (shape == "torchrun")


@pytest.mark.long
def test_a_rank_that_cannot_start_or_says_nothing_is_not_taken_for_killed(stage: Stage) -> None:
    (stage.folder / "plain.txt").write_text("hello\n")
    last = """srun -K bash -c 'if [ "$SLURM_PROCID" = 1 ]; then exit 5; fi; sleep 20'\n"""
    scripts = {
        "srun -K no-such-program --nnodes=2\n": ("launch", "cannot start no-such-program: no such program on PATH"),
        "srun no-such-program\n": ("launch", "cannot start no-such-program: no such program on PATH"),
        "srun ./plain.txt\n": ("launch", f"cannot start {stage.folder}/./plain.txt: Permission denied"),
        last: ("user-error", "exited with 5"),
    }
    for text, expected in scripts.items():
        run = stage.submit(write(stage, f"#SBATCH --nodes=2 --ntasks-per-node=1\n{text}"))
        stage.wait_for_state(run, "failed")
        found = why(stage, run)
        assert (found["class"], found["cause"]) == expected
        assert found["certainty"] == "certain"


def test_an_exception_of_a_rank_is_shown_with_its_traceback(stage: Stage) -> None:
    failing = 'if os.environ["SLURM_PROCID"] == "1":\n    raise ValueError("no such data set")\n'
    (stage.folder / "train.py").write_text(f"import os, time\n{failing}time.sleep(20)\n")
    run = stage.submit(write(stage, f"{TWO_BY_TWO}srun -K python3 train.py\n"))
    stage.wait_for_state(run, "failed")
    found = why(stage, run)
    assert (found["class"], found["rank"]) == ("user-error", 1)
    assert "ValueError: no such data set" in found["cause"]
    assert "train.py" in found["traceback"]


@pytest.mark.long
def test_a_script_without_srun_is_explained_by_its_output(stage: Stage) -> None:
    run = stage.submit(write(stage, "echo begin\npython3 -c 'import no_such_module'\n"))
    stage.wait_for_state(run, "failed")
    found = why(stage, run)
    assert "No module named 'no_such_module'" in found["cause"]
    assert found["rank"] is None


@pytest.mark.long
def test_a_script_ended_by_a_signal_fails_the_wait(stage: Stage) -> None:
    done = stage.call("submit", write(stage, "kill -TERM $$\n"), "--cluster", stage.cluster, "--wait")
    assert done.returncode == 1
    assert "SIGTERM" in why(stage, RunDir(stage.runs / done.stdout.strip()))["cause"]


def test_a_running_script_is_cancelled_resumed_and_followed_by_another(stage: Stage) -> None:
    script = write(stage, f"echo attempt\n{UNTIL_A_FILE}")
    run = stage.submit(script)
    stage.wait_for_state(run, "training")
    assert "batch script is running" in why(stage, run)["cause"]
    after = stage.submit(write(stage, "echo second\n", "second.sh"), "--after", run.id)
    assert stage.status(after)["stage"] == "queued"
    assert stage.call("cancel", "--yes", "--cluster", stage.cluster, run.id).returncode == 0
    stage.wait_for_state(run, "cancelled")
    stage.wait_for_state(after, "cancelled")
    (stage.folder / "go").touch()
    assert stage.call("resume", run.id, "--cluster", stage.cluster).returncode == 0
    stage.wait_for_state(run, "finished")
    assert [attempt.number for attempt in run.attempts()] == [0, 1]


@pytest.mark.long
@pytest.mark.parametrize("change", ["it vanishes", "it is edited"])
def test_a_script_runs_as_it_was_at_the_submission(stage: Stage, change: str) -> None:
    script = write(stage, "echo as it was\n")
    run = stage.submit(script, "--hold")
    (stage.folder / script).unlink()
    if change == "it is edited":
        write(stage, "echo another; exit 3\n")
    assert stage.call("release", run.id, "--cluster", stage.cluster).returncode == 0
    stage.wait_for_state(run, "finished")
    assert "as it was" in logs(stage, run)
    repeated = stage.call("rerun", run.id, "--cluster", stage.cluster, "--wait")
    assert repeated.returncode == 0, repeated.stderr


@pytest.mark.long
def test_a_requeued_script_is_the_same_run(stage: Stage) -> None:
    run = stage.submit(write(stage, f'echo "start ${{SLURM_RESTART_COUNT:-0}}"\n{UNTIL_A_FILE}'))
    stage.wait_for_state(run, "training")
    stage.slurm("scontrol", "requeue", stage.job_id(run))
    wait_until(lambda: len(run.attempts()) == 2, 90)
    (stage.folder / "go").touch()
    stage.wait_for_state(run, "finished")
    assert "start 1" in logs(stage, run)


def test_a_killed_script_runs_again_in_its_own_job_if_the_user_asks_for_it(stage: Stage) -> None:
    body = """echo "start ${SLURM_RESTART_COUNT:-0}"
srun -K bash -c 'if [ "$SLURM_PROCID$SLURM_RESTART_COUNT" = 1 ]; then kill -9 $$; fi'
"""
    run = stage.submit(write(stage, f"{TWO_BY_TWO}set -e\n{body}"), "--set", "restart.limit=2", "--wait")
    assert [attempt.number for attempt in run.attempts()] == [0, 1]
    assert {f"start {number}" in logs(stage, run) for number in (0, 1)} == {True}
    assert stage.status(run)["stage"] == "finished"


@pytest.mark.long
def test_restarts_of_a_script_are_counted_and_an_exception_is_none(stage: Stage) -> None:
    killed = stage.submit(write(stage, "kill -9 $$\n"), "--set", "restart.limit=2")
    failed = stage.submit(write(stage, "exit 3\n", "fails.sh"), "--set", "restart.limit=2")
    stage.wait_for_state(killed, "failed")
    stage.wait_for_state(failed, "failed")
    assert (len(killed.attempts()), len(failed.attempts())) == (3, 1)
    cancelled = stage.submit(write(stage, UNTIL_A_FILE, "waits.sh"), "--set", "restart.limit=2")
    stage.wait_for_state(cancelled, "training")
    stage.call("cancel", "--yes", "--cluster", stage.cluster, cancelled.id)
    stage.wait_for_state(cancelled, "cancelled")
    assert len(cancelled.attempts()) == 1


@pytest.mark.long
def test_a_script_with_restarts_is_requeued_before_its_time_limit_and_gets_signals(stage: Stage) -> None:
    text = """trap 'echo got USR1' USR1
echo "start ${SLURM_RESTART_COUNT:-0}"
[ -n "$SLURM_RESTART_COUNT" ] || for _ in {1..600}; do sleep 0.2; done
"""
    run = stage.submit(write(stage, text), "--set", "restart.limit=1", "-t", "1")
    stage.wait_for_state(run, "training")
    wait_until(lambda: "start 0" in logs(stage, run), 30)
    stage.slurm("scancel", "-b", "-s", "USR1", stage.job_id(run))
    wait_until(lambda: "got USR1" in logs(stage, run), 30)
    stage.wait_for_state(run, "finished", seconds=200)
    assert len(run.attempts()) == 2
    assert "start 1" in logs(stage, run)


@pytest.mark.long
def test_a_script_that_submits_itself_starts_another_job(stage: Stage) -> None:
    run = stage.submit(
        write(stage, 'if [ "$1" != again ]; then sbatch --output=other.out "$0" again; fi\nsrun echo "$1"\n')
    )
    stage.wait_for_state(run, "finished")
    other = stage.folder / "other.out"
    wait_until(lambda: other.exists() and "again" in other.read_text())
    assert len(run.attempts()) == 1
    assert stage.status(run)["stage"] == "finished"


@pytest.mark.long
def test_ranks_are_left_alone_if_one_asks_for_it(stage: Stage) -> None:
    run = stage.submit(write(stage, f"{TWO_BY_TWO}command -v srun\nsrun echo here\n"), "--set", "see_ranks=false")
    stage.wait_for_state(run, "finished")
    assert str(run.path) not in logs(stage, run)
    assert not (run.attempt(0).path / "logs").exists()


@pytest.mark.long
@pytest.mark.parametrize("back_end", ["sandbox"], indirect=True)
def test_a_task_prolog_would_end_the_tasks_of_jobs_that_outlive_its_run(stage: Stage) -> None:
    """So no script gets one for the starts that our srun cannot see (docs/decisions/batch-scripts.md)."""
    prolog = stage.folder / "prolog"
    prolog.write_text("#!/bin/sh\n")
    prolog.chmod(0o755)
    words = ["sbatch", "--wait", f"--chdir={stage.folder}", "--output=%j.out", "--parsable", "--wrap"]
    steps = "srun -n1 echo it ran; true"
    given = f'export SLURM_TASK_PROLOG={prolog}; {steps}; sbatch --wait --output=later.out --wrap "{steps}"'
    for there in (True, False):
        job = stage.slurm(*words, given).strip()
        outputs = [(stage.folder / name).read_text() for name in (f"{job}.out", "later.out")]
        assert [("it ran" in output) for output in outputs] == [there] * 2, outputs
        prolog.unlink(missing_ok=True)
    script = write(
        stage,
        'real=$(PATH=${PATH#*:} type -P srun); echo "script: ${SLURM_TASK_PROLOG-none}, $real"\n'
        '"$real" -n1 bash -lc \'echo "task: ${SLURM_TASK_PROLOG-none}"\'\n',
    )
    run = stage.submit(script, "--wait")
    shown = logs(stage, run)
    assert "script: none, /" in shown
    assert str(run.path) not in shown
    assert "task: none" in shown


@pytest.mark.long
def test_what_one_output_shows_of_several_ranks_is_never_certain(stage: Stage) -> None:
    """Another rank may have written the last words."""
    failing = """srun -K python3 -c 'import os, time
if os.environ["SLURM_PROCID"] == "1": raise ValueError("wrong")
time.sleep(20)'
"""
    run = stage.submit(write(stage, f"{TWO_BY_TWO}{failing}"), "--set", "see_ranks=false")
    stage.wait_for_state(run, "failed")
    found = why(stage, run)
    assert (found["rank"], found["certainty"]) == (1, "likely")
    assert "ValueError: wrong" in found["cause"]


def test_a_run_where_nothing_of_ours_can_start_is_plain_sbatch(stage: Stage, tmp_path: Path) -> None:
    stage.keep_runs_in(tmp_path / "with space")
    done = stage.call("submit", write(stage, "echo here; exit 5\n"), "--cluster", stage.cluster, "--wait")
    assert done.returncode == 1
    assert "its start cannot be recorded" in done.stderr
    run = RunDir(stage.runs / done.stdout.strip())
    shown = stage.call("logs", run.id, "--cluster", stage.cluster)
    assert (shown.stdout, "its start was not recorded" in shown.stderr) == ("", True)
    assert (stage.status(run)["stage"], stage.status(run)["exit_code"]) == ("failed", 5)


ELEMENT = """#SBATCH --array=1,3,7-9:2%3 --output=%A-%a.txt
echo "$SLURM_ARRAY_TASK_ID: $SLURM_ARRAY_TASK_COUNT from $SLURM_ARRAY_TASK_MIN to $SLURM_ARRAY_TASK_MAX"
srun bash -c 'echo "rank of $SLURM_ARRAY_TASK_ID"'
while [ ! -e go ]; do sleep 0.2; done
[ "$SLURM_ARRAY_TASK_ID" != 3 ] || [ -n "$WELL" ]
"""


@pytest.mark.long
def test_an_array_is_a_sweep_whose_elements_become_runs_when_they_start(stage: Stage) -> None:
    sweep = stage.submit(write(stage, ELEMENT))
    first, third, waiting = (RunDir(stage.runs / f"{sweep.id}.{index}") for index in (1, 3, 9))
    stage.wait_for_state(first, "training")
    assert stage.status(waiting)["stage"] == "queued"
    assert not waiting.path.exists()
    assert why(stage, waiting)["class"] == "pending"
    listed = stage.call("status", "--all-jobs", "--cluster", stage.cluster, "-o", "json")
    array = stage.job_id(first).partition("_")[0]
    others = {one["job_id"].partition("_")[0] for one in json.loads(listed.stdout)["jobs"]}
    assert array not in others, "the array is the sweep's"
    after = stage.submit(write(stage, "echo second\n", "second.sh"), "--after-any", sweep.id)
    assert stage.call("cancel", "--yes", "--cluster", stage.cluster, waiting.id).returncode == 0
    stage.wait_for_state(waiting, "cancelled")
    (stage.folder / "go").touch()
    stage.wait_for_state(third, "failed")
    stage.wait_for_state(after, "finished")
    shown = stage.call("status", sweep.id, "--cluster", stage.cluster, "-o", "json")
    states = {one["id"].rpartition(".")[2]: one["stage"] for one in json.loads(shown.stdout)["runs"]}
    assert states == {"1": "finished", "3": "failed", "7": "finished", "9": "cancelled"}
    assert "3: 4 from 1 to 9" in logs(stage, third)
    assert "rank of 3" in logs(stage, third, "--rank", "0")
    assert sorted(path.name for path in stage.folder.glob("*.txt")) == [f"{array}-{index}.txt" for index in (1, 3, 7)]
    stage.call("resume", third.id, "--cluster", stage.cluster)
    stage.wait_for_state(third, "failed")
    assert "3: 1 from 3 to 3" in logs(stage, third), "the element alone, under its own index"
    again = stage.call("rerun", third.id, "--cluster", stage.cluster, "--set", "env.WELL=1")
    assert again.returncode == 0, again.stderr
    stage.wait_for_state(RunDir(stage.runs / again.stdout.strip()), "finished")


@pytest.mark.long
def test_an_array_that_slurm_refuses_leaves_nothing(stage: Stage) -> None:
    for indices in ("0-99999999", "3-1", "1-", "one"):
        done = stage.call("submit", write(stage, f"#SBATCH --array={indices}\n"), "--cluster", stage.cluster)
        assert done.returncode == 4, (indices, done.stderr)
        assert "Invalid job array" in done.stderr
        assert "train.sbatch:2" in done.stderr
    words = ("--array", "0-1", "--sweep", "env.LR=1,2")
    done = stage.call("submit", write(stage, ""), "--cluster", stage.cluster, *words)
    assert done.returncode == 2
    assert "cannot combine --sweep with --array" in done.stderr
    assert not [*stage.runs.glob("[!.]*")]
    assert not [*stage.runs.glob(".sweeps/[!.]*")]


def test_a_missing_folder_and_an_unknown_option_are_found_before_the_queue(stage: Stage) -> None:
    for text, words in (("-o no/such/%j.out", "no such folder"), ("--no-such-option", "--no-such-option")):
        done = stage.call("submit", write(stage, f"#SBATCH {text}\n"), "--cluster", stage.cluster)
        assert done.returncode in (3, 4)
        assert words in done.stderr
        assert "hint: " in done.stderr
    assert not [*stage.runs.glob("[!.]*")]
