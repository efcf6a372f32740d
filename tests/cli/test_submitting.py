"""The cost of a submission, and several at the same time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.counted import counted
from support.mistake import Desk
from support.ranks import CORA

OURS = str(Path(sys.executable).with_name("clusterctl"))
COMMAND = 'workload = "command"\nargv = ["true"]\n'
RUN_AND_LIST = """
import json, sys
from clusterctl.launcher.cli import run
assert run(sys.argv[1:]) == 0
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


def test_the_training_set_is_read_once_however_many_submissions_there_are(desk: Desk) -> None:
    desk.use_slurm(sbatch="echo Submitted batch job 7")
    data = shutil.copytree(CORA, desk.folder / "data")  # no other test has read these files
    desk.write("job.toml", f'workload = "reddit"\n[resources]\nnodes = 2\n[data]\nroot = {json.dumps(str(data))}\n')
    with counted(data) as count:
        for _ in range(2):
            code, _, err = desk.type("submit ./job.toml", batches=True)
            assert code == 0
            assert "of 1,624 nodes" in err
    assert count.opened[str(data / "raw" / "reddit_data.npz")] == 2, "the training nodes, and the shape of the features"


def test_submit_does_not_import_the_modules_that_observe_runs(desk: Desk) -> None:
    desk.use_slurm(sbatch="echo Submitted batch job 7")
    desk.write("job.toml", COMMAND)
    words = [sys.executable, "-c", RUN_AND_LIST, "submit", "./job.toml"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    modules = set(json.loads(done.stderr.splitlines()[-1]))
    assert "submitit" in modules
    assert not modules & {"clusterctl.launcher.observe.attempt", "clusterctl.launcher.observe.status", "rich", "torch"}


RULES = """\
case "$*" in
"show config") echo "JobSubmitPlugins = $PLUGINS" ;;
"show partition") printf "PartitionName=%s PreemptMode=%s\\n" low CANCEL high REQUEUE ;;
"show job"*) printf "JobId=$3\\n   Requeue=$REQUEUE\\n" ;;
esac
"""
AGAIN = "restarts through the queue: in a job of its own, because "
CANCELLED = f"{AGAIN}Slurm cancels the jobs that it preempts in partition low"
SWITCHED_OFF = f"{AGAIN}this site has switched off requeueing"
ENDS = "warning: Slurm cancels the jobs that it preempts here: with --set restart.by=requeue the run ends then"
HINT = "hint: remove restart.by, so that the run goes on in a job of its own instead"


@pytest.mark.parametrize(
    ("words", "plugins", "said", "asked"),
    [
        ("--set resources.partition=low", "(null)", [CANCELLED], 2),
        ("--set resources.partition=low --hold", "lua", [CANCELLED], 2),
        ("--set resources.partition=low --set restart.limit=0", "lua", [], 0),
        ("--set resources.partition=low --set resources.requeue=false", "lua", [], 0),
        ("--set resources.partition=low --set restart.by=successor", "lua", [], 2),
        ("--set resources.partition=high", "(null)", [], 4),
        ("--set resources.partition=high", "lua", [SWITCHED_OFF], 5),
        ("--set resources.partition=high --set resources.nodes=1 --sweep env.A=1..3", "lua", [SWITCHED_OFF], 6),
        (
            "--set resources.partition=high --set restart.by=requeue",
            "lua",
            [
                "warning: this site has switched off requeueing, which --set restart.by=requeue needs",
                HINT,
            ],
            5,
        ),
        (
            "--set resources.partition=low --set restart.by=requeue",
            "(null)",
            [ENDS, HINT],
            4,
        ),
    ],
)
def test_a_submission_says_where_the_site_does_not_requeue(
    desk: Desk, words: str, plugins: str, said: list[str], asked: int
) -> None:
    desk.use_slurm(sbatch="echo Submitted batch job 7", scontrol=RULES)
    desk.write("job.toml", COMMAND)
    desk.set(PLUGINS=plugins, REQUEUE="0")
    code, _, err = desk.type(f"submit ./job.toml {words}")
    assert (code, err.splitlines()) == (0, said)
    assert desk.asked("scontrol") <= asked, "this site has no polling floor: nothing is remembered"


@pytest.mark.parametrize(
    ("words", "said", "known"),
    [
        ("--set resources.partition=low", CANCELLED, "yes"),
        ("--set resources.partition=high", "by a requeue, at least 120 s after the end of an attempt", ""),
        ("--set resources.partition=low,high", "; in partition low, where Slurm cancels the jobs that it", ""),
        ("--set resources.partition=low --set restart.by=requeue", "an attempt (restart.by)\nwarning: Slurm", "yes"),
        ("--set resources.partition=low --set restart.limit=0", None, ""),
        ("--cluster local", None, ""),
    ],
)
def test_a_dry_run_shows_how_the_queue_starts_the_run_again(
    desk: Desk, words: str, said: str | None, known: str
) -> None:
    desk.use_slurm(scontrol=RULES)
    desk.write("job.toml", COMMAND)
    code, script, err = desk.type(f"submit ./job.toml {words} --dry-run")
    assert code == 0
    assert f"\ncctl_cancels={known} #" in script
    assert said in err if said else "restarts" not in err


QUEUED = "of its own, queued with it (`successors` in the cluster file)"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--set resources.partition=high", f"in 2 jobs {QUEUED}, then by a requeue, at least 120 s after the end"),
        ("--set resources.partition=low", f"in 2 jobs {QUEUED}, then in a job of its own, because Slurm cancels"),
        ("--set restart.by=successor", f"in 2 jobs {QUEUED}, then in a job of its own (restart.by)"),
        ("--set resources.partition=high --set restart.limit=1", f"in 1 job {QUEUED}\n"),
        ("--set resources.partition=high --set restart.limit=2", f"in 2 jobs {QUEUED}\n"),
        ("--set restart.by=requeue", "through the queue: by a requeue"),
        ("--set restart.limit=0", None),
        ("--cluster ./emulated.toml", f"in 1 job {QUEUED}\n"),
    ],
)
def test_a_dry_run_shows_the_jobs_that_will_be_queued_with_the_run(desk: Desk, words: str, said: str | None) -> None:
    desk.use_slurm(scontrol=RULES)
    desk.write("job.toml", COMMAND)
    desk.write("queues.toml", 'kind = "slurm"\nsuccessors = 2\n')
    desk.write("emulated.toml", 'kind = "emulator"\nsuccessors = 1\n')
    where = "" if "--cluster" in words else "--cluster ./queues.toml"
    code, _, err = desk.type(f"submit ./job.toml {where} {words} --dry-run")
    assert code == 0, err
    assert said in err if said else "restarts" not in err


def test_the_first_submissions_of_a_user_may_be_concurrent(desk: Desk) -> None:
    """All of them create the folders, the emulator's stand-ins and the snapshot, none of which exist yet."""
    desk.write("job.toml", COMMAND)
    words = [OURS, "submit", "./job.toml", "--hold"]
    together = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(5)]
    outputs = [process.communicate(timeout=120) for process in together]
    assert [process.returncode for process in together] == [0] * 5, outputs
    runs = [out.strip() for out, _ in outputs]
    assert sorted(runs) == [path.name for path in desk.run_directories()]
    assert len({os.path.realpath(desk.runs / run / "code") for run in runs}) == 1
    desk.type(["cancel", "--yes", *runs])
    jobs = {json.loads((desk.runs / run / "submission.json").read_text())["job_id"] for run in runs}
    assert len(jobs) == 5


def test_a_dry_run_shows_what_spare_nodes_cost(desk: Desk) -> None:
    desk.write("job.toml", COMMAND + '[resources]\nnodes = 4\ntime = "12h"\n')
    _, script, err = desk.type("submit ./job.toml --dry-run --set resources.spare_nodes=2")
    assert "2 spare nodes held idle beside 4 nodes: up to 24 node hours for each job\n" in err
    assert "#SBATCH --nodes=6\n" in script
    assert "idle" not in desk.type("submit ./job.toml --dry-run")[2]
