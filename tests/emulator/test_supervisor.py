"""The life of a job: slots, time limits, cancelling, requeueing, lost nodes and lost supervisors."""

from __future__ import annotations

import os
import signal
import time

WAIT_FOR_LEAVE = "touch ready; until [ -e leave ]; do sleep 0.02; done"
STEP = "srun bash -c 'touch ready; while :; do sleep 0.05; done'"


def test_the_scripts_exit_code_sets_the_job_state(cluster):
    assert cluster.finish("exit 0")[0] == "COMPLETED"
    job = cluster.submit("exit 3")
    assert cluster.wait(job) == "FAILED"
    assert cluster.call("squeue", "-h", "-t", "F", "-O", "exit_code:,Reason:").split() == ["768NonZeroExitCode"]


def test_two_jobs_run_concurrently_if_they_fit(cluster):
    first = cluster.submit("touch one; until [ -e two ]; do sleep 0.02; done")
    second = cluster.submit("touch two; until [ -e one ]; do sleep 0.02; done")
    assert (cluster.wait(first), cluster.wait(second)) == ("COMPLETED", "COMPLETED")


def test_jobs_queue_in_order_when_the_slots_are_taken(cluster):
    first = cluster.submit(WAIT_FOR_LEAVE, "--nodes=2", "--ntasks-per-node=1")
    cluster.wait_for_ready()
    large = cluster.submit("echo large >>order", "--nodes=2", "--ntasks-per-node=2")
    small = cluster.submit("echo small >>order")
    cluster.until(lambda: cluster.field(large, "r") == "Resources", "the large job waits")
    cluster.until(lambda: cluster.field(small, "r") == "Priority", "the small job waits behind it")
    (cluster.work / "leave").touch()
    assert {cluster.wait(job) for job in (first, large, small)} == {"COMPLETED"}
    assert (cluster.work / "order").read_text() == "large\nsmall\n"


def test_the_warning_signal_goes_only_to_the_tasks_before_the_time_limit(cluster):
    text = """trap 'echo batch warned' USR2
srun bash -c 'trap "echo warned; exit 9" USR2; while :; do sleep 0.05; done'
echo code $?"""
    job = cluster.submit(text, "--time=0:03", "--signal=USR2@2")
    assert cluster.wait(job) == "COMPLETED"
    assert "warned" in cluster.log(job).splitlines()
    assert "batch warned" not in cluster.log(job)
    assert cluster.log(job).endswith("code 9\n")


def test_a_lead_longer_than_the_time_limit_warns_at_the_start(cluster):
    text = "srun bash -c 'trap \"exit 9\" USR2; touch ready; while :; do sleep 0.05; done'; exit $?"
    job = cluster.submit(text, "--time=1:00", "--signal=USR2@120")
    assert cluster.wait(job) == "FAILED"


def test_the_warning_can_go_only_to_the_script(cluster):
    text = """trap 'echo warned; exit 0' USR2
srun bash -c 'trap "echo task warned" USR2; while :; do sleep 0.05; done' & wait"""
    job = cluster.submit(text, "--time=0:03", "--signal=B:USR2@2")
    assert cluster.wait(job) == "COMPLETED"
    assert "warned\n" in cluster.log(job)
    assert "task warned" not in cluster.log(job)


def test_at_the_time_limit_the_script_can_still_record_the_end(cluster):
    text = f"trap 'ended_by=TERM' TERM\n{STEP}\necho code $? by $ended_by"
    begun = time.monotonic()
    job = cluster.submit(text, "--time=0:01")
    assert cluster.wait(job) == "TIMEOUT"
    assert time.monotonic() - begun >= 1
    log = cluster.log(job)
    assert f"*** JOB {job} ON node1 CANCELLED AT " in log
    assert "DUE TO TIME LIMIT" in log
    assert log.endswith("code 143 by TERM\n")
    assert cluster.field(job, "r") == "TimeLimit"


def test_processes_that_ignore_term_are_killed_after_kill_wait(cluster):
    text = "trap '' TERM\nsrun bash -c 'trap \"\" TERM; touch ready; while :; do sleep 0.05; done'"
    job = cluster.submit(text)
    cluster.wait_for_ready()
    begun = time.monotonic()
    cluster.call("scancel", job)
    assert cluster.field(job) == "COMPLETING"
    assert cluster.wait(job) == "CANCELLED"
    assert time.monotonic() - begun >= 0.9


def test_no_process_outlives_its_job(cluster):
    text = "setsid sleep 63 & srun bash -c 'setsid sleep 64 & env -i setsid sleep 65 & touch ready'"
    assert cluster.finish(text)[0] == "COMPLETED"
    assert not cluster.processes()


def test_background_steps_end_with_the_script(cluster):
    state, log = cluster.finish(f"{STEP} & until [ -e ready ]; do sleep 0.02; done")
    assert state == "COMPLETED"
    assert "task 0: Terminated" in log


def test_a_job_can_requeue_itself(cluster):
    text = """echo start ${SLURM_RESTART_COUNT:-none} >>starts
if [ -z "$SLURM_RESTART_COUNT" ]; then scontrol requeue $SLURM_JOB_ID; sleep 60; fi"""
    job = cluster.submit(text)
    assert cluster.wait(job) == "COMPLETED"
    assert (cluster.work / "starts").read_text() == "start none\nstart 1\n"
    assert cluster.call("squeue", "-h", "-t", "all", "-O", "RestartCnt:").strip() == "1"


def test_a_job_that_is_being_requeued_can_be_cancelled(cluster):
    job = cluster.submit(f"trap '' TERM\n{STEP}; sleep 60")
    cluster.wait_for_ready()
    cluster.call("scontrol", "requeue", job)
    cluster.call("scancel", job)
    assert cluster.wait(job) == "CANCELLED"


def test_a_held_job_does_not_block_the_queue(cluster):
    job = cluster.submit("echo held >>order", "--hold")
    assert (cluster.field(job), cluster.field(job, "r")) == ("PENDING", "JobHeldUser")
    assert cluster.finish("echo other >>order")[0] == "COMPLETED"
    cluster.call("scontrol", "release", job)
    assert cluster.wait(job) == "COMPLETED"
    assert (cluster.work / "order").read_text() == "other\nheld\n"


def test_a_pending_job_can_be_held(cluster):
    blocker = cluster.submit(WAIT_FOR_LEAVE, "--exclusive", "--nodes=2")
    cluster.wait_for_ready()
    job = cluster.submit("true")
    cluster.call("scontrol", "hold", job)
    assert cluster.field(job, "r") == "JobHeldUser"
    (cluster.work / "leave").touch()
    cluster.wait(blocker)
    assert cluster.field(job) == "PENDING"


def test_losing_a_node_requeues_its_job_on_other_nodes(make_cluster):
    cluster = make_cluster(nodes=3)
    text = f"""echo $SLURM_JOB_NODELIST >>nodes
[ -n "$SLURM_RESTART_COUNT" ] || {STEP}"""
    job = cluster.submit(text, "--nodes=2", "--ntasks-per-node=1", "--open-mode=append")
    cluster.wait_for_ready()
    cluster.call("scontrol", "update", "nodename=node2", "state=down", "reason=power")
    assert cluster.wait(job) == "COMPLETED"
    assert (cluster.work / "nodes").read_text() == "node[1-2]\nnode[1,3]\n"
    assert "DUE TO NODE FAILURE" in cluster.log(job)
    assert "node2: task 1: Killed\n" in cluster.log(job)


def test_losing_a_node_ends_a_no_requeue_job(cluster):
    job = cluster.submit(f"trap 'echo clean exit' TERM\n{STEP}", "--no-requeue", "--open-mode=append")
    cluster.wait_for_ready()
    cluster.call("scontrol", "update", "nodename=node1", "state=down", "reason=power")
    assert cluster.wait(job) == "NODE_FAIL"
    assert "clean exit" not in cluster.log(job)


def test_a_job_that_fits_no_node_does_not_block_the_queue(cluster):
    cluster.call("scontrol", "update", "nodename=node2", "state=down", "reason=power")
    job = cluster.submit("true", "--nodes=2")
    cluster.until(lambda: cluster.field(job, "r") == "ReqNodeNotAvail", "the reason")
    assert cluster.finish("true")[0] == "COMPLETED"
    cluster.call("scontrol", "update", "nodename=node2", "state=resume")
    assert cluster.wait(job) == "COMPLETED"


def test_killing_a_supervisor_fails_its_job_and_leaves_no_processes(cluster):
    job = cluster.submit(STEP, "--nodes=2", "--exclusive")
    cluster.wait_for_ready()
    waiting = cluster.submit("true")
    os.kill(cluster.supervisor(job), signal.SIGKILL)
    assert cluster.wait(waiting) == "COMPLETED"
    assert cluster.field(job) == "NODE_FAIL"
    cluster.until(lambda: not cluster.processes(), "the end of its processes")


def test_killing_a_pending_jobs_supervisor_does_not_block_the_queue(cluster):
    blocker = cluster.submit(WAIT_FOR_LEAVE, "--exclusive", "--nodes=2")
    cluster.wait_for_ready()
    dead, next_one = cluster.submit("true"), cluster.submit("true")
    os.kill(cluster.supervisor(dead), signal.SIGKILL)
    (cluster.work / "leave").touch()
    assert [cluster.wait(job) for job in (blocker, next_one, dead)] == ["COMPLETED", "COMPLETED", "NODE_FAIL"]


WARNED = "srun bash -c 'trap \"echo warned; touch warned\" USR2; touch ready; until [ -e leave ]; do sleep 0.05; done'"


def test_a_preempted_job_is_warned_and_restarts_after_the_other(cluster):
    weak = cluster.submit(
        f"echo restarts ${{SLURM_RESTART_COUNT:-0}}; {WARNED}; scontrol requeue $SLURM_JOB_ID",
        *("--nodes=2", "--exclusive", "--partition=preemptable", "--signal=USR2@60", "--open-mode=append"),
    )
    cluster.wait_for_ready()
    strong = cluster.submit("echo strong", "--nodes=2", "--exclusive", "--partition=urgent")
    cluster.until((cluster.work / "warned").exists, "the warning")
    assert cluster.field(strong) == "PENDING"
    (cluster.work / "leave").touch()  # the preempted job exits by itself, and requeues itself
    assert cluster.wait(strong) == "COMPLETED"
    cluster.until(lambda: "restarts 1" in cluster.log(weak), "the second start")
    ended, began = (
        cluster.call("squeue", "-h", "-t", "all", "-j", job, "-O", f)
        for job, f in ((strong, "EndTime:"), (weak, "StartTime:"))
    )
    assert ended.strip() <= began.strip()


def test_jobs_in_the_default_partition_are_not_preempted(cluster):
    first = cluster.submit(WAIT_FOR_LEAVE, "--nodes=2", "--exclusive")
    cluster.wait_for_ready()
    strong = cluster.submit("true", "--nodes=2", "--exclusive", "--partition=urgent")
    cluster.until(lambda: cluster.field(strong, "r") == "Resources", "it waits")
    (cluster.work / "leave").touch()
    assert (cluster.wait(first), cluster.wait(strong)) == ("COMPLETED", "COMPLETED")
