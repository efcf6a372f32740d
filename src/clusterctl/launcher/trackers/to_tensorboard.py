"""TensorBoard: event files in the run directory, written with TensorBoard's own writer, without torch."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from clusterctl.launcher.trackers.mirror import parameters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.launcher.observe.run_record import RunRecord
    from clusterctl.launcher.trackers.mirror import Bookmark, TrackedPoint
    from clusterctl.shared.record.states import State


class TensorBoard:
    """One folder, to which each opening adds a file."""

    def __init__(self, record: RunRecord, bookmark: Bookmark) -> None:
        self._writer = EventFileWriter(str(record.run.tensorboard))
        self._next = max(bookmark.steps.values(), default=-1) + 1
        # TensorBoard drops earlier events from this step on, from a mirror that died before saving its bookmark.
        start = SessionLog(status=SessionLog.START)
        self._writer.add_event(Event(step=self._next, wall_time=time.time(), session_log=start))
        if not bookmark.steps:
            rows = [f"|{key}|{value}|" for key, value in parameters(record).items()]
            self._add(0, time.time(), _text("settings", "\n".join(["|key|value|", "|-|-|", *rows])))

    def add(self, points: Sequence[TrackedPoint]) -> None:
        for point in points:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in point.values.items()]
            self._add(point.step, point.time, Summary(value=values))
            self._next = point.step + 1
        self._writer.flush()

    def finish(self, state: State) -> None:
        self._add(self._next, time.time(), _text("state", state.value))
        self.close()

    def close(self) -> None:
        self._writer.close()

    def _add(self, step: int, moment: float, summary: Summary) -> None:
        self._writer.add_event(Event(step=step, wall_time=moment, summary=summary))


def _text(name: str, text: str) -> Summary:
    """Like TensorBoard's own `text`, which needs TensorFlow."""
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    tensor = TensorProto(dtype="DT_STRING", string_val=[text.encode(errors="replace")], tensor_shape=shape)
    return Summary(value=[Summary.Value(tag=f"{name}/text_summary", metadata=metadata, tensor=tensor)])


open_sink = TensorBoard
