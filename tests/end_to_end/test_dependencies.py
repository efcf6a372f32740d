"""Job dependencies with sbatch and squeue: the emulator behaves like Slurm."""

from __future__ import annotations

import subprocess

import pytest
from support.scenario import ON_BOTH, NamedJobs, wait_until


@ON_BOTH  # the others on Slurm only in `make test-long`
def test_a_job_starts_once_all_its_dependencies_are_satisfied(queue: NamedJobs) -> None:
    queue.submit("held", "true", "--hold")
    queue.submit("bad", "exit 3", "--hold")
    queue.submit("next", "true", "--dependency=afterok:<held>,afterany:<bad>", "--kill-on-invalid-dep=yes")
    queue.submit("both", "true", "--dependency=afterany:<held>:<bad>", "--hold")
    assert queue.state("next") == "PENDING|Dependency|afterok:held(unfulfilled),afterany:bad(unfulfilled)"
    assert queue.state("both") == "PENDING|JobHeldUser|afterany:held(unfulfilled),afterany:bad(unfulfilled)"
    queue.do("scontrol", "release", "<bad>")
    queue.until("next", "PENDING|Dependency|afterok:held(unfulfilled)")
    queue.do("scontrol", "release", "<held>")
    queue.until("next", "COMPLETED|None|(null)")
    queue.do("scontrol", "release", "<both>")
    queue.until("both", "COMPLETED|None|(null)")


def test_kill_on_invalid_dep_cancels_a_job_that_can_never_start(queue: NamedJobs) -> None:
    queue.submit("bad", "exit 3", "--hold")
    queue.submit("kept", "true", "--dependency=afterok:<bad>")
    queue.submit("ended", "true", "--dependency=afterok:<bad>", "--kill-on-invalid-dep=yes")
    queue.submit("behind", "true", "--dependency=afterok:<ended>", "--kill-on-invalid-dep=yes")
    queue.submit("anyway", "true", "--dependency=afterany:<ended>,afternotok:<bad>")
    queue.do("scontrol", "release", "<bad>")
    queue.until("ended", "CANCELLED|DependencyNeverSatisfied|afterok:bad(failed)")
    queue.until("behind", "CANCELLED|DependencyNeverSatisfied|afterok:ended(failed)")
    queue.until("anyway", "COMPLETED|None|(null)")
    queue.until("kept", "PENDING|DependencyNeverSatisfied|afterok:bad(failed)")
    queue.do("scancel", "<kept>")


def test_a_dependency_on_an_ended_job_is_decided_immediately(queue: NamedJobs) -> None:
    queue.submit("good", "true")
    queue.submit("bad", "exit 3")
    queue.until("good", "COMPLETED|None|(null)")
    queue.until("bad", "FAILED|NonZeroExitCode|(null)")
    queue.submit("next", "true", "--dependency=afterok:<good>,afterany:<bad>,after:<bad>")
    queue.submit("never", "true", "--dependency=afterok:<good>,afterok:<bad>", "--kill-on-invalid-dep=yes")
    queue.until("next", "COMPLETED|None|(null)")
    queue.until("never", "CANCELLED|DependencyNeverSatisfied|afterok:bad(failed)")


def test_a_dependency_on_an_unknown_job_is_ignored_or_refused(queue: NamedJobs) -> None:
    """Why clusterctl never passes Slurm the job ID of an ended run: Slurm may have forgotten the job.

    Older versions then ignore the dependency; newer ones refuse it.
    """
    try:
        queue.submit("next", "true", "--dependency=afterok:4000000000", "--kill-on-invalid-dep=yes")
    except subprocess.CalledProcessError as refused:
        assert "dependency" in refused.stderr
        assert queue.stage.cluster == "sandbox"
    else:
        queue.until("next", "COMPLETED|None|(null)")


def test_a_job_waits_through_a_requeue_of_its_dependency(queue: NamedJobs) -> None:
    text = """[ -n "$SLURM_RESTART_COUNT" ] || { touch ready; sleep 600; }
until [ -e go ]; do sleep 0.1; done"""
    queue.submit("first", text, "--requeue", "--hold")
    queue.submit("begun", "touch begun", "--dependency=after:<first>")
    queue.submit("ended", "true", "--dependency=afterok:<first>", "--kill-on-invalid-dep=yes")
    queue.do("scontrol", "release", "<first>")
    wait_until((queue.stage.folder / "begun").exists)
    wait_until((queue.stage.folder / "ready").exists)
    queue.do("scontrol", "requeue", "<first>")
    assert queue.state("ended") == "PENDING|Dependency|afterok:first(unfulfilled)"
    queue.submit("again", "true", "--dependency=after:<first>,afterany:<first>")
    (queue.stage.folder / "go").touch()
    queue.until("first", "COMPLETED|None|(null)")
    queue.until("ended", "COMPLETED|None|(null)")
    queue.until("again", "COMPLETED|None|(null)")


def test_cancelling_a_queued_job_satisfies_after_but_not_afterok(queue: NamedJobs) -> None:
    queue.submit("first", "true", "--hold")
    queue.submit("begun", "true", "--dependency=after:<first>")
    queue.submit("ended", "true", "--dependency=afterok:<first>", "--kill-on-invalid-dep=yes")
    queue.do("scancel", "<first>")
    queue.until("begun", "COMPLETED|None|(null)")
    queue.until("ended", "CANCELLED|DependencyNeverSatisfied|afterok:first(failed)")


@pytest.mark.parametrize("dependency", ["afterok", "afterok:x", "foo:1", "afterok:1,", ",afterok:1"])
def test_an_invalid_dependency_list_is_refused(queue: NamedJobs, dependency: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        queue.submit("next", "true", f"--dependency={dependency}")
    assert "Job dependency problem" in refused.value.stderr
