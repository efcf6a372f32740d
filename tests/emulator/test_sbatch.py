"""Submitting jobs."""

from __future__ import annotations

import os
import shlex
import subprocess
import time

import pytest


def test_the_command_line_overrides_directives(cluster):
    state, log = cluster.finish("#SBATCH --job-name=inside --nodes=2\necho $SLURM_JOB_NAME $SLURM_NNODES", "-J", "out")
    assert (state, log) == ("COMPLETED", "out 2\n")


def test_without_parsable_sbatch_prints_a_sentence(cluster):
    (cluster.work / "x.sh").write_text("#!/bin/sh\n")
    assert cluster.call("sbatch", "x.sh") == "Submitted batch job 1\n"
    assert cluster.call("sbatch", "--parsable", "x.sh") == "2\n"
    assert cluster.wait("2") == "COMPLETED"


def test_a_script_gets_its_arguments_and_working_directory(cluster):
    target = cluster.work / "other $PWD 'ü'"
    target.mkdir()
    script = cluster.work / "job.sh"
    script.write_text(
        f'#!/bin/bash\n#SBATCH --output=%x_%j.log\n#SBATCH --chdir={shlex.quote(str(target))}\npwd; echo "$1"\n'
    )
    job = cluster.call("sbatch", "--parsable", "job.sh", "a  b").strip()
    assert cluster.wait(job) == "COMPLETED"
    assert (target / f"job.sh_{job}.log").read_text() == f"{target}\na  b\n"


def test_output_and_error_can_be_separate_and_appended_to(cluster):
    (cluster.work / "o").write_text("before\n")
    text = "echo out; echo err >&2"
    assert cluster.wait(cluster.submit(text, "--output=o", "--error=e", "--open-mode=append")) == "COMPLETED"
    assert (cluster.work / "o").read_text() == "before\nout\n"
    assert (cluster.work / "e").read_text() == "err\n"


def test_editing_the_script_after_submission_has_no_effect(cluster):
    job = cluster.submit("echo first", "--hold")
    (cluster.work / "job.sh").write_text("#!/bin/bash\necho second\n")
    cluster.call("scontrol", "release", job)
    cluster.wait(job)
    assert cluster.log(job) == "first\n"


@pytest.mark.parametrize(
    "option", ["--nodes=3", "--ntasks-per-node=3", "--cpus-per-task=3", "--gpus-per-node=1", "--gres=gpu:1"]
)
def test_an_impossible_request_is_rejected(cluster, option):
    (cluster.work / "x.sh").write_text("#!/bin/sh\n")
    done = cluster.run("sbatch", option, "x.sh")
    assert (done.returncode, done.stdout) == (1, "")
    words = "sbatch: error: Batch job submission failed: Requested node configuration is not available\n"
    assert done.stderr == words


def test_a_missing_gpu_type_is_rejected(make_cluster):
    cluster = make_cluster(gpus="a100:2")
    (cluster.work / "x.sh").write_text("#!/bin/sh\n")
    assert "not available" in cluster.run("sbatch", "--gpus-per-node=h100:1", "x.sh").stderr
    assert cluster.run("sbatch", "--hold", "--gres=gpu:a100:1", "x.sh").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--no-such", "x.sh"], "unrecognized option '--no-such'"),
        (["gone.sh"], "Unable to open file gone.sh"),
        (["text"], "does not look like a batch script"),
        ([], "Batch script is empty"),
        (["bad.sh"], "unrecognized option '--tyme'"),
    ],
)
def test_sbatch_rejects_invalid_input(cluster, arguments, words):
    (cluster.work / "x.sh").write_text("#!/bin/sh\n")
    (cluster.work / "text").write_text("hello\n")
    (cluster.work / "bad.sh").write_text("#!/bin/sh\n#SBATCH --tyme=3\n")
    done = cluster.run("sbatch", *arguments)
    assert done.returncode == 1
    assert done.stderr.startswith("sbatch: error: ")
    assert words in done.stderr


def test_test_only_submits_nothing(cluster):
    (cluster.work / "x.sh").write_text("#!/bin/sh\n#SBATCH --nodes=2\n")
    done = cluster.run("sbatch", "--test-only", "x.sh")
    assert done.returncode == 0
    assert "2 nodes" in done.stderr
    assert cluster.call("squeue", "-h", "-t", "all") == ""
    assert cluster.run("sbatch", "--test-only", "--nodes=9", "x.sh").returncode == 1


def test_test_only_estimates_the_start_time(cluster):
    """Estimated from the time limits of running jobs. The script comes from standard input."""
    holder = cluster.submit("sleep 600", "--nodes=2", "--exclusive", "--time=10")
    cluster.wait(holder, "RUNNING")
    done = subprocess.run(
        [str(cluster.bin / "sbatch"), "--test-only"],
        input="#!/bin/sh\n",
        env={**os.environ, "SLURM_TIME_FORMAT": "%s"},
        capture_output=True,
        text=True,
    )
    start = int(done.stderr.split(" to start at ")[1].split()[0])
    assert 590 < start - time.time() < 610
    cluster.call("scancel", holder)


def test_concurrent_submissions_get_different_ids(cluster):
    (cluster.work / "x.sh").write_text("#!/bin/sh\n")
    words = [str(cluster.bin / "sbatch"), "--parsable", "--hold", str(cluster.work / "x.sh")]
    running = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    assert sorted(process.communicate()[0] for process in running) == [f"{number}\n" for number in range(1, 7)]


def test_a_job_can_submit_another_and_end_before_it(cluster):
    (cluster.work / "next.sh").write_text("#!/bin/bash\nsleep 0.2; echo next >done\n")
    state, log = cluster.finish("sbatch --parsable next.sh")
    assert (state, log) == ("COMPLETED", "2\n")
    assert cluster.wait("2") == "COMPLETED"
    assert (cluster.work / "done").read_text() == "next\n"


def test_a_log_that_cannot_be_opened_fails_the_job(cluster):
    job = cluster.submit("touch ran", "--output=no/such/folder/log")
    assert cluster.wait(job) == "FAILED"
    assert not (cluster.work / "ran").exists()


def test_a_program_that_cannot_be_started_fails_the_job(cluster):
    (cluster.work / "x.sh").write_text("#!/no/such/shell\n")
    job = cluster.call("sbatch", "--parsable", "x.sh").strip()
    assert cluster.wait(job) == "FAILED"
    assert "slurmstepd: error: execve()" in cluster.log(job)
