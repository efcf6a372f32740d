"""Steps: tasks, their logs, their exit codes."""

from __future__ import annotations

import subprocess
import time

import pytest

FOUR = ["--nodes=2", "--ntasks-per-node=2"]


def test_each_rank_writes_its_own_log(cluster):
    text = 'srun --output="logs/%5t_%N_%n.out" --error=logs/%t.err bash -c "echo $SLURM_JOB_ID; echo bad >&2"; ls logs'
    (cluster.work / "logs").mkdir()
    state, log = cluster.finish(text, *FOUR)
    assert state == "COMPLETED"
    names = [f"0000{rank}_node{1 + rank // 2}_{rank // 2}.out" for rank in range(4)]
    assert log.split() == sorted([*names, *(f"{rank}.err" for rank in range(4))])
    assert (cluster.work / "logs" / names[3]).read_text() == "1\n"
    assert (cluster.work / "logs" / "2.err").read_text() == "bad\n"


def test_without_output_option_tasks_share_the_output_of_srun(cluster):
    state, log = cluster.finish("srun bash -c 'echo $SLURM_PROCID' | sort", *FOUR)
    assert (state, log) == ("COMPLETED", "0\n1\n2\n3\n")


def test_tasks_can_share_an_output_file(cluster):
    state, _ = cluster.finish("srun --output=all bash -c 'echo $SLURM_PROCID'", *FOUR)
    assert state == "COMPLETED"
    assert sorted((cluster.work / "all").read_text().split()) == ["0", "1", "2", "3"]


def test_a_steps_logs_follow_the_jobs_open_mode(cluster):
    text = "for i in 1 2; do srun --output=log echo $i; done"
    assert cluster.finish(text, "--open-mode=append")[0] == "COMPLETED"
    assert (cluster.work / "log").read_text() == "1\n2\n"
    assert cluster.finish(text)[0] == "COMPLETED"
    assert (cluster.work / "log").read_text() == "2\n"


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("bash -c 'exit $SLURM_PROCID'", 3, "node2: task 3: Exited with exit code 3"),
        ("bash -c 'kill -9 $$'", 137, "node1: task 0: Killed"),
        ("bash -c 'kill -SEGV $$'", 139, "node2: task 2: Segmentation fault"),
        ("/no/such/program", 2, "node1: task 1: Exited with exit code 2"),
        ("/etc/passwd", 13, "node1: task 1: Exited with exit code 13"),
    ],
)
def test_the_exit_code_is_the_highest_of_all_tasks(cluster, command, code, message):
    state, log = cluster.finish(f"srun {command}; echo code $?", *FOUR)
    assert state == "COMPLETED"
    assert f"code {code}\n" in log
    assert f"srun: error: {message}\n" in log


def test_without_kill_on_bad_exit_other_tasks_continue(cluster):
    _, log = cluster.finish("srun bash -c '[ $SLURM_PROCID = 0 ] && exit 5; sleep 0.3; echo went on'", "--ntasks=2")
    assert "went on\n" in log


def test_with_kill_on_bad_exit_a_failing_rank_ends_the_others_immediately(make_cluster):
    cluster = make_cluster(kill_wait=30)
    text = "srun --kill-on-bad-exit=1 bash -c '[ $SLURM_PROCID = 2 ] && exit 7; exec sleep 60'; echo code $?"
    begun = time.monotonic()
    state, log = cluster.finish(text, *FOUR)
    assert time.monotonic() - begun < 5
    assert state == "COMPLETED"
    assert "node2: task 2: Exited with exit code 7\n" in log
    assert "node1: task 0: Terminated\n" in log
    assert "code 143\n" in log


def test_a_rank_that_ignores_term_is_killed_after_kill_wait(cluster):
    text = """srun -K bash -c '
[ $SLURM_PROCID = 0 ] && { until [ -e ready ]; do sleep 0.02; done; exit 1; }
trap "" TERM; touch ready; while :; do sleep 0.1; done'; echo code $?"""
    begun = time.monotonic()
    _, log = cluster.finish(text, "--ntasks=2")
    assert time.monotonic() - begun >= 1
    assert "task 1: Killed\n" in log
    assert "code 137\n" in log


def test_a_signal_reaches_a_ranks_child_processes(cluster):
    text = (
        "srun -K bash -c '[ $SLURM_PROCID = 1 ] && exit 1; sleep 61 & sleep 62; true'; pgrep -f '^sleep 6[12]$'; true"
    )
    state, log = cluster.finish(text, "--ntasks=2")
    assert state == "COMPLETED"
    assert not any(line.isdigit() for line in log.splitlines())


def test_a_step_can_be_smaller_than_its_job(cluster):
    text = """show='echo $SLURM_PROCID of $SLURM_NTASKS on $SLURMD_NODENAME'
srun -N1 -n1 bash -c "$show"; srun --nodes=1 bash -c "$show" | sort; srun --ntasks-per-node=1 bash -c "$show" | sort"""
    _, log = cluster.finish(text, *FOUR)
    assert log.splitlines() == [
        "0 of 1 on node1",
        "0 of 2 on node1",
        "1 of 2 on node1",
        "0 of 2 on node1",
        "1 of 2 on node2",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--nodes=3 true", "More processors requested than permitted"),
        ("--ntasks=9 true", "More processors requested than permitted"),
        ("--container-image=x true", "unrecognized option '--container-image'"),
        ("--output=no/such/folder/x true", "Could not open"),
        ("--no-such true", "unrecognized option"),
        ("", "No command"),
    ],
)
def test_an_invalid_step_is_rejected(cluster, words, message):
    state, log = cluster.finish(f"srun {words}; echo code $?", *FOUR)
    assert state == "COMPLETED"
    assert log.startswith("srun: error: ")
    assert message in log
    assert log.endswith("code 1\n")


def test_a_step_needs_a_job(cluster):
    assert "only inside a job" in cluster.run("srun", "true").stderr


def test_tmp_replaces_a_missing_folder(cluster):
    _, log = cluster.finish("srun --chdir=/no/such/folder pwd")
    assert "couldn't chdir to `/no/such/folder'" in log
    assert log.endswith("/tmp\n")


def test_a_step_can_be_started_from_outside_its_job(cluster):
    job = cluster.submit("touch ready; sleep 600", "--nodes=2", "--ntasks-per-node=2")
    cluster.wait_for_ready()
    shape = ["--overlap", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1"]
    seen = cluster.call(
        "srun", f"--jobid={job}", *shape, "sh", "-c", "echo $SLURM_JOB_ID $SLURM_PROCID $SLURMD_NODENAME"
    )
    assert sorted(seen.splitlines()) == [f"{job} 0 node1", f"{job} 1 node2"]
    one = cluster.call(
        "srun", f"--jobid={job}", "--nodes=1", "--ntasks=1", "--nodelist=node2", "printenv", "SLURMD_NODENAME"
    )
    assert one == "node2\n"
    assert (
        "takes as many of the job's nodes as the step has"
        in cluster.run("srun", f"--jobid={job}", "-N1", "-n1", "-w", "x", "true").stderr
    )
    cluster.call("scancel", job)
    cluster.wait(job)
    assert "Job is not running" in cluster.run("srun", f"--jobid={job}", "true").stderr


def test_a_step_has_a_name_and_can_be_cancelled_separately(cluster):
    job = cluster.submit("touch ready; srun --job-name=first sleep 600; touch ended; sleep 600")
    cluster.wait_for_ready()
    steps = ("squeue", "-h", "-s", "-j", job, "-o", "%i|%j")
    cluster.until(lambda: cluster.call(*steps) == f"{job}.0|first\n", "the step")
    cluster.call("scancel", "--signal=TERM", f"{job}.0")
    cluster.until((cluster.work / "ended").exists, "the end of the step")
    assert cluster.field(job) == "RUNNING"
    assert "Invalid job id" in cluster.run("scancel", f"{job}.0").stderr


def test_steps_from_outside_end_with_the_job_even_if_they_ignore_term(cluster):
    job = cluster.submit("touch ready; sleep 600")
    cluster.wait_for_ready()
    words = [
        str(cluster.bin / "srun"),
        f"--jobid={job}",
        "sh",
        "-c",
        'trap "" TERM; touch up; while :; do sleep 0.1; done',
    ]
    stubborn = subprocess.Popen(words, cwd=cluster.work, stderr=subprocess.PIPE)
    cluster.until((cluster.work / "up").exists, "the step")
    cluster.call("scancel", job)
    stubborn.communicate(timeout=60)
    assert stubborn.returncode == 128 + 9
