"""MLflow: one run in an experiment named after the job, found by its tag."""

from __future__ import annotations

import os
import re
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from clusterctl.launcher.trackers.mirror import parameters
from clusterctl.shared.record.states import State

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from clusterctl.launcher.observe.run_record import RunRecord
    from clusterctl.launcher.trackers.mirror import Bookmark, TrackedPoint

_TAG = "clusterctl.run"
_MOST = 1000  # metrics per request, MLflow's limit
_LONGEST = 500  # characters per parameter; later versions allow more
_NOT_IN_NAMES = re.compile(r"[^\w\-. :/]")
_KILLED = (State.CANCELLED, State.PREEMPTED, State.LOST)
_IMPATIENT = {  # unless the user has set them
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",  # seconds
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


@contextmanager
def _impatient() -> Iterator[None]:
    """Shorten MLflow's retries, by default four minutes: the mirror retries later, and has other trackers to serve."""
    added = _IMPATIENT.keys() - os.environ.keys()
    os.environ.update({name: _IMPATIENT[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


class Mlflow:
    """One run of MLflow."""

    @_impatient()
    def __init__(self, record: RunRecord, _: Bookmark) -> None:
        self._client = MlflowClient(tracking_uri=record.job.track.mlflow)
        experiment = self._experiment(record.job.name)
        known = self._client.search_runs([experiment], f"tags.`{_TAG}` = '{record.run.id}'", max_results=1)
        if known:
            self._run = known[0].info.run_id
            self._client.update_run(self._run, "RUNNING")
            return
        start = int(record.created * 1000)
        made = self._client.create_run(experiment, start, {_TAG: record.run.id}, run_name=record.run.id)
        self._run = made.info.run_id
        settings = [Param(_name(key), value[:_LONGEST]) for key, value in parameters(record).items()]
        for first in range(0, len(settings), 100):  # MLflow's limit
            self._client.log_batch(self._run, params=settings[first : first + 100])

    @_impatient()
    def add(self, points: Sequence[TrackedPoint]) -> None:
        """Add points. MLflow's store drops identical ones sent again after a mirror died."""
        metrics = [
            Metric(_name(name), float(value), int(point.time * 1000), point.step)
            for point in points
            for name, value in point.values.items()
        ]
        for first in range(0, len(metrics), _MOST):
            self._client.log_batch(self._run, metrics=metrics[first : first + _MOST])

    @_impatient()
    def finish(self, state: State) -> None:
        self._client.set_tag(self._run, "clusterctl.state", state.value)
        ended = "FINISHED" if state is State.FINISHED else "KILLED" if state in _KILLED else "FAILED"
        self._client.set_terminated(self._run, ended, int(time.time() * 1000))

    def close(self) -> None:
        pass

    def _experiment(self, name: str) -> str:
        if (found := self._client.get_experiment_by_name(name)) is not None:
            return str(found.experiment_id)
        try:
            return str(self._client.create_experiment(name))
        except MlflowException:  # another run was faster
            if (found := self._client.get_experiment_by_name(name)) is None:
                raise
            return str(found.experiment_id)


def _name(name: str) -> str:
    return _NOT_IN_NAMES.sub("_", name)


open_sink = Mlflow
