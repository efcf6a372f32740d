"""Slurm's reason codes for a pending job, in words.

The codes are those of squeue(1), "JOB REASON CODES", and of Slurm's page on resource limits, from 22.05 to 25.05. Sites
can define their own: unknown codes are shown unchanged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum


class Kind(StrEnum):
    """What would end the wait."""

    ROOM = "room"  # free nodes: a smaller or shorter run may start at once
    LIMIT = "limit"  # a limit on the user, the account or the partition: a smaller run may stay within it
    TIME = "time"  # time, or the end of another job
    PERSON = "person"  # an action by a person
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Reason:
    """A reason in words, what would end it, and what to do about it."""

    words: str
    kind: Kind
    hint: str = ""


HELD = ("JobHeldUser", "job_requeued_in_held_state", "launch_failed_requeued_held")  # by its user, who may release it
_LIMITS_HINT = "your limits: sacctmgr show assoc user=$USER format=account,partition,grptres,maxtres,maxjobs,qos"
_ASK_SITE = "ask the administrators of the cluster"

_REASONS = {
    "None": Reason("Slurm has not considered it yet", Kind.TIME),
    "Priority": Reason("jobs with a higher priority are ahead of it in the same partition", Kind.ROOM),
    "Resources": Reason("it is next in line, and the resources it requests are not free yet", Kind.ROOM),
    "ReqNodeNotAvail": Reason("a node it needs is down, drained, reserved or scheduled for maintenance", Kind.ROOM),
    "NodeDown": Reason("a node it needs is down", Kind.ROOM),
    "Nodes_required_for_job_are_DOWN": Reason(
        "nodes it needs are down, drained, or reserved for jobs in partitions with a higher priority", Kind.ROOM
    ),
    "BadConstraints": Reason(
        "no node has the combination of resources it requests", Kind.LIMIT, "see: clusterctl nodes"
    ),
    "PartitionNodeLimit": Reason("it requests more nodes than its partition allows per job", Kind.LIMIT),
    "PartitionTimeLimit": Reason("it requests more time than its partition allows per job", Kind.LIMIT),
    "PartitionDown": Reason("its partition is not starting jobs at the moment", Kind.LIMIT),
    "PartitionInactive": Reason("its partition is not accepting or starting jobs at the moment", Kind.LIMIT),
    "MaxMemPerLimit": Reason("it requests more memory than allowed per node or CPU", Kind.LIMIT),
    "AccountNotAllowed": Reason("its account may not use this partition", Kind.LIMIT),
    "QOSNotAllowed": Reason("its quality of service may not use this partition", Kind.LIMIT),
    "InvalidAccount": Reason("its account is no longer valid", Kind.PERSON, "submit it again with another account"),
    "InvalidQOS": Reason("its quality of service is no longer valid", Kind.PERSON, "submit it again with another one"),
    "Licenses": Reason("a licence it requests is in use", Kind.TIME, "see: scontrol show licenses"),
    "Reservation": Reason(
        "its reservation has not started yet, or is fully used", Kind.TIME, "scontrol show reservation"
    ),
    "ReservationDeleted": Reason("its reservation no longer exists", Kind.PERSON, "submit it again without it"),
    "Dependency": Reason("it is waiting for another job to end", Kind.TIME),
    "DependencyNeverSatisfied": Reason(
        "the job it depends on did not end as required: it will never start", Kind.PERSON, "cancel it"
    ),
    "BeginTime": Reason("its start time has not been reached (Slurm also delays a requeued job)", Kind.TIME),
    "Cleaning": Reason("its last attempt is still being cleaned up on the nodes", Kind.TIME),
    "Prolog": Reason("the prolog is running on its nodes", Kind.TIME),
    "JobHeldUser": Reason("it is held by its user", Kind.PERSON),
    "JobHeldAdmin": Reason("it is held by an administrator", Kind.PERSON, _ASK_SITE),
    "launch_failed_requeued_held": Reason(
        "Slurm could not start it on its nodes, and has held it since", Kind.PERSON, "see the log of its last start"
    ),
    "JobLaunchFailure": Reason("Slurm could not start it on its nodes", Kind.PERSON, _ASK_SITE),
    "JobHoldMaxRequeue": Reason(
        "it was requeued more often than the site allows, and has been held since", Kind.PERSON
    ),
    "job_requeued_in_held_state": Reason("it was requeued and held", Kind.PERSON),
    "DeadLine": Reason(
        "it can no longer end before its deadline", Kind.PERSON, "submit it again with a shorter time limit"
    ),
    "BurstBufferResources": Reason("the burst buffer is full", Kind.TIME),
    "BurstBufferStageIn": Reason("its burst buffer is being filled", Kind.TIME),
    "PowerNotAvail": Reason("the cluster's power cap does not allow it", Kind.TIME),
    "PowerReserved": Reason("the cluster's power is reserved for other jobs", Kind.TIME),
    "SchedDefer": Reason(
        "the site does not start jobs at submission: it is waiting for the next scheduling cycle", Kind.TIME
    ),
    "JobArrayTaskLimit": Reason("its array has reached its limit of concurrent tasks", Kind.TIME),
    "AssociationJobLimit": Reason("your account has reached its limit of running jobs", Kind.LIMIT, _LIMITS_HINT),
    "AssociationResourceLimit": Reason("your account has reached its resource limit", Kind.LIMIT, _LIMITS_HINT),
    "AssociationTimeLimit": Reason("your account has reached its time limit", Kind.LIMIT, _LIMITS_HINT),
    "QOSJobLimit": Reason("your quality of service has reached its limit of running jobs", Kind.LIMIT, _LIMITS_HINT),
    "QOSResourceLimit": Reason("your quality of service has reached its resource limit", Kind.LIMIT, _LIMITS_HINT),
    "QOSTimeLimit": Reason("your quality of service has reached its time limit", Kind.LIMIT, _LIMITS_HINT),
    "QOSUsageThreshold": Reason(
        "your remaining share in this quality of service is too small", Kind.TIME, _LIMITS_HINT
    ),
}
_BY_LOWER_CASE = {code.lower(): reason for code, reason in _REASONS.items()}

# QOSMaxGRESPerUser, AssocGrpCpuLimit, QOSMaxNodePerUserLimit, AssocGrpCPURunMinutesLimit, QOSGrpMemory ...
_FAMILY = re.compile(
    r"(?P<whose>QOS|Assoc(?:iation)?)(?P<scope>Max|Grp|Min)(?P<what>[A-Za-z]*?)(?P<run>Run)?(?P<minutes>Minutes|Mins)?"
    r"(?:Per(?P<each>User|Account|Acct|PU|PA|Job|Node))?(?:Limit)?",
    re.ASCII,
)
_WHAT = {  # by prefix: Cpu and Cpus, Mem and Memory, Wall and WallDuration
    "cpu": "CPUs",
    "gres": "GPUs and other devices",
    "mem": "memory",
    "node": "nodes",
    "job": "jobs",
    "submit": "jobs in the queue",
    "wall": "running time",
    "wdwall": "running time",
    "bb": "burst buffer",
    "billing": "billing units",
    "energy": "energy",
    "license": "licences",
}
_EACH = {"user": "a user", "pu": "a user", "account": "an account", "acct": "an account", "pa": "an account"}


def in_words(code: str) -> Reason:
    """The reason for Slurm's `code`, such as "Resources" or "ReqNodeNotAvail, UnavailableNodes:n3"."""
    head, comma, rest = code.strip("()").replace(" ", "_").partition(",")
    detail = f" ({rest.strip('_').replace('_', ' ')})" if comma and not head.startswith("Nodes_required") else ""
    if known := _BY_LOWER_CASE.get(head.lower()):
        return replace(known, words=known.words + detail)
    match = _FAMILY.fullmatch(head)
    if not match:
        return Reason(f"Slurm's reason: {code}" if code else "Slurm gives no reason", Kind.UNKNOWN)
    whose = "quality of service" if match["whose"] == "QOS" else "account"
    what = next((words for begin, words in _WHAT.items() if match["what"].lower().startswith(begin)), match["what"])
    if match["minutes"]:
        what = f"{what} x minutes" if what else "minutes"
    each = (match["each"] or "").lower()
    if match["scope"] == "Min":
        words = f"it requests fewer {what} than your {whose} requires per job"
    elif match["scope"] == "Grp":
        holders = "all jobs" if not each else f"all jobs of {_EACH.get(each, f'a {each}')}"
        words = f"{holders} in your {whose} together have reached their limit: {what}"
    else:
        holder = {"": "", "job": " for one job", "node": " for one node"}.get(each, f" for {_EACH.get(each, each)}")
        words = f"the limit of your {whose}{holder} is reached: {what}"
    return Reason(words, Kind.LIMIT, _LIMITS_HINT)
