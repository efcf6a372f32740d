"""The files of a node: what a full disk rejects is written later, and only once."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from clusterctl.shared.node import node_writer
from clusterctl.shared.node.node_writer import NodeFiles
from clusterctl.shared.record import files
from clusterctl.shared.record.files import read_lines
from clusterctl.shared.record.layout import Attempt, RunDir


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    made = RunDir(tmp_path / "run").attempt(0)
    made.beats(0).parent.mkdir(parents=True)
    return made


def names(attempt: Attempt) -> list[str]:
    return [record["event"] for record in read_lines(attempt.node_events(2))]


def test_events_carry_their_rank_and_are_written_together(attempt: Attempt) -> None:
    written = NodeFiles(attempt, 2)
    assert not written.has_events
    written.add_event(5, {"event": "one"})
    written.add_event(4, {"event": "two", "time": 7.0})
    assert written.has_events
    assert written.write_events()
    one, two = read_lines(attempt.node_events(2))
    assert (one["rank"], one["event"]) == (5, "one")
    assert two == {"rank": 4, "event": "two", "time": 7.0}
    assert not written.has_events


def test_events_that_a_full_disk_rejects_are_written_with_the_next(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = NodeFiles(attempt, 2)
    written.add_event(0, {"event": "one"})
    with monkeypatch.context() as full:
        full.setattr(node_writer, "append", lambda path, content: files.append(path, content[:10]))
        assert not written.write_events()
    written.add_event(0, {"event": "two"})
    assert written.write_events()
    assert names(attempt) == ["one", "two"]


def test_no_event_is_lost_while_the_file_system_is_unavailable(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(path: Path, content: bytes) -> int:
        raise OSError(errno.EIO, "Input/output error", str(path))

    written = NodeFiles(attempt, 2)
    written.add_event(0, {"event": "one"})
    with monkeypatch.context() as gone:
        gone.setattr(node_writer, "append", away)
        assert not written.write_events()
    assert written.write_events()
    assert names(attempt) == ["one"]


def test_samples_of_a_node_are_written_together_to_its_file(attempt: Attempt) -> None:
    written = NodeFiles(attempt, 2)
    for node, cpu in (("n3", 1), ("n4", 7), ("n3", 2)):
        written.add_sample(node, {"time": 1.0, "seconds": 5.0, "cpu": cpu})
    written.write_samples()
    assert written.has_samples
    assert [sample["cpu"] for sample in read_lines(attempt.telemetry("n3"))] == [1, 2]
    written.write_samples()
    assert not written.has_samples
    assert [sample["cpu"] for sample in read_lines(attempt.telemetry("n4"))] == [7]
