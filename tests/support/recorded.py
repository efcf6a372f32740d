"""The events and heartbeats of ranks, for tests that read and write them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clusterctl.shared.record.files import read_lines, write_json
from clusterctl.shared.record.heartbeats import Beat, read_beats, write_beats
from clusterctl.shared.record.layout import Attempt


def recorded(attempt: Attempt, rank: int) -> Iterator[dict[str, Any]]:
    """The events of a rank, written by itself or by the writer of its node."""
    for path in attempt.node_event_files().values():
        yield from (record for record in read_lines(path) if record.get("rank") == rank)
    yield from read_lines(attempt.events(rank))


def begun(attempt: Attempt) -> set[int]:
    """The ranks that have started."""
    files = attempt.node_event_files().values()
    events = [record for path in files for record in read_lines(path) if record["event"] == "began"]
    return {record["rank"] for record in events} | attempt.event_files().keys()


def claim(attempt: Attempt) -> Attempt:
    """Make the folder of an attempt as its batch script does."""
    attempt.path.mkdir(parents=True, exist_ok=True)
    write_json(attempt.host_json, {"attempt": attempt.number, "job_id": "12"})
    return attempt


def beat_of(attempt: Attempt, rank: int) -> Beat | None:
    """The last heartbeat of a rank."""
    return next((beats[rank] for path in attempt.beat_files().values() if rank in (beats := read_beats(path))), None)


def write_beat(attempt: Attempt, rank: int, beat: Beat, *, node: int = 0) -> None:
    """Write the heartbeat of a rank to the file of `node`, in the slot of its number."""
    path: Path = attempt.beats(node)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_beats(path, {rank: (rank, beat)})
