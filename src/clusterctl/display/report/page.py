"""A report on one run: the evidence at one moment, and its page."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clusterctl.diagnosis.diagnose import diagnose_status
from clusterctl.diagnosis.efficiency import advise, use_of
from clusterctl.display.explanation import explanation
from clusterctl.display.report import origins, sections
from clusterctl.display.report.document import document
from clusterctl.display.report.markup import tag
from clusterctl.observe.history import History
from clusterctl.observe.overview import happenings
from clusterctl.observe.status import report
from clusterctl.observe.written import Written, read_written
from clusterctl.runs.files import read_json
from clusterctl.slurm import Slurm

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from clusterctl.diagnosis.efficiency import Advice, Use
    from clusterctl.errors import ConfigError, SlurmError
    from clusterctl.observe.stage import Status
    from clusterctl.observe.timeline import Happening
    from clusterctl.runs.layout import RunDir
    from clusterctl.spec import Cluster


@dataclass(frozen=True)
class PostMortem:
    """Everything that the report on one run shows. `folder` will contain the report: links are relative to it."""

    as_of: float
    status: Status
    history: History
    happenings: tuple[Happening, ...]
    use: Use
    advice: tuple[Advice, ...]
    record: dict[str, Any]  # the content of run.json: versions, git, origins
    folder: Path
    findings: tuple[str, ...] = ()  # the lines of `why`
    problems: tuple[ConfigError | SlurmError, ...] = ()
    written: Written = field(default_factory=Written)  # the program's files in its working directory


def examine(
    run: RunDir,
    folder: Path,
    slurm_of: Callable[[Cluster], Slurm] = Slurm.of,
    clock: Callable[[], float] = time.time,
) -> PostMortem:
    """Examine `run` for a report in `folder`. Raises ConfigError if the run's record cannot be read."""
    found = report([run], slurm_of, clock)
    if not found.statuses:
        raise found.problems[0]
    (status,) = found.statuses
    history = History(run, all_ranks=False)
    history.update(status.attempts)
    diagnosis = diagnose_status(status, slurm_of, clock, seen=history.take_events)  # read the events only once
    use = use_of(status, history, found.as_of)
    return PostMortem(
        as_of=found.as_of,
        status=status,
        history=history,
        happenings=tuple(happenings(status, history)),
        use=use,
        advice=tuple(advise(use)),
        record=read_json(run.run_json),
        folder=folder,
        findings=tuple(explanation(diagnosis)),
        problems=found.problems,
        written=read_written(run),
    )


def page(examined: PostMortem) -> str:
    """The whole HTML file."""
    run = examined.status.record.run.id
    return document(
        f"{run} - {examined.status.stage}",
        tag("header", tag("h1", run)),
        tag(
            "main",
            sections.summary(examined),
            sections.curves(examined),
            sections.advice(examined),
            sections.phases(examined),
            sections.machines(examined),
            origins.environment(examined),
            origins.configuration(examined),
            origins.logs(examined),
            origins.files(examined),
        ),
    )
