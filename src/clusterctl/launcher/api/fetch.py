"""Fetch a run from another machine: record, metrics, report, weights, logs, and its program's files."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
import unicodedata
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.launcher.observe.run_names import NEWEST, is_run_id
from clusterctl.shared.errors import ConfigError, HostError, UsageError, reason

if TYPE_CHECKING:
    from clusterctl.launcher.api.remote.cluster import RemoteCluster


_MOST_FILES = 10**6
_LATEST = 2**34  # seconds


def fetch(
    place: RemoteCluster | None, name: str, output: Path | None = None, *, weights: bool = True, force: bool = False
) -> Path:
    """Fetch the run called `name` into the new folder `output`, named after the run by default; returns its path.

    The folder appears atomically. Raises UsageError if it exists, unless `force` and it contains an earlier copy of a
    run, and if the runs are on this machine; HostError with the other machine's message, or for an archive that is not
    one of this run.
    """
    if place is None:
        raise UsageError(f"{name}: its files are on this machine", f"make an archive: clusterctl export {name}")
    parent = Path.cwd() if output is None else output.absolute().parent
    if output is not None:
        _require_free(output, force=force)
    try:
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=parent) as folder:
            archive, inside = Path(folder, "archive"), Path(folder, "files")
            _bring(place, name, archive, weights=weights)
            try:
                run = _unpacked(archive, inside, name)
            except (tarfile.TarError, zlib.error, EOFError, ValueError, OverflowError) as error:
                message = f"{place.host} sent something else than an archive of {name}: {reason(error)}"
                raise HostError(message, "run the command again; nothing was unpacked") from error
            target = output or parent / run
            _require_free(target, force=force)
            aside = Path(folder, "replaced")
            if replaces := target.is_dir():  # removed only afterwards
                target.rename(aside)
            try:
                (inside / run).rename(target)
            except OSError:
                if replaces:
                    aside.rename(target)
                raise
    except OSError as error:
        raise ConfigError(f"cannot fetch the run into {parent}: {reason(error)}", "check free space: df -h") from error
    return target


def _bring(place: RemoteCluster, name: str, archive: Path, *, weights: bool) -> None:
    from clusterctl.launcher.api.remote.request import Callbacks, Conversation, Printed, request

    words = ["export", name, "--work", "--output", "-", *([] if weights else ["--no-weights"])]
    printed = Printed()
    with archive.open("wb") as file:
        callbacks = Callbacks(file.write, printed.take)
        code = Conversation(place.host, place.cluster.remote_python, request(place, words), callbacks).result()
    if code:
        lines = dict(line.partition(": ")[::2] for line in printed.text.splitlines())
        hint = lines.get("hint", "" if "error" in lines else "run the command again")
        raise HostError(lines.get("error", f"exit code {code} on {place.host}"), hint)


def _unpacked(archive: Path, folder: Path, name: str) -> str:
    """Unpack the archive below `folder`; returns the run's id. Raises TarError unless it is one of the run `name`.

    It comes from another machine, so it may contain anything. All its files must be regular ones in a folder called
    like a run that `name` refers to, and none can be part of a git repository, whose configuration runs programs.
    """
    top = ""
    # As a stream: it cannot be read backwards, which sizes below zero would request.
    with tarfile.open(archive, "r|gz") as members:
        for count, member in enumerate(members):
            first, *parts = member.name.split("/")
            top = top or first
            # `name` is a run's id, its beginning, or `@last`.
            if first != top or not is_run_id(first) or not (name == NEWEST or first.startswith(name)):
                raise tarfile.TarError(f"not a folder of this run: {first[:100]!r}")
            is_file = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.issparse()
            if not is_file or not parts or any(part in ("", ".", "..") or is_git(part) for part in parts):
                raise tarfile.TarError(f"not a file of a run: {member.name[:200]!r}")
            if count == _MOST_FILES or not abs(member.mtime) < _LATEST:
                raise tarfile.TarError(f"more than {_MOST_FILES} files" if count == _MOST_FILES else "invalid times")
            path = Path(folder, top, *parts)
            source = members.extractfile(member)
            assert source is not None
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                file = path.open("xb")
            except (FileExistsError, NotADirectoryError) as error:
                raise tarfile.TarError(f"two files of the same name: {member.name[:200]!r}") from error
            with file:
                shutil.copyfileobj(source, file)
            os.utime(path, (member.mtime, member.mtime))
    if not top:
        raise tarfile.TarError("no files")
    return top


def _require_free(target: Path, *, force: bool) -> None:
    if not os.path.lexists(target):
        return
    if not force or target.is_symlink() or not target.is_dir():
        raise UsageError(f"folder exists: {target}", "replace it with `force=True`, or choose another with `output=`")
    if not (target / "run.json").is_file() and any(target.iterdir()):
        raise UsageError(
            f"not a fetched run, so `force=True` does not replace it: {target}", "choose another with `output=`"
        )


def is_git(name: str) -> bool:
    """Whether a folder or file of this name makes git read a configuration, which can run programs."""
    seen = (
        letter for letter in name if unicodedata.category(letter) != "Cf"
    )  # older file systems of macOS ignore them
    return "".join(seen).casefold() == ".git"
