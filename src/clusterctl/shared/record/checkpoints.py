"""Checkpoints as folders: names, manifests, lineage.

`checkpoints/<attempt>-<step>/` appears in one rename, with a manifest.json that lists the size and digest of every
other file. An attempt reads only checkpoints of its own lineage: those of its ancestors, each up to the step at which
the next one took over. Checkpoints that a presumed-dead attempt still writes are not part of it. `SuccessorWatch`
detects such a newer attempt: one stat(2) per check, and a listing when the folder has changed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterctl.shared.record.fields import read_fields
from clusterctl.shared.record.files import (
    exists,
    is_listed,
    lateness,
    names_in,
    open_regular,
    read_json,
    rename,
    with_retries,
    write_json,
)
from clusterctl.shared.record.layout import Attempt, RunDir, attempt_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path


MANIFEST = "manifest.json"
SCHEMA_VERSION = 2
_NAME = re.compile(r"\.?([0-9]{1,9})-([0-9]{1,18})", re.ASCII)


class Name(NamedTuple):
    """The attempt and step of a checkpoint."""

    attempt: int
    step: int

    def __str__(self) -> str:
        return f"{self.attempt}-{self.step}"


class Superseded(OSError):
    """A newer attempt of the run has started: this one must not write results any more."""


def parse_name(text: str) -> Name | None:
    """Parse the name of a checkpoint's folder, with a leading dot while it is being written."""
    match = _NAME.fullmatch(text)
    return Name(int(match[1]), int(match[2])) if match else None


def later_folders(attempt: Attempt) -> list[Attempt]:
    """The folders with higher numbers than `attempt`, the highest first. Lists them for the reason in `is_listed`."""
    numbers = map(attempt_number, names_in(attempt.path.parent))
    later = sorted((number for number in numbers if number is not None and number > attempt.number), reverse=True)
    return [RunDir(attempt.path.parents[1]).attempt(number) for number in later]


def newest_begun(folders: Iterable[Attempt]) -> int | None:
    """The first of `folders` in which a batch script has recorded that number: anybody may make or copy a folder."""
    begun = (one.number for one in folders if read_fields(one.host_json).whole("attempt") == one.number)
    return next(begun, None)


def newer_attempt(attempt: Attempt) -> int | None:
    """The newest attempt of the run, if it is newer than `attempt`."""
    return newest_begun(later_folders(attempt))


def aside_folder(attempt: Attempt, step: int) -> Path:
    """Where the checkpoint of `step` is written before it is complete."""
    return RunDir(attempt.path.parents[1]).checkpoints / f".{Name(attempt.number, step)}"


def write_aside(attempt: Attempt, step: int) -> Path:
    """A new folder for the checkpoint of `step`; `complete` renames it."""
    folder = aside_folder(attempt, step)

    def make() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        folder.mkdir(mode=0o700)

    with_retries(make)
    return folder


def complete(attempt: Attempt, aside: Path, facts: Mapping[str, Any], digests: Mapping[str, Any] | None = None) -> Path:
    """Add the manifest, with `facts` (and the files' `digests`, if known), and rename the folder `aside`.

    Raises Superseded if a newer attempt has started.
    """
    name = parse_name(aside.name)
    assert name is not None
    if digests is None:
        files = with_retries(lambda: [path for path in aside.rglob("*") if path.is_file()])
        digests = {os.path.relpath(path, aside): digest(path, sync=True) for path in files}
    manifest = {"schema_version": SCHEMA_VERSION, "attempt": name.attempt, "step": name.step, "time": time.time()}
    write_json(aside / MANIFEST, {**manifest, **facts, "files": digests})
    if newer := newer_attempt(attempt):
        raise Superseded(f"attempt {newer} has taken over")
    final = aside.with_name(str(name))
    if exists(final):  # same attempt and step, so the same state
        remove(final)
    return rename(aside, final)


def digest(path: Path, *, sync: bool = False) -> dict[str, Any]:
    """Size and BLAKE2 digest of a file; `sync` flushes its content to disk first."""

    def read() -> dict[str, Any]:
        with open_regular(path) as file:
            if sync:
                os.fsync(file.fileno())
            found = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16))
            return {"bytes": file.tell(), "blake2b": found.hexdigest()}

    return with_retries(read)


def candidates(attempt: Attempt) -> list[Path]:
    """The checkpoints that `attempt` may resume from, newest first; their files have not been verified."""
    run = RunDir(attempt.path.parents[1])
    records = {other.number: read_fields(other.origin_json) for other in run.attempts()}
    readable = {number: record for number, record in records.items() if not record.absent and not record.problem}
    origins = {number: parse_name(record.text("checkpoint")) for number, record in readable.items()}
    bounds = lineage(attempt.number, origins)
    own = [(name, path) for name, path in _checkpoints(run) if name.step <= bounds.get(name.attempt, -1)]
    return [path for _, path in sorted(own, reverse=True) if not path.name.startswith(".")]


def lineage(attempt: int, origins: Mapping[int, Name | None]) -> dict[int, float]:
    """Ancestor -> the last of its steps that `attempt` may resume from.

    `origins`: the checkpoint that each attempt resumed from (None: it started from scratch); attempts that ended before
    deciding are missing.
    """
    bounds: dict[int, float] = {}
    current, bound = attempt, math.inf
    while current >= 0:
        bounds[current] = bound
        origin = origins.get(current)
        if origin is not None and origin.attempt < current:
            current, bound = origin
        elif current not in origins and bound == math.inf:
            current -= 1
        else:
            break
    return bounds


def note_origin(attempt: Attempt, origin: Path | None) -> None:
    """Record the checkpoint that `attempt` resumes from, or None if it starts from scratch."""
    write_json(attempt.origin_json, {"checkpoint": origin.name if origin else None, "time": time.time()})


class Origin(NamedTuple):
    """The checkpoint that an attempt resumed from; None: it started from scratch."""

    name: Name | None


def read_origin(attempt: Attempt) -> Origin | None:
    """The origin of `attempt`, or None if not recorded yet; lists its folder for the reason in `is_listed`."""
    if not is_listed(attempt.origin_json):
        return None
    record = read_fields(attempt.origin_json)
    return None if record.absent or record.problem else Origin(parse_name(record.text("checkpoint")))


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a checkpoint; None if it is missing or not ours."""
    try:
        manifest = read_json(folder / MANIFEST)
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(manifest, dict) or manifest.get("schema_version") != SCHEMA_VERSION:
        return None
    named = (manifest.get("attempt"), manifest.get("step")) == parse_name(folder.name)
    return manifest if named and isinstance(manifest.get("files"), dict) else None


def damage(folder: Path, manifest: Mapping[str, Any], share: slice = slice(None)) -> str:
    """The first problem with a checkpoint's files, or empty. `share` limits the check to a slice of them."""
    for name, expected in sorted(manifest["files"].items())[share]:
        try:
            if digest(folder / name) != expected:
                return f"{name} is damaged"
        except OSError as error:
            return f"{name}: {error.strerror}"
    return ""


def mismatch(manifest: Mapping[str, Any], fingerprint: Mapping[str, Any], defaults: Mapping[str, Any] = {}) -> str:
    """How a checkpoint's training differs from `fingerprint`; empty if it does not.

    `defaults` are the values of keys that the version which made it may not have had.
    """
    theirs = manifest.get("fingerprint")
    if not isinstance(theirs, dict):
        return "it has no fingerprint of its training"
    for key, value in json.loads(json.dumps(fingerprint)).items():  # as JSON stores it: tuples become lists
        if (other := theirs.get(key, defaults.get(key))) != value:
            return f"it was made with {key} = {json.dumps(other)}, not {json.dumps(value)}"
    return ""


def prune(attempt: Attempt, keep: int, *, spared: Name | None = None) -> None:
    """Remove the checkpoints of `attempt` and earlier ones, except `spared` and the `keep` newest of its lineage."""
    kept = set(candidates(attempt)[:keep])
    for name, path in _checkpoints(RunDir(attempt.path.parents[1])):
        if path not in kept and name != spared and name.attempt <= attempt.number:
            remove(path)


def remove_all(run: RunDir) -> bool:
    """Remove all checkpoints of an ended run, complete or not; returns whether there were any. Follows no links."""
    found = [path for _, path in _checkpoints(run) if not path.is_symlink()]
    for path in found:
        remove(path)
    return bool(found)


def remove(folder: Path) -> None:
    """Remove a checkpoint, the manifest first, so that a partly removed one does not count."""
    with suppress(OSError):
        with_retries(lambda: (folder / MANIFEST).unlink(missing_ok=True))
        shutil.rmtree(folder, ignore_errors=True)  # may raise errors of fstat(2) nevertheless


def _checkpoints(run: RunDir) -> Iterator[tuple[Name, Path]]:
    """All checkpoint folders, complete or not; those being written have a leading dot."""
    with suppress(FileNotFoundError, NotADirectoryError):
        for path in with_retries(lambda: list(run.checkpoints.iterdir())):
            if (name := parse_name(path.name)) is not None:
                yield name, path


class SuccessorWatch:
    """Looks for an attempt that is newer than `attempt`."""

    def __init__(self, attempt: Attempt, clock: Callable[[], float] = time.monotonic) -> None:
        self._attempt, self._clock = attempt, clock
        self._late = lateness(attempt.path.parent)
        self._stamp, self._list_until = -1, 0.0
        self._unclaimed = False

    def look(self) -> int | None:
        """The number of the newest attempt if it is newer than ours. Raises OSError."""
        stamp = self._attempt.path.parent.stat().st_mtime_ns
        now = self._clock()
        if stamp == self._stamp and now >= self._list_until and not self._unclaimed:
            return None
        later = later_folders(self._attempt)
        if stamp != self._stamp:
            self._stamp, self._list_until = stamp, now + self._late
        found = newest_begun(later)
        self._unclaimed = bool(later) and found is None
        return found
