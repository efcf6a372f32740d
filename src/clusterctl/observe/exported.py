"""Export of a run as an archive: which files it includes, and how they are written."""

from __future__ import annotations

import io
import os
import stat
import tarfile
import tempfile
from contextlib import suppress
from typing import IO, TYPE_CHECKING, NamedTuple

from clusterctl.observe.telemetry import telemetry_files
from clusterctl.observe.written import read_written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from clusterctl.runs.layout import RunDir

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


def is_git(name: str) -> bool:
    """Whether a folder or file of this name makes git read a configuration, which can run programs."""
    return name.casefold() == ".git"


def _files(run: RunDir, *, weights: bool) -> Iterator[Path]:
    """The exportable files: no secrets, no checkpoints, and nothing that only running ranks need."""
    yield from (run.run_json, run.submission_json, run.script, run.git_patch)
    yield from (run.cancel_json, run.finished_json, run.requeue_json, run.accounting_json)
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
