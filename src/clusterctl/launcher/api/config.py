"""The available jobs and clusters, and the origin of every value."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.launcher.config import chosen_runs_folder, names, state_path
from clusterctl.launcher.config.clusters import site_file
from clusterctl.shared.spec import WORKLOADS, Cluster, Job, to_record
from clusterctl.shared.spec.cluster import UserConfiguration
from clusterctl.shared.spec.keys import FileKey, as_toml, keys_of, leaves_as_written
from clusterctl.shared.spec.role import Role

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
    tables: list[tuple[str, type, str]] = [("Job files", Job, ""), ("Job files, each [[role]]", Role, "role.")]
    tables += [(f"Job files, workload {name}", entry.train, "train.") for name, entry in WORKLOADS.items()]
    tables += [("Cluster files", Cluster, ""), ("config.toml in your configuration folder", UserConfiguration, "")]
    for title, cls, prefix in tables:
        yield title, list(keys_of(cls, prefix))


def places() -> Iterator[tuple[str, str, Path]]:
    """The jobs and clusters available in the current folder (kind, name, file), and the folders in use."""
    for kind in ("jobs", "cluster"):
        for name, path in sorted(names(kind, Path.cwd()).items()):
            yield kind.removesuffix("s"), name, path
    if site := site_file():
        yield "site", "", site
    yield "runs", "", chosen_runs_folder(None)
    yield "state", "", state_path()
