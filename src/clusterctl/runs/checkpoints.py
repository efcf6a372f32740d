"""Checkpoints as folders: names, manifests, lineage.

`checkpoints/<attempt>-<step>/` appears in one rename, with a manifest.json that has the size and digest of every other
file. An attempt reads only those of its own lineage: the attempts that it descends from, each up to the step at which
the next one took over. What an attempt that was believed dead still writes is outside of it.
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

from clusterctl.runs.fields import read_fields
from clusterctl.runs.files import exists, is_listed, names_in, read_json, rename, with_retries, write_json
from clusterctl.runs.layout import Attempt, RunDir, attempt_number

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

MANIFEST = "manifest.json"
SCHEMA_VERSION = 2
_NAME = re.compile(r"\.?([0-9]{1,9})-([0-9]{1,18})", re.ASCII)


class Name(NamedTuple):
    """Who wrote a checkpoint, and how far it was."""

    attempt: int
    step: int

    def __str__(self) -> str:
        return f"{self.attempt}-{self.step}"


class Superseded(OSError):
    """A newer attempt of the run has begun: this one must write nothing more that counts."""


def parse_name(text: str) -> Name | None:
    """The name of a checkpoint's folder, or of one being written (with a dot before it)."""
    match = _NAME.fullmatch(text)
    return Name(int(match[1]), int(match[2])) if match else None


def newer_attempt(attempt: Attempt) -> int | None:
    """The newest attempt of the run, if it is newer than `attempt`; by listing the folder, as in `is_listed`."""
    names = names_in(attempt.path.parent)
    newest = max((number for name in names if (number := attempt_number(name)) is not None), default=0)
    return newest if newest > attempt.number else None


def aside_folder(attempt: Attempt, step: int) -> Path:
    """Where the checkpoint of `step` is written before it is complete."""
    return RunDir(attempt.path.parents[1]).checkpoints / f".{Name(attempt.number, step)}"


def write_aside(attempt: Attempt, step: int) -> Path:
    """A fresh folder to write the checkpoint of `step` into; `complete` gives it its name."""
    folder = aside_folder(attempt, step)

    def make() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)

    with_retries(make)
    return folder


def complete(attempt: Attempt, aside: Path, facts: Mapping[str, Any], digests: Mapping[str, Any] | None = None) -> Path:
    """Add the manifest, with `facts` (and the files' `digests`, if known), and give the aside its name.

    Raises Superseded if a newer attempt has begun.
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
    if exists(final):  # of the same attempt and step: the same training
        remove(final)
    return rename(aside, final)


def digest(path: Path, *, sync: bool = False) -> dict[str, Any]:
    """Size and BLAKE2 digest of a file; `sync` brings its content to the disk first."""

    def read() -> dict[str, Any]:
        with path.open("rb") as file:
            if sync:
                os.fsync(file.fileno())
            found = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16))
            return {"bytes": file.tell(), "blake2b": found.hexdigest()}

    return with_retries(read)


def candidates(attempt: Attempt) -> list[Path]:
    """The checkpoints that `attempt` may go on from, the newest first; whether they are whole is not yet known."""
    run = RunDir(attempt.path.parents[1])
    bounds = lineage(attempt.number, _origins(run))
    own = [(name, path) for name, path in _checkpoints(run) if name.step <= bounds.get(name.attempt, -1)]
    return [path for _, path in sorted(own, reverse=True) if not path.name.startswith(".")]


def lineage(attempt: int, origins: Mapping[int, Name | None]) -> dict[int, float]:
    """Attempt -> the last of its steps that `attempt` may go on from, for all attempts that it descends from.

    `origins`: what each attempt went on from (None: the beginning); an attempt that ended before that is not in it.
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
    """Record what `attempt` goes on from: a checkpoint, or None for the beginning."""
    write_json(attempt.origin_json, {"checkpoint": origin.name if origin else None, "time": time.time()})


class Origin(NamedTuple):
    """What an attempt went on from; None: the beginning."""

    name: Name | None


def read_origin(attempt: Attempt) -> Origin | None:
    """What `attempt` goes on from, or None while that is not known; by listing its folder, as in `is_listed`."""
    if not is_listed(attempt.origin_json):
        return None
    record = read_fields(attempt.origin_json)
    return None if record.absent or record.problem else Origin(parse_name(record.text("checkpoint")))


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a checkpoint; None where it is missing or none of ours."""
    try:
        manifest = read_json(folder / MANIFEST)
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(manifest, dict) or manifest.get("schema_version") != SCHEMA_VERSION:
        return None
    named = (manifest.get("attempt"), manifest.get("step")) == parse_name(folder.name)
    return manifest if named and isinstance(manifest.get("files"), dict) else None


def damage(folder: Path, manifest: Mapping[str, Any], share: slice = slice(None)) -> str:
    """What is wrong with the files of a checkpoint, or nothing. With `share`, only of that slice of them."""
    for name, expected in sorted(manifest["files"].items())[share]:
        try:
            if digest(folder / name) != expected:
                return f"{name} is damaged"
        except OSError as error:
            return f"{name}: {error.strerror}"
    return ""


def mismatch(manifest: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> str:
    """How a checkpoint's training differs from that of `fingerprint`, or nothing."""
    theirs = manifest.get("fingerprint")
    if not isinstance(theirs, dict):
        return "it does not say what it is of"
    for key, value in json.loads(json.dumps(fingerprint)).items():  # as the file has it: lists for tuples
        if theirs.get(key) != value:
            return f"it was made with {key} = {json.dumps(theirs.get(key))}, not {json.dumps(value)}"
    return ""


def prune(attempt: Attempt, keep: int) -> None:
    """Remove what `attempt` and those before it left, except the `keep` newest checkpoints of its lineage."""
    kept = set(candidates(attempt)[:keep])
    for name, path in _checkpoints(RunDir(attempt.path.parents[1])):
        if path not in kept and name.attempt <= attempt.number:
            remove(path)


def remove_all(run: RunDir) -> bool:
    """Remove all checkpoints of a run that has ended, whole or not; whether there were any. No link is followed."""
    found = [path for _, path in _checkpoints(run) if not path.is_symlink()]
    for path in found:
        remove(path)
    return bool(found)


def remove(folder: Path) -> None:
    """Remove a checkpoint, the manifest first: half of one is none."""
    with suppress(OSError):
        with_retries(lambda: (folder / MANIFEST).unlink(missing_ok=True))
        shutil.rmtree(folder, ignore_errors=True)  # which raises all the same what fstat(2) does


def _checkpoints(run: RunDir) -> Iterator[tuple[Name, Path]]:
    """All folders of checkpoints, whole or not; of those being written the name has a dot."""
    with suppress(FileNotFoundError, NotADirectoryError):
        for path in with_retries(lambda: list(run.checkpoints.iterdir())):
            if (name := parse_name(path.name)) is not None:
                yield name, path


def _origins(run: RunDir) -> dict[int, Name | None]:
    records = {attempt.number: read_fields(attempt.origin_json) for attempt in run.attempts()}
    readable = {number: record for number, record in records.items() if not record.absent and not record.problem}
    return {number: parse_name(record.text("checkpoint")) for number, record in readable.items()}
