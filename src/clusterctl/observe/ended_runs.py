"""What the files of ended runs said, kept so that ten thousand of them need not be read again for one `status`.

The directories decide. What is kept of a run counts while its directory and its folder of attempts are the very same
ones, unchanged: a resume writes into the former, Slurm's restart into the latter, and a removed run is not listed.
A file that is lost, damaged or of another version is written anew.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterctl import __version__
from clusterctl.errors import ConfigError
from clusterctl.observe.attempt import AttemptEvidence, RunEvidence, read_evidence
from clusterctl.observe.course import Course
from clusterctl.observe.deaths import Death
from clusterctl.observe.run_record import RunRecord, read_record, read_spec
from clusterctl.observe.stage import settled
from clusterctl.runs.kept import read_kept, write_kept
from clusterctl.runs.requests import Refusal
from clusterctl.runs.stages import Stage
from clusterctl.runs.vocabulary import metric_of
from clusterctl.spec import Cluster, Job, to_record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from clusterctl.runs.layout import RunDir

QUIET_SECONDS = 60.0  # what other nodes wrote may arrive so late; and two changes may fall into one tick of a clock
# Another version keeps other fields, or means something else by them.
_FORM = [__version__, *([f.name for f in fields(kept)] for kept in (RunRecord, RunEvidence, AttemptEvidence, Course))]

Stamp = tuple[int, ...]


def stamp(run: RunDir) -> Stamp:
    """Which directory and folder of attempts these are, and when they last changed; empty if one of them is missing."""
    try:
        found = (os.stat(run.path), os.stat(f"{run.path}/attempts"))  # noqa: PTH116 - ten thousand in a row
    except OSError:
        return ()
    return tuple(number for one in found for number in (one.st_ino, one.st_mtime_ns, one.st_ctime_ns))


class _KeptRun(NamedTuple):
    """One run in the file."""

    stamp: list[int]
    stage: str
    evidence: dict[str, Any]


@dataclass
class EndedRuns:
    """The ended runs that `file` knows (None: nothing is kept beyond this process). A clock in epoch seconds."""

    file: Path | None = None
    clock: Callable[[], float] = time.time
    _read: dict[RunDir, tuple[Stamp, RunEvidence]] = field(default_factory=dict, init=False)  # by this process
    _kept: dict[str, _KeptRun] | None = field(default=None, init=False)  # by id
    _specs: list[str] = field(default_factory=list, init=False)  # jobs and clusters, as JSON: many runs have the same
    _places: dict[str, int] = field(default_factory=dict, init=False)
    _changed: bool = field(default=False, init=False)

    def evidence(self, run: RunDir) -> RunEvidence:
        """What the files of `run` say now. Raises what `read_record` raises."""
        found = stamp(run)
        if known := self._known(run, found):
            return known
        evidence = read_evidence(read_record(run))
        if self._is_over(evidence, found):
            self._read[run] = found, evidence
            self._keep(run, found, evidence)
        return evidence

    def stage(self, run: RunDir) -> Stage | None:
        """How `run` ended; None where it has to be read."""
        kept = self._load().get(run.id)
        return Stage(kept.stage) if kept and kept.stamp == [*stamp(run)] else None

    def save(self) -> None:
        """Write down what was read since, without the runs that are gone. Of two processes the later one wins."""
        if self.file is None or not self._changed:
            return
        folder = next(iter(self._read)).path.parent
        present = set(os.listdir(folder))  # noqa: PTH208 - names alone
        kept = {name: one for name, one in self._load().items() if name in present}
        write_kept(self.file, _FORM, [kept, self._specs])
        self._changed = False

    def _known(self, run: RunDir, found: Stamp) -> RunEvidence | None:
        if run in self._read and self._read[run][0] == found:
            return self._read[run][1]
        kept = self._load().get(run.id)
        if not kept or not found or kept.stamp != [*found]:
            return None
        with suppress(ConfigError, ValueError):  # written by a checkout of the same version
            self._read[run] = found, _unpacked(run, kept.evidence, self._specs)
            return self._read[run][1]
        return None

    def _is_over(self, evidence: RunEvidence, found: Stamp) -> bool:
        """Whether nobody writes to the run any more, as far as its files can tell."""
        last = evidence.last
        if not found or not last or last.exit_code is None or not settled(evidence) or not evidence.record.is_ours:
            return False
        changed = max(*(number / 1e9 for place, number in enumerate(found) if place % 3), last.end or 0.0)
        return changed < self.clock() - QUIET_SECONDS

    def _keep(self, run: RunDir, found: Stamp, evidence: RunEvidence) -> None:
        if self.file is not None and (stage := settled(evidence)):
            self._load()[run.id] = _KeptRun([*found], stage.value, _packed(evidence, self._place))
            self._changed = True

    def _place(self, spec: Job | Cluster) -> int:
        text = json.dumps(to_record(spec))
        if text not in self._places:
            self._places[text] = len(self._specs)
            self._specs.append(text)
        return self._places[text]

    def _load(self) -> dict[str, _KeptRun]:
        if self._kept is None:
            kept, self._specs = (self.file and read_kept(self.file, _FORM)) or ({}, [])
            self._kept = {name: _KeptRun(*one) for name, one in kept.items()}
            self._places = {text: place for place, text in enumerate(self._specs)}
        return self._kept


def _packed(evidence: RunEvidence, place: Callable[[Job | Cluster], int]) -> dict[str, Any]:
    """`evidence` as JSON types, without the run itself and what Slurm said."""
    record = {**vars(evidence.record), "past_jobs": sorted(evidence.record.past_jobs)}
    del record["run"]
    record |= {"job": place(evidence.record.job), "cluster": place(evidence.record.cluster)}
    attempts = [{name: _plain(value) for name, value in vars(attempt).items()} for attempt in evidence.attempts]
    packed = {**vars(evidence), "record": record, "attempts": attempts}
    del packed["answer"]
    return packed


def _plain(value: object) -> object:
    if isinstance(value, Course):
        return {**vars(value), "score": value.score and (value.score[0].name, value.score[1])}
    return vars(value) if isinstance(value, Death) else value


def _unpacked(run: RunDir, packed: Mapping[str, Any], specs: list[str]) -> RunEvidence:
    record = dict(packed["record"])
    record["job"], record["cluster"] = (
        read_spec(Job, specs[record["job"]]),
        read_spec(Cluster, specs[record["cluster"]]),
    )
    record |= {"argv": tuple(record["argv"]), "past_jobs": frozenset(record["past_jobs"])}
    attempts = tuple(map(_unpacked_attempt, packed["attempts"]))
    return RunEvidence(**{**packed, "record": RunRecord(run, **record), "attempts": attempts})


def _unpacked_attempt(packed: Mapping[str, Any]) -> AttemptEvidence:
    values = dict(packed)
    for name, kind in (("refused", Refusal), ("stage", Stage)):
        values[name] = values[name] and kind(values[name])
    values["death"] = values["death"] and Death(**values["death"])
    if course := values["course"]:
        score = course["score"] and (metric_of(course["score"][0]), course["score"][1])
        ends = {"first": tuple(course["first"]), "newest": tuple(course["newest"])}
        values["course"] = Course(**{**course, **ends, "score": score})
    return AttemptEvidence(**values)
