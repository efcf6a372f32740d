"""Clusters whose commands run on another machine. Every command asks, so nothing else is imported for it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.launcher.config.client_data import client_data
from clusterctl.launcher.config.clusters import cluster_file, load_cluster
from clusterctl.launcher.config.source import content_of
from clusterctl.launcher.config.suggestions import suggested as suggested
from clusterctl.launcher.config.suggestions import typed_cluster as typed_cluster

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterctl.shared.spec import Cluster


@dataclass(frozen=True)
class RemoteCluster:
    """A cluster on another machine, with the name by which it was chosen."""

    name: str
    file: Path = field(repr=False)
    cluster: Cluster = field(repr=False)

    @property
    def host(self) -> str:
        assert self.cluster.host
        return self.cluster.host


def names_files(names: Iterable[str]) -> bool:
    """Whether `names` are files of output rather than runs or jobs: several, a path with a slash, a file with a dot."""
    words = [*names]
    return len(words) > 1 or any("/" in word or ("." in word and Path(word).is_file()) for word in words)


def remote_cluster(name: str | None) -> RemoteCluster | None:
    """The cluster called `name`, or the default one, if its commands run on another machine."""
    if client_data():
        return None
    file = cluster_file(name)
    if file is None:
        return None
    with suppress(OSError):  # will be reported when the cluster is loaded
        if b"host" in content_of(file):
            cluster = load_cluster(name)
            return RemoteCluster(name or cluster.name, file, cluster) if cluster.host else None
    return None
