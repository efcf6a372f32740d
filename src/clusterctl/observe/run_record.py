"""run.json, parsed: what was submitted, where to, and when."""

from __future__ import annotations

import functools
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from clusterctl.errors import ConfigError
from clusterctl.runs.files import read_json
from clusterctl.spec import Cluster, Job, from_record

if TYPE_CHECKING:
    from clusterctl.runs.layout import RunDir

T = TypeVar("T", Job, Cluster)


@dataclass(frozen=True)
class Record:
    """A run as it was submitted."""

    run: RunDir
    created: float
    job: Job
    cluster: Cluster
    allocation: str | None = None  # the Slurm job that a warm run is a step of
    resumed: float | None = None  # when it was last submitted anew
    past_attempts: int = 0  # those before that
    past_jobs: frozenset[str] = frozenset()

    @property
    def submitted(self) -> float:
        """When the present job was submitted."""
        return self.created if self.resumed is None else self.resumed

    @property
    def controller(self) -> tuple[str, str | None]:
        """Who knows the run's job: runs that share it are asked about with one question."""
        return self.cluster.controller

    @property
    def tasks_per_node(self) -> int:
        return self.job.resources.tasks_per_node or 1


def read_record(run: RunDir) -> Record:
    """The record of `run`; raises ConfigError where run.json is missing, torn, or of another version."""
    try:
        content = read_json(run.run_json)
        if content is None:
            raise ConfigError("missing")
        return _parse(run, content)
    except (OSError, ValueError, RecursionError, KeyError, TypeError, ConfigError) as error:
        what = error.message if isinstance(error, ConfigError) else _shown(error)
        raise ConfigError(f"cannot read {run.run_json}: {what}", "was it written by another version?") from error


def _parse(run: RunDir, content: dict[str, Any]) -> Record:
    job, cluster = _read(Job, json.dumps(content["job"])), _read(Cluster, json.dumps(content["cluster"]))
    created = float(content["created"])
    if not math.isfinite(created):
        raise ValueError(f"created: {created}")
    allocation = content.get("allocation")
    if allocation is not None and not (isinstance(allocation, str) and allocation.isascii() and allocation.isdigit()):
        raise ValueError(f"allocation: {allocation}")
    resumes = content.get("resumes") or []
    if not resumes:
        return Record(run, created, job, cluster, allocation)
    return Record(
        *(run, created, job, cluster, allocation),
        resumed=float(resumes[-1]["time"]),
        past_attempts=int(resumes[-1]["attempts"]),
        past_jobs=frozenset(str(one["job_id"]) for one in resumes if one["job_id"]),
    )


@functools.lru_cache(maxsize=1000)
def _read(cls: type[T], text: str) -> T:
    """Many runs are of the same job on the same cluster: each is checked once."""
    return from_record(cls, json.loads(text))


def _shown(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"no {error}"
    return "not JSON" if isinstance(error, json.JSONDecodeError) else str(error)
