"""Write the archive of a run, to be kept or sent: readable without clusterctl."""

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

    It holds the record of the run, its metrics (also as CSV), logs, uncommitted changes and, unless `weights` is False,
    the trained weights; `work` adds what its program wrote into its working directory, `pages` further texts by their
    names, such as a report. A run that goes on is exported as it is now. Raises UsageError where `output` exists,
    unless `force`, and ConfigError.
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
                    with suppress(FileNotFoundError):  # a run that goes on
                        archive.add_file(name, member, text=not _is_binary(directory, member.path))
                archive.close()
            Path(aside).replace(target)
        finally:
            Path(aside).unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot export {directory.id} to {target}: {reason(error)}", "is there room? df -h"
        ) from error
    return target


def _is_binary(run: RunDir, path: Path) -> bool:
    """Whether the file is copied unchanged: the weights, and the program's own files."""
    return path == run.weights or path.is_relative_to(run.work)


def _target(run: RunDir, output: str | Path | None, *, force: bool) -> Path:
    path = Path(f"{run.id}{_SUFFIX}") if output is None else Path(output)
    check_output(path, f"{run.id}{_SUFFIX}")
    if path.exists() and not (force and path.is_file()):
        raise UsageError(f"there is a file already: {path}", "--force replaces it; --output names another one")
    return path


def _secrets(status: Status) -> Secrets:
    """Those of this environment, and of the job files and `.env` files in the code."""
    project = status.record.run.project
    names = (Path(folder, name) for folder, _, names in os.walk(project) for name in names)
    tables = (variables_in(path) for path in names if path.suffix == ".toml" or path.name == ".env")
    return Secrets(status.record.cluster.secrets).having(dict(os.environ), *tables)


def _table(records: Iterable[Mapping[str, Any]]) -> str:
    """One row a record; a column for each name, in the order in which they appear."""
    rows = list(records)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _readme(status: Status, now: float) -> str:
    moment = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(now))
    state = str(status.stage) + ("" if status.stage.ended else "; it had not ended: each file is as it was then")
    return f"""{status.record.run.id}
exported {moment} by clusterctl {__version__}
stage: {state}

report.html       curves, nodes, phases, configuration: open it in a browser
metrics.csv       what the training logged, one row a record; steps that a restart did again count once
weights.pt        the trained weights by name: torch.load("weights.pt") (if there are any, and they were wanted)
run.json          job, cluster, versions, git commit, command line; values that are secret by name read ***
status.json       stage, progress and newest metrics, as `clusterctl status -o json` prints them
git.patch         what was not committed: git apply git.patch, on the commit in run.json
script.sh         the batch script
submissions/      the same of earlier submissions, if the run was resumed
attempts/N/       one folder for each time that the run was started:
  host.json         node names, start, end, exit code
  host.log          what the batch script and srun printed
  logs/             what each rank printed
  metrics.jsonl     what the training logged
  events/, nodes/   what happened to the ranks: stages, exceptions, exits
  telemetry/        CPU, memory and GPUs of each node over the time
The other files say how the run was submitted, cancelled, restarted and accounted. Times are in seconds since 1970.
  work/             what the program wrote into its working directory (if that was wanted)
Not in here: checkpoints, and the code itself.
"""
