"""The interface of a tracker, and its loading."""

from __future__ import annotations

import importlib
import socket
import sys
from typing import TYPE_CHECKING, Protocol

from clusterctl.config.delivery import delivered
from clusterctl.errors import ConfigError
from clusterctl.spec import to_record
from clusterctl.spec.keys import leaves_as_written

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.observe.run_record import RunRecord
    from clusterctl.runs.stages import Stage
    from clusterctl.trackers.points import Bookmark, TrackedPoint


class Sink(Protocol):
    """One run in one tracker, which stays the same when reopened."""

    def add(self, points: Sequence[TrackedPoint]) -> None:
        """Add points; when this returns, the tracker has them."""

    def finish(self, stage: Stage) -> None:
        """Record how the run ended, and close."""

    def close(self) -> None:
        """Close for now: the run may continue and be reopened."""


def open_sink(name: str, record: RunRecord, bookmark: Bookmark) -> Sink:
    """Open the run of `record` in the tracker `name`. Raises ConfigError if its library is missing."""
    try:
        module = importlib.import_module(f"clusterctl.trackers.to_{name}")
        sink: Sink = module.open_sink(record, bookmark)
    except ModuleNotFoundError as error:
        missing = f"{name} is not installed"
        if delivered():  # clusterctl alone was uploaded, for the login node's Python
            hint = "copy from the node, whose Python may have it: --set track.where=node"
            raise ConfigError(f"{missing} for {sys.executable} on {socket.gethostname()}", hint) from error
        raise ConfigError(f"{missing} here: no module {error.name}", f"pip install 'clusterctl[{name}]'") from error
    return sink


def parameters(record: RunRecord) -> dict[str, str]:
    """The job's settings by key, from its record, where secrets are redacted."""
    leaves = leaves_as_written(to_record(record.job))
    return {".".join(key): str(value) for key, value in leaves if value not in (None, [], {})}
