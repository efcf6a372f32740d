"""Reading a site's rules for preempted jobs from Slurm's answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launcher.slurm.rules import Preemption, Restarts, Rules
from clusterctl.shared.spec import CommandTrain, Job, Resources
from clusterctl.shared.spec.job import Restart

CONFIG = """Configuration data as of 2026-11-27T09:00:00
AuthInfo                = socket=/run/munge,cred_expire=5
JobRequeue              = {requeue}
KillWait                = 30 sec
PreemptMode             = REQUEUE
PreemptParameters       = (null)
PreemptType             = {kind}

Slurmctld(primary) at login1 is UP
"""
PARTITIONS = """PartitionName=gpu
   AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL
   DisableRootJobs=NO ExclusiveUser=NO GraceTime=60 Hidden=NO
   OverTimeLimit=NONE PreemptMode=CANCEL
   Default=NO State=UP TotalCPUs=4

PartitionName=cpu
   Default=YES GraceTime=0 PreemptMode=OFF
"""
QOS = "normal|cluster|00:00:00\nscavenger|cancel|00:01:00\n"


CANCELLED = "preempted jobs are cancelled, and the run goes on in a job of its own"


def rules(kind: str, requeue: int = 1) -> Rules:
    return Rules.of(CONFIG.format(kind=kind, requeue=requeue), PARTITIONS, QOS)


def job(partition: str | None = None, qos: str | None = None, by: str | None = None) -> Job:
    return Job(
        name="x",
        workload="command",
        argv=("true",),
        resources=Resources(partition=partition, qos=qos),
        restart=Restart(by=by),
        train=CommandTrain(),
    )


def test_either_partitions_or_qos_decide() -> None:
    by_partition, by_qos = rules("preempt/partition_prio"), rules("preempt/qos")
    assert by_partition.cancelling(None, None) == ("partition", ("gpu",))
    assert by_partition.cancelling("cpu", "scavenger") == ("partition", ())
    assert by_qos.cancelling(None, None) == ("QOS", ("scavenger",))
    assert by_qos.cancelling("gpu", "normal") == ("QOS", ())
    assert by_qos.by_qos == {"normal": Preemption("REQUEUE"), "scavenger": Preemption("CANCEL", "00:01:00")}
    assert by_qos.requeue_seconds == 5


@pytest.mark.parametrize(
    ("kind", "requeue", "partition", "qos", "lines"),
    [
        (
            "preempt/partition_prio",
            0,
            "gpu",
            "",
            (
                "JobRequeue=0: clusterctl asks for --requeue all the same",
                f"PreemptMode=CANCEL in partition gpu, GraceTime=60 s: {CANCELLED}",
                "KillWait=30 s: the time to save between SIGTERM and SIGKILL",
            ),
        ),
        (
            "preempt/qos",
            1,
            "gpu",
            "normal",
            (
                "JobRequeue=1: clusterctl asks for --requeue",
                "PreemptMode=REQUEUE in QOS normal: preempted jobs are not cancelled",
                "KillWait=30 s: the time to save between SIGTERM and SIGKILL",
            ),
        ),
    ],
)
def test_lines_show_the_rules_that_apply(
    kind: str, requeue: int, partition: str, qos: str, lines: tuple[str, ...]
) -> None:
    assert rules(kind, requeue).lines(partition, qos) == lines


IN_ANOTHER = "in a job of its own, because Slurm cancels the jobs that it preempts in "
THERE = ", where Slurm cancels the jobs that it preempts, in a job of its own"
REQUEUED = "by a requeue, at least 5 s after the end of an attempt"


@pytest.mark.parametrize(
    ("kind", "partition", "qos", "by", "restarts"),
    [
        ("preempt/partition_prio", "gpu", None, None, Restarts("successor", f"{IN_ANOTHER}partition gpu", True)),
        ("preempt/partition_prio", "cpu", None, None, Restarts("requeue", REQUEUED)),
        ("preempt/partition_prio", None, None, None, Restarts("requeue", REQUEUED)),  # Slurm's default is cpu
        ("preempt/partition_prio", "cpu,gpu", None, None, Restarts(None, f"{REQUEUED}; in partition gpu{THERE}")),
        ("preempt/partition_prio", "gpu,other", None, None, Restarts(None, f"{REQUEUED}; in partition gpu{THERE}")),
        ("preempt/partition_prio", "other", None, None, Restarts(None)),
        ("preempt/qos", "cpu", "scavenger", None, Restarts("successor", f"{IN_ANOTHER}QOS scavenger", True)),
        ("preempt/qos", "gpu", "normal", None, Restarts("requeue", REQUEUED)),
        ("preempt/qos", "gpu", None, None, Restarts(None, f"{REQUEUED}; in QOS scavenger{THERE}")),
        ("preempt/partition_prio", "gpu", None, "requeue", Restarts("requeue", f"{REQUEUED} (restart.by)", True)),
        ("preempt/partition_prio", "cpu", None, "successor", Restarts("successor", "in a job of its own (restart.by)")),
    ],
)
def test_a_job_goes_on_in_another_one_where_all_its_partitions_or_its_qos_cancel(
    kind: str, partition: str | None, qos: str | None, by: str | None, restarts: Restarts
) -> None:
    assert rules(kind).restarts(job(partition, qos, by)) == restarts


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("JobSubmitPlugins        = (null)", False),
        ("JobSubmitPlugins        = lua", True),
        ("CliFilterPlugins        = lua", True),
        ("", False),
    ],
)
def test_only_a_plugin_of_the_site_changes_jobs(line: str, changed: bool) -> None:
    assert Rules.of(f"{line}\n", "").jobs_are_changed is changed


def test_nothing_is_said_of_rules_that_slurm_does_not_show() -> None:
    assert Rules.of("", "", "").lines("gpu", "") == ()
    assert Rules.of("PreemptType = preempt/qos\n", "", "sacctmgr: error: no database\n").by_qos == {}


@given(st.text(), st.text(), st.text())
def test_no_answer_of_slurm_is_an_error(config: str, partitions: str, qos: str) -> None:
    for kind in ("", "\nPreemptType = preempt/qos\n"):
        found = Rules.of(config + kind, partitions, qos)
        found.lines("gpu", "")
        found.cancelling(None, None)
        found.restarts(job())
