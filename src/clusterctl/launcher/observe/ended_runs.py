"""A cache of ended runs, so that `status` does not read ten thousand run directories.

The directories are authoritative. A cached run is valid while its directory and its folder of attempts are unchanged: a
resume writes to the former, a restart by Slurm to the latter, and a removed run is not listed. A cache file that is
missing, damaged or from another version is rebuilt.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from clusterctl import __version__
from clusterctl.launcher.config import cache_folder
from clusterctl.launcher.observe.attempt import (
    AttemptEvidence,
    Grown,
    Kills,
    LeftOut,
    LossTrend,
    Mean,
    NodeSetupFlaw,
    RunEvidence,
    SetupFlaw,
    read_evidence,
)
from clusterctl.launcher.observe.rank_events import Death
from clusterctl.launcher.observe.run_record import Condition, Predecessor, RunRecord, read_record, read_spec
from clusterctl.launcher.observe.slurm_log import EndedBy
from clusterctl.launcher.observe.state import settled
from clusterctl.launcher.observe.telemetry import Used
from clusterctl.launcher.slurm.queue import JobState
from clusterctl.shared.errors import ConfigError
from clusterctl.shared.record.files import names_in, with_retries
from clusterctl.shared.record.marks import Refusal
from clusterctl.shared.record.metrics import Metric, metric_of
from clusterctl.shared.record.ownership import CacheContent, read_cache, write_cache
from clusterctl.shared.record.states import State
from clusterctl.shared.spec import Cluster, Job, to_record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from clusterctl.shared.record.layout import RunDir

QUIET_SECONDS = 60.0  # other nodes' files may arrive this late, and two changes may share a timestamp

_LEFT_OUT = frozenset({"run", "job", "cluster", "answer"})

Stamp = tuple[int, ...]
T = TypeVar("T")


def stamp(run: RunDir) -> Stamp:
    """Identity and last change of the run directory and its folder of attempts; empty if either is missing."""
    return _stamp(os.fspath(run.path))


def _stamp(run: str) -> Stamp:
    try:
        own, attempts = with_retries(lambda: (os.stat(run), os.stat(f"{run}/attempts")))  # noqa: PTH116 - ten thousand
    except OSError:
        return ()
    return (
        *(own.st_ino, own.st_mtime_ns, own.st_ctime_ns),
        *(attempts.st_ino, attempts.st_mtime_ns, attempts.st_ctime_ns),
    )


class Row(NamedTuple):
    """A run in a table: the text of each non-empty column, except for the age, which changes with the clock."""

    run: str  # its id
    state: State
    created: float
    cells: Mapping[str, str]

    @property
    def tags(self) -> list[str]:
        return self.cells.get("TAGS", "").split(",")


class _CachedRun(NamedTuple):
    """One run in the cache file."""

    stamp: list[int]
    state: str
    created: float
    cells: dict[str, str] | None  # of its row, once it was rendered
    specs: list[str]  # the keys of its job and cluster
    evidence: str  # JSON, parsed if more than the row is needed


# Other versions have other fields, or give them other meanings.
_PACKED = (RunRecord, RunEvidence, AttemptEvidence, Death, LossTrend, Used)
_FORM = [__version__, [*_CachedRun._fields], *([each.name for each in fields(kept)] for kept in _PACKED)]


@dataclass
class EndedRuns:
    """The ended runs cached in `file` (None: only in this process). `clock` returns epoch seconds."""

    file: Path | None = None
    clock: Callable[[], float] = time.time
    _read: dict[RunDir, tuple[Stamp, RunEvidence]] = field(default_factory=dict, init=False)  # by this process
    _kept: dict[str, _CachedRun] | None = field(default=None, init=False)  # by id
    _specs: dict[str, str] = field(default_factory=dict, init=False)  # jobs and clusters, shared by many runs
    _changed: bool = field(default=False, init=False)

    def evidence(self, run: RunDir) -> RunEvidence:
        """The current evidence in the files of `run`. Raises what `read_record` raises."""
        found = stamp(run)
        if known := self._known(run, found):
            return known
        evidence = read_evidence(read_record(run))
        if self._is_over(evidence, found):
            self._read[run] = found, evidence
            if self.file is not None and (state := settled(evidence)):
                specs = [self._key(evidence.record.job), self._key(evidence.record.cluster)]
                packed = json.dumps(evidence, default=_plain)
                self._load()[run.id] = _CachedRun([*found], state.value, evidence.record.created, None, specs, packed)
                self._changed = True
        return evidence

    def state(self, run: RunDir) -> State | None:
        """How `run` ended; None if its files must be read."""
        kept = self._load().get(run.id)
        return State(kept.state) if kept and kept.stamp == [*stamp(run)] else None

    def row(self, folder: str, run: str) -> Row | None:
        """The cached row of the run with that id; None if it must be rendered."""
        kept = self._load().get(run)
        if not kept or kept.cells is None or kept.stamp != [*_stamp(f"{folder}/{run}")]:
            return None
        return Row(run, State(kept.state), kept.created, kept.cells)

    def keep_row(self, run: RunDir, row: Row) -> None:
        """Cache the row of `run` if its evidence is cached."""
        if run in self._read and (kept := self._load().get(run.id)):
            self._load()[run.id] = kept._replace(cells=dict(row.cells))
            self._changed = True

    def save(self) -> None:
        """Write the cache, without removed runs. If two processes write, the later one wins."""
        if self.file is None or not self._changed:
            return
        folder = next(iter(self._read)).path.parent
        with suppress(OSError):  # the folder was just removed
            present = set(names_in(folder))
            kept = {name: one for name, one in self._load().items() if name in present}
            used = sorted({key for one in kept.values() for key in one.specs})
            runs = {name: one[:-1] for name, one in kept.items()}
            lines = [*(one.evidence for one in kept.values()), *map(self._specs.__getitem__, used)]
            write_cache(self.file, _FORM, [runs, used], lines)
            self._changed = False

    def _known(self, run: RunDir, found: Stamp) -> RunEvidence | None:
        if run in self._read and self._read[run][0] == found:
            return self._read[run][1]
        kept = self._load().get(run.id)
        if not kept or not found or kept.stamp != [*found]:
            return None
        with suppress(ConfigError, ValueError):  # written by a checkout of the same version
            packed, (job, cluster) = json.loads(kept.evidence), map(self._specs.__getitem__, kept.specs)
            specs = {"job": read_spec(Job, job), "cluster": read_spec(Cluster, cluster)}
            record = _made(RunRecord, {**packed["record"], "run": run, **specs})
            attempts = tuple(_made(AttemptEvidence, values) for values in packed["attempts"])
            evidence = RunEvidence(**{**packed, "record": record, "attempts": attempts})
            self._read[run] = found, evidence
            return evidence
        return None

    def _is_over(self, evidence: RunEvidence, found: Stamp) -> bool:
        """Whether nothing writes to the run any more, as far as its files show."""
        last = evidence.last
        if not found or not last or last.exit_code is None or last.end is None:
            return False
        if not settled(evidence) or not evidence.record.is_ours:
            return False
        changed = max(*(number / 1e9 for place, number in enumerate(found) if place % 3), last.end)  # without inodes
        return changed < self.clock() - QUIET_SECONDS

    def _key(self, spec: Job | Cluster) -> str:
        text = json.dumps(to_record(spec))
        key = hashlib.sha256(text.encode()).hexdigest()[:16]
        self._specs[key] = text
        return key

    def _load(self) -> dict[str, _CachedRun]:
        if self._kept is None:
            kept = read_cache(self.file, _FORM) if self.file else None
            (runs, used), lines = kept or CacheContent(({}, []), [])  # a line for each run, then one for each spec
            self._kept = {
                name: _CachedRun._make([*one, line]) for (name, one), line in zip(runs.items(), lines, strict=False)
            }
            self._specs = dict(zip(used, lines[len(runs) :], strict=True))
        return self._kept


def _plain(value: Any) -> object:
    """What JSON has no type for: of a dataclass, the fields that differ from their defaults.

    The run, its job and cluster are stored elsewhere; Slurm's answer is not needed after the end.
    """
    if isinstance(value, Metric):
        return value.name
    if isinstance(value, frozenset):
        return sorted(value)
    values = ((one, getattr(value, one.name)) for one in fields(value))
    return {one.name: found for one, found in values if one.name not in _LEFT_OUT and found != one.default}


def _made(cls: type[T], packed: dict[str, Any]) -> T:
    kinds = _KINDS[cls]
    return cls(**{name: kinds[name](value) if name in kinds else value for name, value in packed.items()})


def _rows_of(kind: Callable[..., object]) -> Callable[[Any], object]:
    return lambda packed: tuple(kind(*row) for row in packed)


# The fields that JSON has no type for.
_KINDS: dict[type, dict[str, Callable[[Any], object]]] = {
    RunRecord: {
        "argv": tuple,
        "past_jobs": frozenset,
        "predecessors": lambda packed: tuple(Predecessor(run, Condition(condition)) for run, condition in packed),
        "skipped": tuple,
    },
    AttemptEvidence: {
        "refused": Refusal,
        "setup": _rows_of(SetupFlaw),
        "node_setup": _rows_of(NodeSetupFlaw),
        "left_out": _rows_of(LeftOut),
        "excluded": _rows_of(LeftOut),
        "lost": tuple,
        "ended_by": EndedBy,
        "job_state": JobState,
        "state": State,
        "death": lambda packed: _made(Death, packed),
        "loss_trend": lambda packed: _made(LossTrend, packed),
        "used": lambda packed: _made(Used, packed),
        "grown": lambda packed: Grown(*packed),
        "kills": lambda packed: Kills(*packed),
    },
    Death: {},
    Used: {},
    LossTrend: {
        "first": lambda packed: Mean(*packed),
        "newest": lambda packed: Mean(*packed),
        "score": lambda packed: (metric_of(packed[0]), packed[1]),
    },
}


def ended_runs(folder: Path) -> EndedRuns:
    """The cache for `folder`: one file per user, since users may see different things in Slurm."""
    kept = f"{hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]}.kept"
    return EndedRuns(cache_folder() / "runs" / kept)
