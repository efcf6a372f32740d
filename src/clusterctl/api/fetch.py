"""Fetch a run into the current folder: record, metrics, report, weights, logs, and its program's files."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.errors import ConfigError, HostError, UsageError, reason

if TYPE_CHECKING:
    from clusterctl.api.elsewhere import Elsewhere


def fetch(
    place: Elsewhere | None, name: str, output: Path | None = None, *, weights: bool = True, force: bool = False
) -> Path:
    """Fetch the run called `name` into the new folder `output`, named after the run by default; returns its path.

    The folder appears atomically. Raises UsageError if it exists, unless `force`, and if the runs are on this machine;
    HostError with the other machine's message.
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
            with tarfile.open(archive, "r:gz") as members:
                _extract(members, inside)
            (run,) = inside.iterdir()
            target = output or parent / run.name
            _require_free(target, force=force)
            if target.is_dir():
                shutil.rmtree(target)
            run.rename(target)
    except (OSError, tarfile.TarError) as error:
        raise ConfigError(f"cannot fetch the run into {parent}: {reason(error)}", "check free space: df -h") from error
    return target


def _bring(place: Elsewhere, name: str, archive: Path, *, weights: bool) -> None:
    from clusterctl.api.elsewhere import Conversation, Ends, request

    words = ["export", name, "--work", "--output", "-", *([] if weights else ["--no-weights"])]
    printed = bytearray()
    with archive.open("wb") as file:

        def write(data: bytes) -> None:
            file.write(data)

        ends = Ends(write, printed.extend)
        code = Conversation(place.host, place.cluster.remote_python, request(place, words), ends).result()
    if code:
        lines = dict(line.partition(": ")[::2] for line in printed.decode(errors="replace").splitlines())
        raise HostError(lines.get("error", f"exit code {code} on {place.host}"), lines.get("hint", ""))


def _extract(members: tarfile.TarFile, folder: Path) -> None:
    """Extract only folders and regular files below `folder`: the archive comes from another machine."""
    for member in members:
        parts = Path(member.name).parts
        if not member.isfile() or member.name.startswith("/") or ".." in parts or len(parts) < 2:
            raise tarfile.TarError(f"not a file of a run: {member.name!r}")
        path = folder.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        source = members.extractfile(member)
        assert source is not None
        with path.open("xb") as file:
            shutil.copyfileobj(source, file)
        os.utime(path, (member.mtime, member.mtime))


def _require_free(target: Path, *, force: bool) -> None:
    if target.exists() and not (force and target.is_dir()):
        raise UsageError(f"folder exists: {target}", "replace it with --force, or choose another with --output")
