"""Folders: where jobs and clusters are looked for, where runs and this machine's state are kept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import clusterctl
from clusterctl.errors import ConfigError, NotFoundError
from clusterctl.runs.files import make_private
from clusterctl.spec.records import nearest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.spec import Cluster


def state_folder() -> Path:
    """Where the emulator and the sandbox live: private and on this machine's own disk."""
    from platformdirs import user_state_path

    folder = user_state_path("clusterctl")
    try:
        return make_private(folder)
    except OSError as error:
        message = f"cannot make the state folder: {error.filename}: {error.strerror}"
        raise ConfigError(message, "set XDG_STATE_HOME to a folder of yours") from error


def runs_folder(cluster: Cluster | None) -> Path:
    """The folder of all runs: the cluster's, else CLUSTERCTL_RUNS, else the user's data folder."""
    configured = (cluster and cluster.runs) or os.environ.get("CLUSTERCTL_RUNS")
    if configured:
        return expanded(configured).absolute()
    from platformdirs import user_data_path

    return user_data_path("clusterctl") / "runs"


def images_folder(cluster: Cluster | None) -> Path:
    """The folder of all images: the cluster's, else the user's data folder."""
    if cluster and cluster.images:
        return expanded(cluster.images).absolute()
    from platformdirs import user_data_path

    return user_data_path("clusterctl") / "images"


def cache_folder() -> Path:
    """What can be made again: wheels, base images' descriptions."""
    from platformdirs import user_cache_path

    return user_cache_path("clusterctl")


def user_config_folder() -> Path:
    from platformdirs import user_config_path

    return user_config_path("clusterctl")


def shipped_folder() -> Path:
    """The jobs, clusters and data that come with clusterctl: in the wheel, or the checkout that it runs from."""
    package = Path(clusterctl.__file__).resolve().parent
    packaged = package / "shipped"
    return packaged if packaged.is_dir() else package.parent.parent


def find_file(kind: str, name: str, cwd: Path) -> Path:
    """The file of job or cluster `name` (`kind` is "jobs" or "cluster"); a path is taken as it is.

    Raises NotFoundError with the nearest name.
    """
    noun = "job" if kind == "jobs" else "cluster"
    if "/" in name or name.endswith(".toml"):
        path = cwd / expanded(name)
        if _is_file(path):
            return path
        raise NotFoundError(f"no such {noun} file: {name}", _known_names(kind, name, cwd))
    for folder in _search_folders(kind, cwd):
        path = folder / f"{name}.toml"
        if _is_file(path):
            return path
    raise NotFoundError(f"no {noun} named: {name}", _known_names(kind, Path(name).stem, cwd))


def names(kind: str, cwd: Path) -> dict[str, Path]:
    """Every job or cluster that can be named from `cwd`, the first found of each name."""
    found: dict[str, Path] = {}
    for folder in _search_folders(kind, cwd):
        for path in sorted(folder.glob("*.toml")):
            found.setdefault(path.stem, path)
    return found


def expanded(path: str) -> Path:
    """`path` with its `~` filled in."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"nobody knows whose home is: {path}", "write the folder's path without `~`") from error


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name too long, a folder that may not be entered
        return False


def _search_folders(kind: str, cwd: Path) -> Iterator[Path]:
    yield cwd / kind
    for folder in (cwd, *cwd.parents):
        if (folder / ".git").exists() or (folder / "pyproject.toml").exists():
            yield folder / kind
            break
    yield user_config_folder() / kind
    yield shipped_folder() / kind


def _known_names(kind: str, name: str, cwd: Path) -> str:
    known = sorted(names(kind, cwd))
    close = nearest(Path(name).stem, known)
    return f"did you mean {close}?" if close else f"known: {', '.join(known)}"
