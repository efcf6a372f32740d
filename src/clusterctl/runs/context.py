"""The single argument of a workload's `main`."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from clusterctl.runs.events import Events
from clusterctl.runs.place import Place
from clusterctl.runs.signals import StopRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.runs.layout import Attempt
    from clusterctl.spec import Job, Train

T = TypeVar("T", bound="Train")


@dataclass(frozen=True)
class Context:
    """One rank before it has connected to the others; `record` is its job from run.json.

    Without an attempt (under torchrun, in tests) nothing is recorded.
    """

    record: Mapping[str, Any]
    place: Place = field(default_factory=Place.from_environment)
    attempt: Attempt | None = None
    events: Events = field(default_factory=lambda: Events(None, 0))
    stop: StopRequest = field(default_factory=StopRequest)

    @cached_property
    def job(self) -> Job:
        """The validated job. Raises InvalidRecord."""
        # late: not needed by workload "command" (docs/decisions/programs-and-their-environment.md)
        from clusterctl.spec import Job, from_record

        return from_record(Job, dict(self.record))

    def train(self, kind: type[T]) -> T:
        """The job's `[train]` table as `kind`, the class that this workload is registered with."""
        assert isinstance(self.job.train, kind), f"{self.job.workload} is registered with another class"
        return self.job.train
