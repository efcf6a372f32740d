"""The rules of sites that are set up differently from a sandbox. docs/faults.md lists them."""

from __future__ import annotations

from support.sandbox_fixture import RunningSandbox

# In its slurm.conf. A site's plugin may change each job, and says nothing of it.
SITES = {
    "no requeue by default": [("JobRequeue=1", "JobRequeue=0")],
    "no requeue": [("JobRequeue=1", "JobSubmitPlugins=lua")],
    "preempted jobs are cancelled": [("PreemptMode=REQUEUE GraceTime=10", "PreemptMode=CANCEL GraceTime=10")],
    "preempted jobs are cancelled at once": [("PreemptMode=REQUEUE GraceTime=10", "PreemptMode=CANCEL GraceTime=0")],
    "preempted jobs are not warned": [("preempt_send_user_signal,", "")],
    "preempted jobs are cancelled, and not warned": [
        ("preempt_send_user_signal,", ""),
        ("PreemptMode=REQUEUE GraceTime=10", "PreemptMode=CANCEL GraceTime=10"),
    ],
    "no requeue, and preempted jobs are cancelled": [
        ("JobRequeue=1", "JobSubmitPlugins=lua"),
        ("PreemptMode=REQUEUE GraceTime=10", "PreemptMode=CANCEL GraceTime=10"),
    ],
}
NO_REQUEUE = """
function slurm_job_submit(job, partitions, user) job.requeue = 0; return slurm.SUCCESS end
function slurm_job_modify(job, record, partitions, user) return slurm.SUCCESS end
return slurm.SUCCESS
"""


def follow_rules(sandbox: RunningSandbox, site: str) -> None:
    """Give the sandbox the rules of `site`."""
    etc = sandbox.folder / "etc"
    text = (etc / "slurm.conf").read_text()
    for usual, other in SITES[site]:
        assert text.count(usual) == 1
        text = text.replace(usual, other)
    (etc / "job_submit.lua").write_text(NO_REQUEUE)
    (etc / "slurm.conf").write_text(text)
    sandbox.call("scontrol", "reconfigure")
