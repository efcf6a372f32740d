"""Export a run as an archive that is readable without clusterctl."""

from __future__ import annotations

import csv
import io
import json
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl import __version__
from clusterctl.api.output_files import check_output
from clusterctl.api.run import metric_records
from clusterctl.config.secrets import Secrets
from clusterctl.errors import ConfigError, UsageError, reason
from clusterctl.observe.comparison import variables_in
from clusterctl.observe.exported import RunArchive, members
from clusterctl.observe.status import report, run_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from clusterctl.api.run import Run
    from clusterctl.observe.stage import Status
    from clusterctl.runs.layout import RunDir

_SUFFIX = ".tar.gz"


def write_archive(
    run: Run,
    output: str | Path | None = None,
    *,
    weights: bool = True,
    work: bool = False,
    force: bool = False,
    pages: Mapping[str, str] | None = None,
) -> Path:
    """Write `output`, by default RUN.tar.gz in the current folder, and return its path.

    It contains the run's record, metrics (also as CSV), logs, uncommitted changes and, unless `weights` is False, the
    trained weights; `work` adds files that the program wrote to its working directory, `pages` adds texts by name, such
    as a report. A run that has not ended is exported in its current state. Raises UsageError if `output` exists, unless
    `force`, and ConfigError.
    """
    directory = run.directory
    target = _target(directory, output, force=force)
    found = report([directory])
    if not found.statuses:
        raise found.problems[0]
    (status,) = found.statuses
    files = members(directory, weights=weights, work=work)
    records = metric_records(directory)
    texts = {
        "README.txt": _readme(status, found.as_of),
        "status.json": json.dumps(run_record(status, found.as_of), indent=1) + "\n",
        "metrics.csv": _table(records),
        **(pages or {}),
    }
    try:
        descriptor, aside = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                archive = RunArchive(file, directory.id, found.as_of, _secrets(status).hide)
                for name, text in sorted(texts.items()):
                    archive.add_text(name, text)
                for member in files:
                    name = os.path.relpath(member.path, directory.path)
                    with suppress(FileNotFoundError):  # the run has not ended
                        archive.add_file(name, member, text=not _is_binary(directory, member.path))
                archive.close()
            Path(aside).replace(target)
        finally:
            Path(aside).unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot export {directory.id} to {target}: {reason(error)}", "check free space: df -h"
        ) from error
    return target


def _is_binary(run: RunDir, path: Path) -> bool:
    """Whether to copy the file unchanged: the weights, and the program's own files."""
    return path == run.weights or path.is_relative_to(run.work)


def _target(run: RunDir, output: str | Path | None, *, force: bool) -> Path:
    path = Path(f"{run.id}{_SUFFIX}") if output is None else Path(output)
    check_output(path, f"{run.id}{_SUFFIX}")
    if path.exists() and not (force and path.is_file()):
        raise UsageError(f"file exists: {path}", "replace it with --force, or choose another with --output")
    return path


def _secrets(status: Status) -> Secrets:
    """The secrets in this environment, and in the job files and `.env` files of the code."""
    project = status.record.run.project
    names = (Path(folder, name) for folder, _, names in os.walk(project) for name in names)
    tables = (variables_in(path) for path in names if path.suffix == ".toml" or path.name == ".env")
    return Secrets(status.record.cluster.secrets).having(dict(os.environ), *tables)


def _table(records: Iterable[Mapping[str, Any]]) -> str:
    """One row per record and one column per name, in order of appearance."""
    rows = list(records)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _readme(status: Status, now: float) -> str:
    moment = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(now))
    state = str(status.stage) + ("" if status.stage.ended else "; not ended, files are as of the export")
    return f"""{status.record.run.id}
exported {moment} by clusterctl {__version__}
stage: {state}

report.html       curves, nodes, phases, configuration: open it in a browser
metrics.csv       logged metrics, one row per record; steps repeated after a restart count once
weights.pt        the trained weights by name: torch.load("weights.pt") (if available and requested)
run.json          job, cluster, versions, git commit, command line; secret values are replaced by ***
status.json       stage, progress and newest metrics, as printed by `clusterctl status -o json`
git.patch         uncommitted changes: git apply git.patch, on the commit in run.json
script.sh         the batch script
submissions/      the same files of earlier submissions, if the run was resumed
attempts/N/       one folder for each start of the run:
  host.json         node names, start, end, exit code
  host.log          output of the batch script and srun
  logs/             output of each rank
  metrics.jsonl     logged metrics
  events/, nodes/   events of the ranks: stages, exceptions, exits
  telemetry/        CPU, memory and GPUs of each node over time
The other files record how the run was submitted, cancelled, restarted and accounted. Times are in seconds since 1970.
  work/             files that the program wrote to its working directory (if requested)
Not included: checkpoints, .git folders, and the code itself.
"""
