"""The files of a node's writer (`runs.node_writer`), and the data waiting to be written to them.

    attempts/<n>/nodes/00002.beats           the last heartbeat of each rank (`heartbeats`)
    attempts/<n>/nodes/00002.events.jsonl    their events, each with its `rank` (`events`)
    attempts/<n>/telemetry/<node>.jsonl      samples of the node (`samples`)

If the disk is full or the file system is unavailable, heartbeats and samples are dropped; events are kept.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clusterctl.runs.files import append
from clusterctl.runs.heartbeats import Beat, write_beats
from clusterctl.runs.samples import SampleFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.runs.layout import Attempt

_MOST_LEFT = 1 << 22  # bytes of events kept while the disk is full


@dataclass
class NodeFiles:
    """Data is written only by the `write` methods, each of which writes to one file."""

    attempt: Attempt
    node: int
    _events: list[bytes] = field(default_factory=list)
    _samples: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    _sample_files: dict[str, SampleFile] = field(default_factory=dict)

    def add_event(self, rank: int, record: Mapping[str, Any]) -> None:
        self._events.append(json.dumps({"rank": rank, "time": time.time(), **record}).encode() + b"\n")

    def add_sample(self, node: str, sample: dict[str, Any]) -> None:
        """Add a sample of the node named `node`."""
        self._samples.append((node, sample))

    @property
    def has_events(self) -> bool:
        return bool(self._events)

    @property
    def has_samples(self) -> bool:
        return bool(self._samples)

    def write_events(self) -> bool:
        """Write the waiting events; returns whether all are on disk. The rest is written with later ones."""
        content = b"".join(self._events)
        try:
            left = content[append(self.attempt.node_events(self.node), content) :]
        except OSError:  # waiting ranks will try to write themselves
            left = content
        self._events = [left] if left and len(left) < _MOST_LEFT else []
        return not left

    def write_beats(self, beats: Mapping[int, tuple[int, Beat]]) -> None:
        """Write beats: local rank -> rank and beat."""
        with suppress(OSError):
            write_beats(self.attempt.beats(self.node), beats)

    def write_samples(self) -> None:
        """Write all samples of the node with the oldest one."""
        node = self._samples[0][0]
        waiting = [sample for name, sample in self._samples if name == node]
        self._samples = [(name, sample) for name, sample in self._samples if name != node]
        for sample in waiting:
            with suppress(OSError, ValueError, KeyError):
                if node not in self._sample_files:
                    self._sample_files[node] = SampleFile(self.attempt.telemetry(node))
                self._sample_files[node].append(sample)
