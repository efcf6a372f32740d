"""Why a run is waiting, and the smallest change that would start it now."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.launcher.diagnosis.waiting import (
    MOST_CHANGES,
    Change,
    QueueEvidence,
    Trial,
    as_changed,
    changes,
    described,
    explain,
    may_be_changed,
    smallest_change,
)
from clusterctl.launcher.slurm import Inventory, Node, Partition
from clusterctl.launcher.slurm.nodes import Gpus, asked_of
from clusterctl.launcher.slurm.queue import WaitingJob
from clusterctl.shared.spec import Resources
from clusterctl.shared.spec.values import GpuCount

NOW = 1_000_000.0
IDLE = Node("n1", ("gpu",), "idle", frozenset(), "", 32, 0, 256_000, 0, None, (Gpus("", 4, 0),), frozenset())
RESOURCES = Resources(nodes=4, tasks_per_node=4, cpus_per_task=4, gpus_per_node=4, time=7200)
JOB = WaitingJob("12", "Resources", "gpu", NOW + 600, "")


def cluster(*nodes: Node, also: bool = False) -> Inventory:
    named = {f"n{number}": replace(node, name=f"n{number}") for number, node in enumerate(nodes, 1)}
    partitions = {"gpu": Partition("gpu", True, True, None, None, tuple(named))}
    if also:
        partitions["other"] = Partition("other", False, True, None, None, tuple(named))
    return Inventory(named, partitions, NOW)


def changes_of(resources: Resources, inventory: Inventory | None, job: WaitingJob = JOB) -> tuple[Change, ...]:
    return changes(QueueEvidence("r-1", job, resources, ("submit", "x"), NOW, inventory))


def words_of(resources: Resources, inventory: Inventory | None, job: WaitingJob = JOB) -> list[str]:
    return [change.words for change in changes_of(resources, inventory, job)]


def evidence(*trials: Trial, job: WaitingJob = JOB, control: float | None = NOW + 600) -> QueueEvidence:
    typed = ("submit", "./it's.toml", "--nodes", "4")
    return QueueEvidence("r-1", job, RESOURCES, typed, NOW, cluster(IDLE), control=control, trials=trials)


def trial(words: str, start: float | None, *settings: tuple[str, str], **resources: object) -> Trial:
    return Trial(Change(words, replace(RESOURCES, **resources), settings), start)  # type: ignore[arg-type]


def test_changes_that_do_not_shrink_the_run_come_first() -> None:
    resources = replace(RESOURCES, constraint="ib", exclusive=True, memory="200G")
    busy = replace(IDLE, memory_allocated=156_000, state="mixed")
    assert words_of(resources, cluster(busy, busy, busy, busy, also=True))[:4] == [
        "no constraint (ib)",
        "nodes shared with others",
        "a time limit of 01:00:00",
        "100000 MiB of memory per node",
    ]
    assert words_of(replace(RESOURCES, nodes=1), cluster(IDLE, also=True))[0] == "partition other"


def test_smaller_requests_fit_the_free_resources() -> None:
    half = replace(IDLE, gpus=(Gpus("", 4, 2),), cpus_allocated=8, state="mixed")
    assert "2 nodes instead of 4" in words_of(RESOURCES, cluster(IDLE, IDLE, half, half))
    assert "2 GPUs per node instead of 4" in words_of(RESOURCES, cluster(IDLE, IDLE, half, half))
    (gpus,) = (change for change in changes_of(RESOURCES, cluster(half, half, half, half)) if "GPU" in change.words)
    assert gpus.settings == (("gpus_per_node", "2"), ("tasks_per_node", "2"))
    assert asked_of(gpus.resources).gpus == 2


def test_at_most_six_different_changes_are_tried() -> None:
    everything = replace(RESOURCES, constraint="a", nodelist="b", exclude="c", reservation="d", exclusive=True)
    found = changes_of(everything, cluster(IDLE, IDLE, also=True))
    assert len(found) == MOST_CHANGES
    assert len({change.words for change in found}) == MOST_CHANGES


def test_fewer_gpus_keep_the_requested_type() -> None:
    half = replace(IDLE, gpus=(Gpus("a100", 4, 2), Gpus("v100", 4, 0)))
    asked = replace(RESOURCES, nodes=1, gpus_per_node=GpuCount("a100:4"))
    assert "2 a100 GPUs per node instead of 4" in words_of(asked, cluster(half))


def test_without_an_inventory_there_are_still_changes_to_try() -> None:
    assert words_of(RESOURCES, None) == ["a time limit of 01:00:00"]
    assert words_of(replace(RESOURCES, time=600), None) == []


@pytest.mark.parametrize(
    ("reason", "worth"),
    [("Resources", True), ("QOSMaxGRESPerUser", True), ("Dependency", False), ("JobHeldUser", False)],
)
def test_changes_are_tried_only_if_they_can_help(reason: str, worth: bool) -> None:
    job = replace(JOB, reason=reason)
    assert may_be_changed(job) is worth
    assert bool(words_of(RESOURCES, cluster(IDLE), job)) is worth


def test_the_first_change_that_would_start_now_is_suggested_with_its_commands() -> None:
    found = explain(
        evidence(
            trial("a time limit of 01:00:00", NOW + 600, ("time", "3600s"), time=3600),
            trial("2 nodes instead of 4", NOW, ("nodes", "2"), nodes=2),
        )
    )
    assert found.commands == ("clusterctl cancel r-1", """clusterctl submit './it'"'"'s.toml' --nodes 4 --nodes 2""")
    assert "it would start now with 2 nodes instead of 4" in found.facts
    assert found.cause == "it is next in line, and the resources it requests are not free yet"


def test_a_value_without_its_own_flag_uses_set() -> None:
    found = explain(evidence(trial("100 MiB of memory per node", NOW, ("memory", "100M"), memory="100M")))
    assert found.commands[1].endswith("--set resources.memory=100M")


def test_a_change_to_the_job_file_is_a_hint() -> None:
    found = explain(evidence(Trial(Change("no constraint (ib)", RESOURCES, ()), NOW)))
    assert found.hint == "no constraint (ib): change [resources] in the job file"


def test_the_runs_own_share_of_slurms_estimate_is_subtracted() -> None:
    """Slurm's estimate counts all waiting jobs, including the run itself, which would be cancelled."""
    own = RESOURCES.time * 4  # the run requests four nodes, its partition has one
    smaller = trial("2 nodes instead of 4", NOW + own, ("nodes", "2"), nodes=2)
    assert smallest_change(evidence(smaller, control=NOW + 600 + own)) == (smaller.change, "")
    # Another Slurm may not count it: then nothing is subtracted, and the run would start in two hours.
    assert smallest_change(evidence(smaller, control=NOW + 600)) == (None, "")
    elsewhere = trial("partition other", NOW + own, ("partition", "other"), partition="other")
    assert smallest_change(evidence(elsewhere, control=NOW + 600 + own)) == (None, "")


def test_a_run_larger_than_the_cluster_would_start_with_the_idle_nodes() -> None:
    """Slurm 22.05 has no estimate for such a run and refuses to test it, but counts it in other estimates."""
    larger = replace(RESOURCES, nodes=9)
    fewer = Change("4 nodes instead of 9", replace(RESOURCES, nodes=4), (("nodes", "4"),))
    asked = replace(
        evidence(Trial(fewer, NOW + larger.time * 9 // 4), job=replace(JOB, start=None), control=None),
        resources=larger,
        inventory=cluster(IDLE, IDLE, IDLE, IDLE),
    )
    assert smallest_change(asked) == (fewer, "")
    assert "it would start now with 4 nodes instead of 9" in explain(asked).facts
    busy = replace(IDLE, gpus=(Gpus("", 4, 4),), cpus_allocated=32, state="allocated")
    assert smallest_change(replace(asked, inventory=cluster(IDLE, IDLE, IDLE, busy))) == (None, "")


def test_nothing_is_promised_behind_other_jobs_without_an_estimate() -> None:
    unsure = evidence(
        trial("2 nodes instead of 4", NOW, ("nodes", "2"), nodes=2),
        job=replace(JOB, reason="Priority", start=None),
        control=None,
    )
    assert smallest_change(unsure)[0] is None
    assert "whether a smaller run could start before the jobs ahead" in explain(unsure).unknown[0]


def test_unsuccessful_changes_are_listed() -> None:
    tried = evidence(trial("1 node instead of 4", NOW + 300, nodes=1), trial("2 nodes", None, nodes=2))
    assert smallest_change(tried)[0] is None
    assert "tried, but none would start now: 1 node instead of 4, 2 nodes" in explain(tried).facts


def test_requested_and_free_resources_are_both_shown() -> None:
    found = explain(evidence())
    assert found.facts[0] == "it requests 4 nodes, with 16 CPUs and 4 GPUs each, for 02:00:00"
    assert found.facts[1] == "partition gpu: 1 of 4 nodes have 16 CPUs and 4 GPUs free"


def test_missing_data_is_listed_as_unknown() -> None:
    blind = replace(evidence(job=replace(JOB, start=None)), inventory=None, unknown=("free resources: no answer",))
    found = explain(blind)
    assert found.unknown == ("free resources: no answer",)
    assert found.facts == ("it requests 4 nodes, with 16 CPUs and 4 GPUs each, for 02:00:00",)


def test_a_held_run_suggests_the_release_command() -> None:
    for reason in ("JobHeldUser", "launch failed requeued held"):
        held = evidence(job=replace(JOB, reason=reason))
        assert explain(held).commands == ("clusterctl release r-1",)


def test_a_dependency_is_named() -> None:
    facts = explain(evidence(job=replace(JOB, reason="Dependency", dependency="afterok:77(unfulfilled)"))).facts
    assert "it depends on: afterok:77(unfulfilled)" in facts


def test_a_single_node_is_described_in_the_singular() -> None:
    assert described(asked_of(Resources(cpus_per_task=1, memory="64G", time=90061, exclusive=True))) == (
        "1 whole node, with 1 CPU and 64 GiB, for 1-01:01:01"
    )


def test_the_request_is_the_one_that_slurm_has_by_now() -> None:
    shrunk = as_changed(replace(evidence(), job=replace(JOB, nodes=2, seconds=600)))
    assert (shrunk.resources.nodes, shrunk.resources.time) == (2, 600)
    facts = " ".join(explain(shrunk).facts)
    assert "requests 2 nodes" in facts
    assert "for 00:10:00" in facts
    assert "changed in Slurm since its submission, which requested 4 nodes for 02:00:00" in facts


@pytest.mark.parametrize(("nodes", "seconds"), [(None, None), (4, 7200), (4, None)])
def test_an_unchanged_request_is_not_called_changed(nodes: int | None, seconds: int | None) -> None:
    same = replace(evidence(), job=replace(JOB, nodes=nodes, seconds=seconds))
    assert as_changed(same) == same
    rounded = replace(same, resources=replace(RESOURCES, time=7150))
    assert as_changed(rounded) == rounded
