"""Why Slurm lets a job wait: its reason codes, in words.

The codes are those of squeue(1), "JOB REASON CODES", and of Slurm's page on resource limits, from 22.05 to 25.05. Sites
can make their own: what is not known here is shown as Slurm says it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum


class Kind(StrEnum):
    """What would end the waiting."""

    ROOM = "room"  # nodes becoming free: a smaller or shorter run may start at once
    LIMIT = "limit"  # a limit on the user, the account or the partition: a smaller run may keep within it
    TIME = "time"  # the passing of time, or the end of another job
    PERSON = "person"  # somebody has to do something
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Reason:
    """A reason in words, what would end it, and what to do about it."""

    words: str
    kind: Kind
    hint: str = ""


_LIMITS_HINT = "your limits: sacctmgr show assoc user=$USER format=account,partition,grptres,maxtres,maxjobs,qos"
_ASK_SITE = "ask the administrators of the cluster"

_REASONS = {
    "None": Reason("Slurm has not looked at it yet", Kind.TIME),
    "Priority": Reason("jobs with a higher priority wait ahead of it in the same partition", Kind.ROOM),
    "Resources": Reason("it is next in line, and waits for what it asks for to become free", Kind.ROOM),
    "ReqNodeNotAvail": Reason("a node that it needs is down, drained, reserved or about to be maintained", Kind.ROOM),
    "NodeDown": Reason("a node that it needs is down", Kind.ROOM),
    "Nodes_required_for_job_are_DOWN": Reason(
        "nodes that it needs are down, drained, or reserved for jobs in partitions with a higher priority", Kind.ROOM
    ),
    "BadConstraints": Reason("no node has what it asks for, all together", Kind.LIMIT, "see: clusterctl nodes"),
    "PartitionNodeLimit": Reason("it asks for more nodes than its partition gives to one job", Kind.LIMIT),
    "PartitionTimeLimit": Reason("it asks for more time than its partition gives to one job", Kind.LIMIT),
    "PartitionDown": Reason("its partition starts no jobs at present", Kind.LIMIT),
    "PartitionInactive": Reason("its partition takes and starts no jobs at present", Kind.LIMIT),
    "MaxMemPerLimit": Reason("it asks for more memory than a job may have per node or CPU", Kind.LIMIT),
    "AccountNotAllowed": Reason("its account may not use this partition", Kind.LIMIT),
    "QOSNotAllowed": Reason("its quality of service may not use this partition", Kind.LIMIT),
    "InvalidAccount": Reason("its account is not valid any more", Kind.PERSON, "submit it again with --account"),
    "InvalidQOS": Reason("its quality of service is not valid any more", Kind.PERSON, "submit it again with --qos"),
    "Licenses": Reason("a licence that it asks for is in use", Kind.TIME, "see: scontrol show licenses"),
    "Reservation": Reason("its reservation has not begun, or has no room left", Kind.TIME, "scontrol show reservation"),
    "ReservationDeleted": Reason("its reservation does not exist any more", Kind.PERSON, "submit it again without it"),
    "Dependency": Reason("it waits for another job to end", Kind.TIME),
    "DependencyNeverSatisfied": Reason(
        "the job that it waits for ended otherwise: it will never start", Kind.PERSON, "cancel it: clusterctl cancel"
    ),
    "BeginTime": Reason("its time to begin lies ahead (Slurm also waits a while after a requeue)", Kind.TIME),
    "Cleaning": Reason("its last attempt is still being cleaned up on its nodes", Kind.TIME),
    "Prolog": Reason("the prolog of its nodes runs", Kind.TIME),
    "JobHeldUser": Reason("it is held, by its user", Kind.PERSON),
    "JobHeldAdmin": Reason("it is held, by an administrator", Kind.PERSON, _ASK_SITE),
    "launch_failed_requeued_held": Reason(
        "Slurm could not start it on its nodes, and holds it since", Kind.PERSON, "see host.log of the last attempt"
    ),
    "JobLaunchFailure": Reason("Slurm could not start it on its nodes", Kind.PERSON, _ASK_SITE),
    "JobHoldMaxRequeue": Reason("it was requeued more often than the site allows, and is held since", Kind.PERSON),
    "job_requeued_in_held_state": Reason("it was requeued and held", Kind.PERSON),
    "DeadLine": Reason("it cannot end before its deadline any more", Kind.PERSON, "submit it again, shorter"),
    "BurstBufferResources": Reason("there is no room in the burst buffer", Kind.TIME),
    "BurstBufferStageIn": Reason("its burst buffer is being filled", Kind.TIME),
    "PowerNotAvail": Reason("the cluster's power cap leaves no room for it", Kind.TIME),
    "PowerReserved": Reason("the cluster's power is reserved for other jobs", Kind.TIME),
    "SchedDefer": Reason("the site starts no job at once: it waits for the next look at the queue", Kind.TIME),
    "JobArrayTaskLimit": Reason("its array runs as many tasks at once as it may", Kind.TIME),
    "AssociationJobLimit": Reason("your account runs as many jobs as it may", Kind.LIMIT, _LIMITS_HINT),
    "AssociationResourceLimit": Reason("your account holds as much as it may", Kind.LIMIT, _LIMITS_HINT),
    "AssociationTimeLimit": Reason("your account has used up its time", Kind.LIMIT, _LIMITS_HINT),
    "QOSJobLimit": Reason("your quality of service runs as many jobs as it may", Kind.LIMIT, _LIMITS_HINT),
    "QOSResourceLimit": Reason("your quality of service holds as much as it may", Kind.LIMIT, _LIMITS_HINT),
    "QOSTimeLimit": Reason("your quality of service has used up its time", Kind.LIMIT, _LIMITS_HINT),
    "QOSUsageThreshold": Reason("too little is left of your share in this quality of service", Kind.TIME, _LIMITS_HINT),
}
_BY_LOWER_CASE = {code.lower(): reason for code, reason in _REASONS.items()}

# QOSMaxGRESPerUser, AssocGrpCpuLimit, QOSMaxNodePerUserLimit, AssocGrpCPURunMinutesLimit, QOSGrpMemory ...
_FAMILY = re.compile(
    r"(?P<whose>QOS|Assoc(?:iation)?)(?P<scope>Max|Grp|Min)(?P<what>[A-Za-z]*?)(?P<run>Run)?(?P<minutes>Minutes|Mins)?"
    r"(?:Per(?P<each>User|Account|Acct|PU|PA|Job|Node))?(?:Limit)?",
    re.ASCII,
)
_WHAT = {  # by how it begins: Cpu and Cpus, Mem and Memory, Wall and WallDuration
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
    """The reason that Slurm gives as `code`, such as "Resources" or "ReqNodeNotAvail, UnavailableNodes:n3"."""
    head, comma, rest = code.strip("()").replace(" ", "_").partition(",")
    detail = f" ({rest.strip('_').replace('_', ' ')})" if comma and not head.startswith("Nodes_required") else ""
    if known := _BY_LOWER_CASE.get(head.lower()):
        return replace(known, words=known.words + detail)
    if match := _FAMILY.fullmatch(head):
        return _limit(match)
    return Reason(f"Slurm says: {code}" if code else "Slurm gives no reason", Kind.UNKNOWN)


def _limit(match: re.Match[str]) -> Reason:
    whose = "quality of service" if match["whose"] == "QOS" else "account"
    what = next((words for begin, words in _WHAT.items() if match["what"].lower().startswith(begin)), match["what"])
    if match["minutes"]:
        what = f"{what} x minutes" if what else "minutes"
    each = (match["each"] or "").lower()
    if match["scope"] == "Min":
        words = f"it asks for fewer {what} than your {whose} demands of a job"
    elif match["scope"] == "Grp":
        holders = "all jobs" if not each else f"all jobs of {_EACH.get(each, f'a {each}')}"
        words = f"{holders} in your {whose} together hold as much as they may: {what}"
    else:
        holder = {"": "", "job": " for one job", "node": " for one node"}.get(each, f" for {_EACH.get(each, each)}")
        words = f"the limit of your {whose}{holder} is reached: {what}"
    return Reason(words, Kind.LIMIT, _LIMITS_HINT)
