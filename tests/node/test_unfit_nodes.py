"""Which nodes failed the check before the ranks start, according to their reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.shared.node.node_check import NodeReport, Reached, failed_nodes, judge, judge_attempt
from clusterctl.shared.record.files import write_json
from clusterctl.shared.record.layout import Attempt, RunDir

NODES = ("a", "b", "c")
ALL = {node: NodeReport(node, Reached.ALL, 3.0) for node in NODES}


def judged(**changed: NodeReport | None) -> dict[str, str]:
    reports = {node: report for node, report in (ALL | changed).items() if report}
    return judge(reports, NODES, 10.0)


def test_nodes_that_answer_in_time_are_fit() -> None:
    assert judged() == {}
    assert judge({}, NODES, 10.0) == {}


def test_an_unfit_node_is_named_with_its_own_report() -> None:
    full = NodeReport("b", Reached.BEGUN, 0.1, "only 3 MiB free in /tmp, need 1024")
    waiting = NodeReport("a", Reached.MULTIPLIED, 2.0)  # for the others, in the all-reduce
    assert judged(a=waiting, b=full) == {"b": "only 3 MiB free in /tmp, need 1024"}


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (None, "did not answer"),
        (NodeReport("b", Reached.BEGUN, 0.0), "had not checked its disks and imported torch"),
        (NodeReport("b", Reached.IMPORTED, 1.0), "had not multiplied two matrices"),
    ],
)
def test_a_node_that_hangs_is_named_with_the_missing_step(report: NodeReport | None, words: str) -> None:
    assert judged(b=report) == {"b": f"{words} within 10 s; another node took 3.0 s"}


def test_no_node_is_late_if_all_are_slow_or_the_network_hangs() -> None:
    slow = {node: NodeReport(node, Reached.ALL, 7.0) for node in NODES}
    assert judge(slow | {"b": NodeReport("b", Reached.BEGUN, 0.0)}, NODES, 10.0) == {}
    assert judged(**{node: NodeReport(node, Reached.MULTIPLIED, 2.0) for node in NODES}) == {}


def test_a_problem_of_all_nodes_is_no_nodes_fault() -> None:
    wrong = {node: NodeReport(node, Reached.BEGUN, 0.1, "cannot write to /scratch") for node in NODES}
    assert judge(wrong, NODES, 10.0) == {}
    assert judge({"a": wrong["a"]}, ["a"], 10.0) == {"a": "cannot write to /scratch"}


def test_exclusions_accumulate_over_attempts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunDir(tmp_path)
    write_json(run.run_json, {"job": {"resources": {"exclude": "old[1-2]"}}})
    for number, node in enumerate("ab"):
        attempt = run.attempt(number)
        attempt.check.mkdir(parents=True)
        NodeReport("c", Reached.ALL, 1.0).write(attempt)
        NodeReport(node, Reached.BEGUN, 0.1, "its clock is off by +60 s").write(attempt)
        excluded = judge_attempt(attempt, [node, "c"], 10.0)
    assert excluded == "old[1-2],a,b"
    assert failed_nodes(run.attempt(1)) == {"b": "its clock is off by +60 s"}
    assert "b failed its check: its clock is off" in capsys.readouterr().err


def test_a_problem_of_all_nodes_is_logged_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    attempt = Attempt(tmp_path / "attempts" / "0")
    attempt.check.mkdir(parents=True)
    NodeReport("a", Reached.BEGUN, 0.1, "only 3 MiB free in /tmp, need 1024").write(attempt)
    NodeReport("b", Reached.BEGUN, 0.1, "cannot write to /tmp: Permission denied").write(attempt)
    assert judge_attempt(attempt, ["a", "b"], 10.0) == ""
    logged = capsys.readouterr().err.splitlines()
    assert logged == [
        "clusterctl: all nodes failed their check, so none is excluded: only 3 MiB free in /tmp, need 1024 (a)",
        "clusterctl: all nodes failed their check, so none is excluded: cannot write to /tmp: Permission denied (b)",
    ]


def test_an_unfinished_check_is_logged_and_excludes_no_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    attempt = Attempt(tmp_path / "attempts" / "0")
    attempt.check.mkdir(parents=True)
    assert judge_attempt(attempt, ["a", "b"], 10.0) == ""
    assert "check not completed within 10 s: a, b" in capsys.readouterr().err
