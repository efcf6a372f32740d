"""scontrol; the effect of requeue, hold and release is tested with the supervisor."""

from __future__ import annotations

import pytest


def test_scontrol_shows_a_job(cluster):
    job = cluster.submit("true", "--hold", "--job-name=co ra", "--nodes=2")
    shown = cluster.call("scontrol", "show", "job", job)
    assert f"JobId={job} JobName=co ra\n" in shown
    assert "JobState=PENDING Reason=JobHeldUser Restarts=0" in shown
    assert "NumNodes=2" in shown


def test_scontrol_shows_node_states(cluster):
    cluster.call("scontrol", "update", "nodename=node2", "state=down", "reason=loud fan")
    shown = cluster.call("scontrol", "show", "nodes")
    assert "NodeName=node1 CPUTot=2 Gres=gpu:0 State=IDLE" in shown
    assert "NodeName=node2 CPUTot=2 Gres=gpu:0 State=DOWN\n   Reason=loud fan" in shown
    cluster.call("scontrol", "update", "nodename=node[1-2]", "state=resume")
    assert "DOWN" not in cluster.call("scontrol", "show", "node", "node2")


def test_scontrol_expands_host_names(cluster):
    assert cluster.call("scontrol", "show", "hostnames", "node[1-2,4],other").split() == [
        "node1",
        "node2",
        "node4",
        "other",
    ]


def test_without_names_scontrol_expands_those_of_the_job(cluster):
    _, log = cluster.finish("scontrol show hostnames | head -n 1; scontrol show hostname", "--nodes=2")
    assert log.split() == ["node1", "node1", "node2"]


def test_ping_reports_the_controller_up(cluster):
    assert "is UP" in cluster.call("scontrol", "ping")


def test_untimely_commands_fail_with_slurms_message(cluster):
    waiting = cluster.submit("true", "--hold")
    running = cluster.submit("touch ready; sleep 60", "--no-requeue")
    cluster.wait_for_ready()
    refusals = [
        (("requeue", waiting), f"Job is pending execution for job {waiting}\n"),
        (("requeue", running), f"Requested operation is presently disabled for job {running}\n"),
        (("hold", running), f"Job is no longer pending execution for job {running}\n"),
        (("release", "99"), "Invalid job id specified for job 99\n"),
    ]
    for words, message in refusals:
        done = cluster.run("scontrol", *words)
        assert (done.returncode, done.stderr) == (1, message)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["reboot"],
        ["show", "node", "node9"],
        ["show", "job", "9"],
        ["update", "nodename=node1", "state=drain"],
        ["update", "jobid=1", "timelimit=5"],
    ],
)
def test_unsupported_commands_are_rejected(cluster, words):
    done = cluster.run("scontrol", *words)
    assert done.returncode == 1
    assert done.stderr.startswith("scontrol: error: ")


def test_a_requeued_job_avoids_excluded_nodes(cluster):
    """As in Slurm: nodes can be excluded once the requeue is requested, even while the script still runs."""
    script = """[ -z "$SLURM_RESTART_COUNT" ] || { echo again on $SLURM_JOB_NODELIST; exit; }
trap : TERM
scontrol update JobId=$SLURM_JOB_ID ExcNodeList=$SLURM_JOB_NODELIST 2>&1
(trap '' TERM; scontrol requeue $SLURM_JOB_ID; scontrol update JobId=$SLURM_JOB_ID ExcNodeList=$SLURM_JOB_NODELIST)"""
    job = cluster.submit(script, "--requeue", "--open-mode=append")
    cluster.wait(job, "COMPLETED")
    lines = cluster.log(job).splitlines()
    assert lines[0] == f"Job is no longer pending execution for job {job}"
    assert lines[-1] == "again on node2"
    assert " ExcNodeList=node1\n" in cluster.run("scontrol", "show", "job", job).stdout
