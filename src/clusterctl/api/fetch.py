"""Bring a run to this folder: record, metrics, report, weights, logs, and what its program wrote."""

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
    """Unpack the run called `name` as the folder `output`, by default one with the run's id; its path.

    It is there whole, or not at all. Raises UsageError where there is such a folder already, unless `force`, and where
    runs are on this machine; HostError with what the other machine has to say.
    """
    if place is None:
        raise UsageError(
            f"{name}: its files are on this machine", f"put them into an archive: clusterctl export {name}"
        )
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
        raise ConfigError(f"cannot fetch the run into {parent}: {reason(error)}", "is there room? df -h") from error
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
    """Only folders and regular files, below `folder`: the archive came from another machine."""
    for member in members:
        parts = Path(member.name).parts
        if not member.isfile() or member.name.startswith("/") or ".." in parts or len(parts) < 2:
            raise tarfile.TarError(f"no file of a run: {member.name!r}")
        path = folder.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        source = members.extractfile(member)
        assert source is not None
        with path.open("xb") as file:
            shutil.copyfileobj(source, file)
        os.utime(path, (member.mtime, member.mtime))


def _require_free(target: Path, *, force: bool) -> None:
    if target.exists() and not (force and target.is_dir()):
        raise UsageError(f"there is a folder already: {target}", "--force replaces it; --output names another one")
