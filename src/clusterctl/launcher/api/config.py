"""The available jobs and clusters, and the origin of every value."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.launcher.config import chosen_runs_folder, names, state_path
from clusterctl.launcher.config.clusters import site_file
from clusterctl.shared.spec import WORKLOADS, Cluster, Job, to_record
from clusterctl.shared.spec.cluster import UserConfiguration
from clusterctl.shared.spec.job import Role
from clusterctl.shared.spec.keys import FileKey, as_toml, keys_of, leaves_as_written

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.launcher.config import Resolved


def values(resolved: Resolved) -> Iterator[tuple[str, str, str]]:
    """Every key set in the job, its value as TOML, and its origin."""
    for path, value in leaves_as_written(to_record(resolved.secrets.hide_in(resolved.job))):
        key, text = ".".join(path), as_toml(value)
        origin = resolved.origins.get(key, "default")
        if text or origin != "default":
            yield key, text, origin


def key_tables() -> Iterator[tuple[str, list[FileKey]]]:
    """Every key of job files, of cluster files and of the user's configuration, by title."""
    yield from job_key_tables()
    yield "Cluster files", list(keys_of(Cluster))
    yield "config.toml in your configuration folder", list(keys_of(UserConfiguration))


def job_key_tables() -> Iterator[tuple[str, list[FileKey]]]:
    """Every key of job files, by title."""
    yield "Job files", list(keys_of(Job))
    yield "Job files, each [[role]]", list(keys_of(Role, "role."))
    for name, entry in WORKLOADS.items():
        yield f"Job files, workload {name}", list(keys_of(entry.train, "train."))


def places() -> Iterator[tuple[str, str, Path]]:
    """The jobs and clusters available in the current folder (kind, name, file), and the folders in use."""
    for kind in ("jobs", "cluster"):
        for name, path in sorted(names(kind, Path.cwd()).items()):
            yield kind.removesuffix("s"), name, path
    if site := site_file():
        yield "site", "", site
    yield "runs", "", chosen_runs_folder(None)
    yield "state", "", state_path()
