"""Slurm's reasons, in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launcher.diagnosis.reasons import Kind, in_words

# Reasons for waiting from squeue(1) and Slurm's resource limits page that a user's job can have.
COMMON = [
    "None",
    "Priority",
    "Resources",
    "ReqNodeNotAvail",
    "NodeDown",
    "BadConstraints",
    "PartitionNodeLimit",
    "PartitionTimeLimit",
    "PartitionDown",
    "PartitionInactive",
    "MaxMemPerLimit",
    "AccountNotAllowed",
    "QOSNotAllowed",
    "InvalidAccount",
    "InvalidQOS",
    "Licenses",
    "Reservation",
    "ReservationDeleted",
    "Dependency",
    "DependencyNeverSatisfied",
    "BeginTime",
    "Cleaning",
    "Prolog",
    "JobHeldUser",
    "JobHeldAdmin",
    "launch_failed_requeued_held",
    "JobLaunchFailure",
    "JobHoldMaxRequeue",
    "DeadLine",
    "QOSJobLimit",
    "QOSResourceLimit",
    "QOSTimeLimit",
    "QOSUsageThreshold",
    "AssociationJobLimit",
    "AssociationResourceLimit",
    "AssociationTimeLimit",
    "QOSMaxGRESPerUser",
    "QOSMaxCpuPerUserLimit",
    "QOSMaxNodePerUserLimit",
    "QOSMaxJobsPerUserLimit",
    "QOSMaxWallDurationPerJobLimit",
    "QOSMinGRES",
    "QOSGrpGRES",
    "QOSGrpNodeLimit",
    "QOSGrpCPURunMinutesLimit",
    "QOSMaxMemoryPerUser",
    "QOSMaxSubmitJobPerUserLimit",
    "AssocGrpGRES",
    "AssocGrpCpuLimit",
    "AssocGrpNodeLimit",
    "AssocGrpMemLimit",
    "AssocMaxJobsLimit",
    "AssocGrpCPUMinutesLimit",
    "AssocMaxWallDurationPerJobLimit",
    "AssocGrpJobsLimit",
    "AssocMaxGRESPerJob",
    "JobArrayTaskLimit",
    "BurstBufferResources",
    "PowerNotAvail",
]


@pytest.mark.parametrize("code", COMMON)
def test_every_common_reason_has_an_explanation(code: str) -> None:
    reason = in_words(code)
    assert reason.kind is not Kind.UNKNOWN
    assert code not in reason.words


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("QOSMaxGRESPerUser", "the limit of your quality of service for a user is reached: GPUs and other devices"),
        ("QOSMaxNodePerUserLimit", "the limit of your quality of service for a user is reached: nodes"),
        ("QOSMaxWallDurationPerJobLimit", "the limit of your quality of service for one job is reached: running time"),
        ("AssocGrpCpuLimit", "all jobs in your account together have reached their limit: CPUs"),
        ("AssocGrpCPURunMinutesLimit", "all jobs in your account together have reached their limit: CPUs x minutes"),
        ("QOSMinGRES", "it requests fewer GPUs and other devices than your quality of service requires per job"),
    ],
)
def test_limits_name_their_owner_and_resource(code: str, words: str) -> None:
    assert in_words(code).words == words
    assert in_words(code).kind is Kind.LIMIT


def test_unavailable_nodes_are_named() -> None:
    assert in_words("ReqNodeNotAvail, UnavailableNodes:node[3-4]").words.endswith("(UnavailableNodes:node[3-4])")
    assert "reserved for jobs" in in_words("Nodes required for job are DOWN, DRAINED or reserved").words
    assert in_words("(launch failed requeued held)").kind is Kind.PERSON


def test_an_unknown_reason_is_shown_unchanged() -> None:
    assert in_words("FullMoon").words == "Slurm's reason: FullMoon"
    assert in_words("").words == "Slurm gives no reason"
    assert in_words("FullMoon").kind is Kind.UNKNOWN


@given(st.text())
def test_nonsense_never_raises(code: str) -> None:
    in_words(code)
