"""Export a run as an archive that is readable without clusterctl.

`RunArchive` writes the archive, and `members` chooses its files.
"""

from __future__ import annotations

import csv
import io
import json
import os
import stat
import tarfile
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from clusterctl import __version__
from clusterctl.launcher.api import json_output
from clusterctl.launcher.api.fetch import is_git
from clusterctl.launcher.config.secrets import Secrets
from clusterctl.launcher.observe.comparison import variables_in
from clusterctl.launcher.observe.measurements import metric_rows
from clusterctl.launcher.observe.status import statuses_of
from clusterctl.launcher.observe.telemetry import telemetry_files
from clusterctl.launcher.observe.written import read_written
from clusterctl.shared.errors import ConfigError, UsageError, reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from clusterctl.launcher.observe.state import Status
    from clusterctl.shared.record.layout import RunDir


_SUFFIX = ".tar.gz"


def write_archive(
    run: RunDir,
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
    target = Path(f"{run.id}{_SUFFIX}") if output is None else Path(output)
    check_output(target, f"{run.id}{_SUFFIX}")
    if target.exists() and not (force and target.is_file()):
        raise UsageError(f"file exists: {target}", "replace it with `force=True`, or choose another with `output=`")
    found = statuses_of([run])
    if not found.statuses:
        raise found.problems[0]
    (status,) = found.statuses
    files = members(run, weights=weights, work=work)
    texts = {
        "README.txt": _readme(status, found.as_of),
        "status.json": json.dumps(json_output.run(status, found.as_of), indent=1) + "\n",
        "metrics.csv": _table(metric_rows(run)),
        **(pages or {}),
    }
    try:
        descriptor, aside = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                archive = RunArchive(file, run.id, found.as_of, _secrets(status).hide)
                for name, text in sorted(texts.items()):
                    archive.add_text(name, text)
                for member in files:
                    name = os.path.relpath(member.path, run.path)
                    # The weights and the program's own files are copied unchanged.
                    binary = member.path == run.weights or member.path.is_relative_to(run.work)
                    with suppress(FileNotFoundError):  # the run has not ended
                        archive.add_file(name, member, text=not binary)
                archive.close()
            Path(aside).replace(target)
        finally:
            Path(aside).unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot export {run.id} to {target}: {reason(error)}", "check free space: df -h") from error
    return target


def _table(records: Iterable[Mapping[str, Any]]) -> str:
    """One row per record and one column per name, in order of appearance."""
    rows = list(records)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _secrets(status: Status) -> Secrets:
    """The secrets in this environment, and in the job files and `.env` files of the code."""
    project = status.record.run.project
    names = (Path(folder, name) for folder, _, names in os.walk(project) for name in names)
    tables = (variables_in(path) for path in names if path.suffix == ".toml" or path.name == ".env")
    return Secrets(status.record.cluster.secrets).having(dict(os.environ), *tables)


def _readme(status: Status, now: float) -> str:
    moment = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(now))
    state = str(status.state) + ("" if status.state.ended else "; not ended, files are as of the export")
    return f"""{status.record.run.id}
exported {moment} by clusterctl {__version__}
state: {state}

report.html       curves, nodes, phases, configuration: open it in a browser
metrics.csv       logged metrics, one row per record; steps repeated after a restart count once
weights.pt        the trained weights by name: torch.load("weights.pt") (if available and requested)
run.json          job, cluster, versions, git commit, command line; secret values are replaced by ***
status.json       state, progress and newest metrics, as printed by `clusterctl status -o json`
git.patch         uncommitted changes: git apply git.patch, on the commit in run.json
script.sh         the batch script
submissions/      the same files of earlier submissions, if the run was resumed
attempts/N/       one folder for each start of the run:
  host.json         node names, start, end, exit code
  host.log          output of the batch script and srun
  logs/             output of each rank
  metrics.jsonl     logged metrics
  events/, nodes/   events of the ranks: states, exceptions, exits
  telemetry/        CPU, memory and GPUs of each node over time
The other files record how the run was submitted, cancelled, restarted and accounted. Times are in seconds since 1970.
  work/             files that the program wrote to its working directory (if requested)
Not included: checkpoints, .git folders, and the code itself.
"""


# Checks the path of an output file.


def check_output(path: Path, example: str) -> None:
    """Raise UsageError if no file can be written at `path`; `example` is a file name for the hint."""
    if not path.parent.is_dir():
        raise UsageError(f"no such folder: {path.parent}", f"mkdir -p '{path.parent}'")
    if path.is_dir():
        raise UsageError(f"is a folder: {path}", f"`output={json.dumps(str(path / example), ensure_ascii=False)}`")


# Export of a run as an archive: which files it includes, and how they are written.


_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # neither a link nor a pipe
_IN_MEMORY_BYTES = 2**24
_LONGEST_LINE_BYTES = 2**20


class ExportedFile(NamedTuple):
    """A file of the run, and its size at the time of the export."""

    path: Path
    bytes: int


def members(run: RunDir, *, weights: bool, work: bool = False) -> list[ExportedFile]:
    """The files of a run to export, sorted by path, without the targets of symbolic links.

    With `work`, also those that its program wrote to its working directory, without git repositories' own files.
    """
    inside = os.path.realpath(run.path)
    names = (file.name for file in read_written(run).files) if work else ()
    written = (run.work / name for name in names if not any(map(is_git, name.split("/"))))
    found = []
    for path in sorted({*_files(run, weights=weights), *written}):
        with suppress(OSError):
            status, folder = path.lstat(), os.path.realpath(path.parent)
            if stat.S_ISREG(status.st_mode) and f"{folder}/".startswith(f"{inside}/"):
                found.append(ExportedFile(path, status.st_size))
    return found


def _files(run: RunDir, *, weights: bool) -> Iterator[Path]:
    """The exportable files: no secrets, no checkpoints, and nothing that only running ranks need."""
    yield from (run.run_json, run.submission_json, run.script, run.git_patch)
    yield from (run.cancel_json, run.finished_json, run.requeue_json, run.successor_json, run.accounting_json)
    if weights:
        yield run.weights
    with suppress(OSError):
        yield from (path for folder in run.submissions.iterdir() for path in folder.iterdir())
    for attempt in run.attempts():
        yield from (attempt.host_json, attempt.host_log, attempt.origin_json, attempt.metrics)
        yield from (attempt.hang_json, attempt.hang_report_json)
        for files in (attempt.log_files("out"), attempt.log_files("err"), attempt.node_event_files()):
            yield from files.values()
        yield from (*attempt.event_files().values(), *telemetry_files(attempt).values())


class RunArchive:
    """Writes `folder/...` to a .tar.gz. Texts go through `hide`, which redacts secrets."""

    def __init__(self, file: IO[bytes], folder: str, time: float, hide: Callable[[str], str]) -> None:
        self._tar = tarfile.open(fileobj=file, mode="w:gz", format=tarfile.PAX_FORMAT)  # noqa: SIM115 - closed below
        self._folder, self._time, self._hide = folder, time, hide

    def close(self) -> None:
        self._tar.close()

    def add_text(self, name: str, text: str) -> None:
        content = self._hide(text).encode("utf-8", "surrogateescape")
        self._add(name, io.BytesIO(content), len(content), self._time)

    def add_file(self, name: str, member: ExportedFile, *, text: bool) -> None:
        """Add the file's content at the time of the export; only whole lines of records. Raises OSError."""
        with os.fdopen(os.open(member.path, _READ), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return
            if not text:
                self._add(name, file, min(member.bytes, status.st_size), status.st_mtime)
                return
            with tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES) as spool:
                for line in _lines(file, member.bytes):
                    if line.endswith(b"\n") or not name.endswith(".jsonl"):
                        spool.write(self._hide(line.decode(errors="surrogateescape")).encode(errors="surrogateescape"))
                size = spool.tell()
                spool.seek(0)
                self._add(name, spool, size, status.st_mtime)

    def _add(self, name: str, file: IO[bytes], size: int, time: float) -> None:
        info = tarfile.TarInfo(f"{self._folder}/{name}")  # no user, no group
        info.size, info.mtime, info.mode = size, int(time), 0o644
        self._tar.addfile(info, file)


def _lines(file: IO[bytes], most_bytes: int) -> Iterator[bytes]:
    """The lines in the first `most_bytes` of a file; very long lines are split."""
    left = most_bytes
    while left > 0 and (line := file.readline(min(left, _LONGEST_LINE_BYTES))):
        left -= len(line)
        yield line
