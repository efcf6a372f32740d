"""Checkpoints as folders: names, manifests, lineage. What lies in them is their writer's affair.

`checkpoints/<attempt>-<step>/` appears in one rename, with a manifest.json that has the size and digest of every other
file. An attempt reads those of its own lineage alone: the attempts that it goes back to, up to the steps at which the
next one took over. What an attempt that was believed dead still writes is outside of it.
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

from clusterctl.runs.files import read_json, write_json
from clusterctl.runs.layout import Attempt, RunDir

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

MANIFEST = "manifest.json"
SCHEMA_VERSION = 1
_NAME = re.compile(r"\.?([0-9]{1,9})-([0-9]{1,18})", re.ASCII)


class Name(NamedTuple):
    """Who wrote a checkpoint, and how far it was."""

    attempt: int
    step: int

    def __str__(self) -> str:
        return f"{self.attempt}-{self.step}"


class Superseded(Exception):
    """A newer attempt of the run has begun: this one must write nothing more that counts."""


def parse_name(text: str) -> Name | None:
    """The name of a checkpoint's folder, or of one being written (with a dot before it)."""
    match = _NAME.fullmatch(text)
    return Name(int(match[1]), int(match[2])) if match else None


def newer_attempt(attempt: Attempt) -> int | None:
    """The newest attempt of the run, if it is newer than `attempt`.

    By listing the folder: NFS may go on for a while saying that a name does not exist.
    """
    newest = max((int(name) for name in os.listdir(attempt.path.parent) if name.isdigit()), default=0)  # noqa: PTH208
    return newest if newest > attempt.number else None


def write_aside(attempt: Attempt, step: int) -> Path:
    """A fresh folder to write the checkpoint of `step` into; `complete` gives it its name."""
    name = Name(attempt.number, step)
    folder = RunDir(attempt.path.parents[1]).checkpoints / f".{name}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    return folder


def complete(attempt: Attempt, aside: Path, facts: Mapping[str, Any], digests: Mapping[str, Any] | None = None) -> Path:
    """Add the manifest, with `facts`, and give the folder its name. Raises Superseded if a newer attempt has begun.

    `digests` are those of all files in it, if their writers took them already.
    """
    name = parse_name(aside.name)
    assert name is not None
    files = digests if digests is not None else {path: digest(_synced(aside / path)) for path in _files_in(aside)}
    manifest = {"schema_version": SCHEMA_VERSION, "attempt": name.attempt, "step": name.step, "time": time.time()}
    write_json(aside / MANIFEST, {**manifest, **facts, "files": files})
    if newer := newer_attempt(attempt):
        raise Superseded(f"attempt {newer} has taken over")
    final = aside.with_name(str(name))
    if final.exists():  # of the same attempt and step: the same training
        remove(final)
    aside.rename(final)
    return final


def digest(path: Path) -> dict[str, Any]:
    """Size and BLAKE2 digest of a file."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16))
        return {"bytes": file.tell(), "blake2b": found.hexdigest()}


def candidates(attempt: Attempt) -> list[Path]:
    """The checkpoints that `attempt` may go on from, the newest first; whether they are whole is not yet known."""
    run = RunDir(attempt.path.parents[1])
    bounds = lineage(attempt.number, _origins(run))
    found = [(name, path) for name, path in _checkpoints(run) if not path.name.startswith(".")]
    own = [(name, path) for name, path in found if name.step <= bounds.get(name.attempt, -1)]
    return [path for _, path in sorted(own, reverse=True)]


def lineage(attempt: int, origins: Mapping[int, Name | None]) -> dict[int, float]:
    """Attempt -> the last of its steps that `attempt` may go on from, for all attempts that it descends from.

    `origins` has the checkpoint that each attempt went on from, None for the very beginning. An attempt that never came
    so far is not in it, and made no checkpoint.
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


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a checkpoint; None where it is missing or none of ours."""
    try:
        manifest = read_json(folder / MANIFEST)
    except (OSError, ValueError, RecursionError):
        return None
    whole = isinstance(manifest, dict) and manifest.get("schema_version") == SCHEMA_VERSION
    name = parse_name(folder.name)
    if not whole or name is None or (manifest.get("attempt"), manifest.get("step")) != name:
        return None
    return manifest if isinstance(manifest.get("files"), dict) else None


def damage(folder: Path, manifest: Mapping[str, Any], share: slice = slice(None)) -> str:
    """What is wrong with the files of a checkpoint, or nothing. With `share`, of every so many of them alone."""
    for name, expected in sorted(manifest["files"].items())[share]:
        try:
            if digest(folder / name) != expected:
                return f"{name} is damaged"
        except OSError as error:
            return f"{name}: {error.strerror}"
    return ""


def mismatch(manifest: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> str:
    """In what a checkpoint is of another training than `fingerprint`, or nothing."""
    theirs = manifest.get("fingerprint")
    if not isinstance(theirs, dict):
        return "it does not say what it is of"
    for key, value in json.loads(json.dumps(fingerprint)).items():  # as the file has it: lists for tuples
        if theirs.get(key) != value:
            return f"it was made with {key} = {json.dumps(theirs.get(key))}, not {json.dumps(value)}"
    return ""


def prune(attempt: Attempt, keep: int) -> None:
    """Remove what `attempt` and those before it left, but for the `keep` newest checkpoints of its lineage."""
    kept = set(candidates(attempt)[:keep])
    for name, path in _checkpoints(RunDir(attempt.path.parents[1])):
        if path not in kept and name.attempt <= attempt.number:
            remove(path)


def remove(folder: Path) -> None:
    """Remove a checkpoint, the manifest first: half of one is none."""
    with suppress(OSError):
        (folder / MANIFEST).unlink()
    shutil.rmtree(folder, ignore_errors=True)


def _checkpoints(run: RunDir) -> Iterator[tuple[Name, Path]]:
    """All folders of checkpoints, whole or not."""
    with suppress(FileNotFoundError, NotADirectoryError):
        for path in run.checkpoints.iterdir():
            if (name := parse_name(path.name)) is not None:
                yield name, path


def _origins(run: RunDir) -> dict[int, Name | None]:
    found: dict[int, Name | None] = {}
    for attempt in run.attempts():
        with suppress(OSError, ValueError, RecursionError):
            record = read_json(attempt.origin_json)
            if isinstance(record, dict):
                text = record.get("checkpoint")
                found[attempt.number] = parse_name(text) if isinstance(text, str) else None
    return found


def _synced(path: Path) -> Path:
    """`path`, its content on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return path


def _files_in(folder: Path) -> Iterator[str]:
    for parent, _, names in os.walk(folder):
        for name in names:
            yield os.path.relpath(os.path.join(parent, name), folder)  # noqa: PTH118
