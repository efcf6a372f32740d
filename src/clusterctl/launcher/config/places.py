"""Folders for job and cluster files, runs, and this machine's state."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from pathlib import Path

import clusterctl
from clusterctl.launcher.config.client_data import client_data
from clusterctl.shared.errors import ConfigError, NotFoundError, UsageError

TYPE_CHECKING = False  # shell completion waits for this module's imports at each Tab; hence imports in functions
if TYPE_CHECKING:
    from clusterctl.shared.spec import Cluster

_HOME = "export HOME=FOLDER, a folder that you own: runs, state and caches go below it"


def _own_folder(kind: str) -> Path:
    """The user's folder for "config", "data", "state" or "cache": its XDG variable, else a folder below HOME."""
    from platformdirs.unix import Unix  # on macOS, too: the same files as on the clusters

    try:
        return Path(getattr(Unix("clusterctl"), f"user_{kind}_dir")).expanduser()  # 4.3 does not expand `~`
    except RuntimeError as error:
        raise ConfigError(f"HOME is not set, and user {os.geteuid()} has no home folder", _HOME) from error


def state_path() -> Path:
    """The path of `state_folder`, which may not exist yet."""
    return _own_folder("state")


def state_folder() -> Path:
    """The private folder of the emulator and the sandbox, on a local disk."""
    from clusterctl.shared.record.ownership import make_private

    try:
        return make_private(state_path())
    except OSError as error:
        message = f"cannot create the state folder: {error.filename}: {error.strerror}"
        hint = "set XDG_STATE_HOME to a folder that you own" if os.environ.get("XDG_STATE_HOME") else _HOME
        raise ConfigError(message, hint) from error


def runs_folder(cluster: Cluster | None) -> Path:
    """The folder of all runs: the cluster's, else CLUSTERCTL_RUNS, else the user's data folder."""
    return runs_at(cluster.runs if cluster else None)


def runs_at(configured: str | None) -> Path:
    """`runs_folder` of a cluster with the setting `configured`, if any."""
    configured = configured or os.environ.get("CLUSTERCTL_RUNS")
    return expanded(configured).absolute() if configured else _own_folder("data") / "runs"


def images_folder(cluster: Cluster | None) -> Path:
    """The folder of all images: the cluster's, else the user's data folder."""
    if cluster and cluster.images:
        return expanded(cluster.images).absolute()
    return _own_folder("data") / "images"


def data_folder() -> Path:
    """The user's permanent data."""
    return _own_folder("data")


def cache_folder() -> Path:
    """Data that can be recreated: wheels, descriptions of base images."""
    return _own_folder("cache")


def user_config_folder() -> Path:
    return _own_folder("config")


def shipped_folder() -> Path:
    """The jobs, clusters and data shipped with clusterctl, in the wheel or the checkout that it runs from."""
    package = Path(clusterctl.__file__).resolve().parent
    packaged = package / "shipped"
    return packaged if packaged.is_dir() else package.parent.parent


def current_folder() -> Path:
    """The folder in which the command was typed, possibly on another machine."""
    client = client_data()
    return Path(client.sent.folder) if client else Path.cwd()


def find_file(kind: str, name: str, cwd: Path) -> Path:
    """The file of job or cluster `name` (`kind` is "jobs" or "cluster"), which may also be a path.

    Raises NotFoundError with the nearest name, and ConfigError if the project's file is owned by another user.
    """
    if (client := client_data()) and (sent := client.file(kind)):
        return sent
    noun = "job" if kind == "jobs" else "cluster"
    if "/" in name or name.endswith(".toml"):
        candidates, problem = [cwd / expanded(name)], f"no such {noun} file: {name}"
    else:
        candidates = [folder / f"{name}.toml" for folder in _search_folders(kind, cwd)]
        problem = f"no {noun} named: {name}"
    if noun == "job":
        _refuse_program(cwd / name, name, wanted=candidates)
    for path in candidates:
        with suppress(OSError):  # the name is too long, or the folder not accessible
            if path.is_file():
                if len(candidates) > 1 and path.parent in _project_folders(kind, cwd):
                    _require_trusted(path, noun)
                return path
    from clusterctl.shared.spec.records import nearest

    known = sorted(names(kind, cwd))
    close = nearest(Path(name).stem, known)
    raise NotFoundError(problem, f"did you mean {close}?" if close else f"known: {', '.join(known)}")


def _refuse_program(path: Path, name: str, wanted: list[Path]) -> None:
    """Raise UsageError with the command that works if `name` is a program, and not one of the job files `wanted`."""
    import shutil

    from clusterctl.launcher.config.program import command_of

    found = False
    with suppress(OSError):  # as above
        found = path.suffix == ".py" and path.is_file()
        found = found or ("/" not in name and not any(one.is_file() for one in wanted) and bool(shutil.which(name)))
    if found:
        raise UsageError(f"a program, not a job: {name}", f"programs go after --: {command_of([name])}")


def names(kind: str, cwd: Path) -> dict[str, Path]:
    """Every job or cluster available in `cwd` by name; the first file found wins."""
    found: dict[str, Path] = {}
    for folder in _search_folders(kind, cwd):
        for path in sorted(folder.glob("*.toml")):
            found.setdefault(path.stem, path)
    return found


def expanded(path: str) -> Path:
    """`path` with `~` expanded."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"cannot expand `~`: {path}", "write the path without `~`") from error


def _search_folders(kind: str, cwd: Path) -> list[Path]:
    """A project may override jobs, but not clusters that the user knows by name."""
    own = [user_config_folder() / kind, shipped_folder() / kind]
    return [*own, *_project_folders(kind, cwd)] if kind == "cluster" else [*_project_folders(kind, cwd), *own]


def _project_folders(kind: str, cwd: Path) -> list[Path]:
    """The current folder's, and that of the enclosing project."""
    roots = (folder for folder in (cwd, *cwd.parents) if is_project(folder))
    return [folder / kind for folder in dict.fromkeys((cwd, next(roots, cwd)))]


def is_project(folder: Path) -> bool:
    """Whether `folder` is the root of a project."""
    return (folder / ".git").exists() or (folder / "pyproject.toml").exists()


def is_home(folder: Path) -> bool:
    """Whether `folder` is the user's home folder and not a project."""
    return folder.resolve() == Path(os.path.expanduser("~")).resolve() and not is_project(folder)  # noqa: PTH111 - total


def _require_trusted(path: Path, noun: str) -> None:
    from clusterctl.shared.record.ownership import is_trusted, owner_name

    if not is_trusted(path.stat().st_uid):
        shown = f"./{os.path.relpath(path)}"
        message = f"{noun} {path.stem} is owned by another user: {path} ({owner_name(path)})"
        raise ConfigError(message, f"review it; if you trust it, use its path: {shlex.quote(shown)}")
