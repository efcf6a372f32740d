"""Why a run that depends on other runs has not started."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.traces import RECORD

from clusterctl.launcher.diagnosis.waiting import Link, explain_chain
from clusterctl.launcher.observe.attempt import AttemptEvidence
from clusterctl.launcher.observe.run_record import Condition, Predecessor
from clusterctl.launcher.observe.state import NEVER_STARTS, Status
from clusterctl.shared.errors import Cause
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.states import State


def status(run: str, state: State, reason: str = "", **metrics: float) -> Status:
    attempts = (AttemptEvidence(number=0, metrics=dict(metrics)),) if metrics else ()
    record = replace(RECORD, run=RunDir(Path("/runs") / run))
    return Status(record, state, True, "12", attempts, False, reason, None, None)


def link(found: Status | str, *before: Link, condition: Condition = Condition.FINISHED) -> Link:
    if isinstance(found, str):
        return Link(Predecessor(found, condition), ())
    return Link(Predecessor(found.record.run.id, condition), (found,), before)


def sweep_link(*runs: Status, before: tuple[Link, ...] = (), condition: Condition = Condition.FINISHED) -> Link:
    return Link(Predecessor("sweep", condition), runs, before)


TRAIN = status("train", State.TRAINING, step=40, steps=100)
WAITS = status("prepare", State.QUEUED, "Dependency")
FAILED = status("fetch", State.FAILED, step=1)
EVAL = status("eval", State.QUEUED, "Dependency")
CUT_OFF = status("eval", State.CANCELLED, NEVER_STARTS)


def explained(of: Status, *chain: Link) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    found = explain_chain(of, chain)
    assert found
    finding, commands = found
    assert finding.cause_class is (Cause.CANCELLED if of.state is State.CANCELLED else Cause.PENDING)
    return finding.cause, finding.facts, commands


def test_the_chain_is_shown_as_a_tree_and_the_command_shows_the_run_at_its_root() -> None:
    cause, facts, commands = explained(EVAL, link(WAITS, link(TRAIN)))
    assert cause == "waiting for prepare to finish"
    assert facts == ("prepare: queued, waiting for train to finish", "  train: training, 40 % done")
    assert commands == ("clusterctl status train", "clusterctl cancel eval")


def test_only_unmet_dependencies_are_named() -> None:
    finished, queued = status("data", State.FINISHED), status("other", State.QUEUED, "Priority")
    chain = (link(finished), link(TRAIN, condition=Condition.ENDED), link(queued, condition=Condition.STARTED))
    cause, facts, _ = explained(EVAL, *chain)
    assert cause == "waiting for train to end and other to start"
    assert facts == (
        "data: finished",
        "train: training, 40 % done",
        "other: queued: jobs with a higher priority are ahead of it in the same partition",
    )


@pytest.mark.parametrize(
    ("state", "became"),
    [(State.FAILED, "failed"), (State.TIMED_OUT, "reached its time limit"), (State.CANCELLED, "was cancelled")],
)
def test_a_run_cancelled_by_slurm_names_the_failed_dependency(state: State, became: str) -> None:
    cause, facts, commands = explained(CUT_OFF, link(status("fetch", state)))
    assert cause == f"Slurm cancelled it before it started, because fetch, on which it depends, {became}"
    assert facts == (f"fetch: {state}",)
    assert commands == ("clusterctl resume fetch", "clusterctl resume eval")


def test_a_broken_chain_is_resumed_from_its_beginning() -> None:
    middle = status("prepare", State.CANCELLED, NEVER_STARTS)
    _, facts, commands = explained(CUT_OFF, link(middle, link(FAILED)), link(FAILED))
    assert facts[:2] == ("prepare: cancelled, because of a run it depends on", "  fetch: failed")
    assert commands == ("clusterctl resume fetch", "clusterctl resume prepare", "clusterctl resume eval")


def test_if_the_dependency_was_resumed_only_the_cancelled_run_needs_a_resume() -> None:
    cause, _, commands = explained(CUT_OFF, link(TRAIN))
    assert cause.endswith("because a run it depends on had not finished at that time")
    assert commands == ("clusterctl resume eval",)


def test_a_queued_run_that_can_never_start_is_cancelled_before_the_resume() -> None:
    cause, _, commands = explained(replace(EVAL, reason=NEVER_STARTS), link(FAILED), link(TRAIN))
    assert cause == "it will not start, because fetch, on which it depends, failed"
    assert commands == ("clusterctl cancel eval", "clusterctl resume fetch", "clusterctl resume eval")


def test_a_sweep_is_one_link_with_its_runs_counted() -> None:
    runs = [status(f"sweep.{place}", state) for place, state in enumerate((State.TRAINING, State.FINISHED) * 2)]
    cause, facts, commands = explained(EVAL, sweep_link(*runs))
    assert cause == "waiting for all runs of sweep to finish"
    assert facts == ("sweep: 4 runs: 2 training, 2 finished",)
    assert commands == ("clusterctl status sweep", "clusterctl cancel eval")
    assert explain_chain(EVAL, [sweep_link(runs[1], runs[3])]) is None  # the dependency is met


def test_a_queued_sweep_shows_its_own_dependencies() -> None:
    runs = [status(f"sweep.{place}", State.QUEUED, "Dependency") for place in range(2)]
    cause, facts, commands = explained(EVAL, sweep_link(*runs, before=(link(TRAIN),), condition=Condition.STARTED))
    assert cause == "waiting for all runs of sweep to start"
    assert facts == ("sweep: 2 runs: 2 queued, waiting for train to finish", "  train: training, 40 % done")
    assert commands[0] == "clusterctl status train"


@pytest.mark.parametrize(
    ("of", "cause", "commands"),
    [
        (CUT_OFF, "Slurm cancelled it before it started, because 1 of the 3 runs of sweep, on which it depends,", ()),
        (
            EVAL,
            "it will not start, because 1 of the 3 runs of sweep, on which it depends,",
            ("clusterctl cancel eval",),
        ),
    ],
)
def test_a_sweep_with_failed_runs_is_resumed_with_one_command(
    of: Status, cause: str, commands: tuple[str, ...]
) -> None:
    states = (State.FINISHED, State.FAILED, State.TRAINING)
    runs = [status(f"sweep.{place}", state) for place, state in enumerate(states)]
    found, _, typed = explained(of, sweep_link(*runs))
    assert found == f"{cause} did not finish"
    assert typed == (*commands, "clusterctl resume sweep", "clusterctl resume eval")


def test_an_unreadable_run_is_named() -> None:
    _, facts, _ = explained(EVAL, link("gone"), link(TRAIN))
    assert facts[0] == "gone: cannot be read"


@pytest.mark.parametrize(
    ("of", "chain"),
    [
        (status("eval", State.QUEUED, "Resources"), (link(status("data", State.FINISHED)),)),
        (status("eval", State.QUEUED, "JobHeldUser"), (link(TRAIN),)),
        (status("eval", State.CANCELLED), (link(FAILED),)),  # by hand
    ],
)
def test_other_reasons_for_waiting_or_ending_are_left_to_other_explanations(
    of: Status, chain: tuple[Link, ...]
) -> None:
    assert explain_chain(of, chain) is None
