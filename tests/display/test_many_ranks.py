"""File reads of each command as the number of ranks grows: at most proportional, and no file twice."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import pytest
from support.counted import Counted, counted
from support.made_runs import JOB_ID, RANKS_A_NODE, Case, culprit, write_many_ranks

from clusterctl.launcher.api.run import Run
from clusterctl.launcher.diagnosis.diagnose import diagnose_status
from clusterctl.launcher.display.explanation import explanation, first_cause
from clusterctl.launcher.display.monitor.panes import MonitorView, Pane, frame
from clusterctl.launcher.display.report.page import examine, page
from clusterctl.launcher.observe.overview import Overview
from clusterctl.launcher.observe.status import statuses_of
from clusterctl.launcher.slurm import Snapshot
from clusterctl.launcher.slurm.queue import JobState, QueuedJob
from clusterctl.shared.record.layout import RunDir

FEW, MANY = 128, 384  # `status` reads all nodes up to sixteen
GROWTH = MANY // FEW
NOW = 1_800_000_000.0


class Running:
    """A Slurm in which the job runs."""

    def snapshot(self) -> Snapshot:
        job = QueuedJob(JOB_ID, JobState.RUNNING, "", "node[0-3]", None, None, 0, "")
        return Snapshot({JOB_ID: job}, NOW)


def _slurm(_: object) -> Running:
    return Running()


def _now() -> float:
    return NOW


def status(run: RunDir) -> str:
    (found,) = statuses_of([run], _slurm, _now).statuses
    return first_cause(found) if found.state.ended else str(found.state)


def why(run: RunDir) -> str:
    (found,) = statuses_of([run], _slurm, _now).statuses
    return "\n".join(explanation(diagnose_status(found, _slurm, _now)))


def monitor_once(run: RunDir) -> str:
    return frame(MonitorView(Overview(run.path.parent, slurm_of=_slurm, clock=_now).look()), 200, 60).plain


def monitor_devices(run: RunDir) -> str:
    view = MonitorView(Overview(run.path.parent, slurm_of=_slurm, clock=_now).look())
    return frame(view, 80, 24, Pane.DEVICES).plain


def write_report(run: RunDir) -> str:
    return page(examine(run, run.path, _slurm, _now))


def errors(run: RunDir) -> str:
    return "\n".join(f"{failure.message} {len(failure.ranks)}" for failure in Run(run.path).logs().errors())


Look = Callable[[RunDir], str]
LOOKS = (status, why, monitor_once, write_report, errors)


class Looked(NamedTuple):
    text: str
    read: Counted


@pytest.fixture(scope="module")
def looked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Look, int, Case], Looked]:
    """The output of a command for a run with that many ranks, and the reads it took."""

    @cache
    def run_of(ranks: int, case: Case) -> RunDir:
        return write_many_ranks(tmp_path_factory.mktemp("runs"), ranks, case, NOW)

    @cache
    def of(look: Look, ranks: int, case: Case) -> Looked:
        run = run_of(ranks, case)
        with counted(run.path) as read:
            text = look(run)
        return Looked(text, read)

    return of


@pytest.mark.parametrize("case", Case)
def test_status_reads_no_more_files_for_more_ranks(looked, case: Case) -> None:
    few, many = (looked(status, ranks, case).read for ranks in (FEW, MANY))
    assert many.opens <= few.opens
    assert many.listings == few.listings


@pytest.mark.parametrize("case", Case)
@pytest.mark.parametrize("look", LOOKS)
def test_reads_grow_at_most_linearly_with_the_number_of_ranks(looked, case: Case, look: Look) -> None:
    few, many = (looked(look, ranks, case).read for ranks in (FEW, MANY))
    assert many.opens <= GROWTH * few.opens
    assert many.listings == few.listings


@pytest.mark.parametrize("case", Case)
@pytest.mark.parametrize("look", [look for look in LOOKS if look is not errors])
def test_more_ranks_cause_no_more_repeated_reads(looked, case: Case, look: Look) -> None:
    few, many = (
        [path for path in looked(look, ranks, case).read.repeated if "telemetry" not in path] for ranks in (FEW, MANY)
    )
    assert len(many) == len(few)  # of telemetry, only that of some nodes is read


@pytest.mark.parametrize("look", LOOKS)
def test_the_rank_to_blame_is_named_among_many(looked, look: Look) -> None:
    assert f"batch 7 of rank {culprit(MANY)} is empty" in looked(look, MANY, Case.FAILED).text


def test_identical_errors_of_the_other_ranks_are_one_line(looked) -> None:
    first = culprit(MANY)
    lines = looked(why, MANY, Case.FAILED).text.split("what followed:\n")[1].splitlines()
    ranks = f"ranks 0-{first - 1}, {first + 1}-{MANY - 1}"
    assert lines[0].startswith(f"  {ranks}: RuntimeError: Connection closed by peer")
    assert lines[1].startswith("next: ")


def test_the_stuck_rank_is_named_among_many(looked) -> None:
    assert f"rank {culprit(MANY)} on " in looked(status, MANY, Case.HUNG).text


def test_errors_reads_the_events_of_a_rank_once(looked) -> None:
    repeated = looked(errors, MANY, Case.FAILED).read.repeated
    assert not [path for path in repeated if path.endswith(".events.jsonl")]


def test_a_report_shows_the_slowest_of_many_ranks_and_the_idlest_of_many_nodes(looked) -> None:
    text = looked(write_report, MANY, Case.RUNNING).text
    assert f"The 64 slowest of {MANY} ranks." in text
    assert f"The 32 of {MANY // RANKS_A_NODE} nodes with the lowest GPU utilisation." in text
    assert len(text) < 1.1 * len(looked(write_report, 2 * FEW, Case.RUNNING).text)


def test_with_more_nodes_than_lines_the_first_line_is_a_summary(looked) -> None:
    lines = looked(monitor_devices, MANY, Case.RUNNING).text.split("\n")
    summary = next(line for line in lines if f"{MANY // RANKS_A_NODE} nodes" in line)
    assert re.search(rf"{MANY} GPUs, [78]\d % in use, 0 idle", summary)
    assert len(lines) < 24
    assert max(map(len, lines)) <= 80


def test_identical_events_of_many_ranks_are_one_event(looked) -> None:
    text = looked(monitor_once, MANY, Case.FAILED).text
    assert f"r{culprit(MANY)} ValueError: batch 7" in text
    assert f"x{MANY - 1} RuntimeError: Connection closed by peer" in text
    assert f"x{MANY} exit code 1" in text
