"""Finds and reads the cluster file."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.launcher.config.client_data import client_data
from clusterctl.launcher.config.places import current_folder, find_file, images_folder, runs_folder, user_config_folder
from clusterctl.launcher.config.source import Values, read_toml, read_values
from clusterctl.shared.errors import ConfigError, UsageError
from clusterctl.shared.record.ownership import is_open
from clusterctl.shared.spec import Cluster
from clusterctl.shared.spec.cluster import UserConfiguration

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SITE_FILE = Path("/etc/clusterctl/cluster.toml")
ANY_SLURM = Cluster(name="slurm")  # that whose commands are on PATH
_OF_USERS = ("host", "kind", "name", "remote_python")


class NoClusterChosen(UsageError):
    """No cluster is chosen on a machine with sbatch."""


def load_cluster(name: str | None, environment: Mapping[str, str] = os.environ, cwd: Path | None = None) -> Cluster:
    """The cluster called `name`, or else of CLUSTERCTL_CLUSTER, the user's configuration, or `local`.

    `local` is a default only without sbatch, so that nobody trains on a login node by accident (NoClusterChosen).
    """
    cwd = cwd or current_folder()
    name = _chosen(name, environment)
    if not name:
        if shutil.which("sbatch", path=environment.get("PATH")):
            raise NoClusterChosen(
                "which cluster? this machine has sbatch, so nothing runs here by default",
                '`cluster=NAME`, or CLUSTERCTL_CLUSTER=NAME; to run on this machine anyway: `cluster="local"`',
            )
        name = "local"
    path = find_file("cluster", name, cwd)
    values = read_toml(path)
    values = _over_site_defaults(values)
    if values.get(("name",)) is None:
        values.put(("name",), path.stem, "file name")
    cluster = read_values(Cluster, values, path)
    if sys.platform != "linux" and cluster.nodes_are_here and (client_data() or not cluster.host):
        system = {"darwin": "macOS"}.get(sys.platform, sys.platform)
        hint = "choose a cluster whose file has a `host`: clusterctl config list"
        raise UsageError(f"cluster {cluster.name}: this machine runs {system}, and jobs run on Linux only", hint)
    return replace(cluster, host=None, remote_python=None) if client_data() else cluster  # this machine is the host


def cluster_for(name: str | None, check: Callable[[], object]) -> Cluster:
    """`load_cluster`; with none chosen, `check` is called first, to raise for mistakes that any cluster would show."""
    try:
        return load_cluster(name)
    except NoClusterChosen:
        check()
        raise


def site_file() -> Path | None:
    """The file with defaults for every Slurm cluster of this machine, if there is one."""
    return SITE_FILE if SITE_FILE.exists() else None


def _over_site_defaults(values: Values) -> Values:
    """`values` of a cluster file, and from the site's file what they leave out, if this machine asks Slurm for them.

    Raises ConfigError if anybody but root can write that file, or if it names what only a user can know.
    """
    elsewhere = values.get(("host",)) is not None and not client_data()
    if elsewhere or values.get(("kind",)) not in (None, "slurm") or not site_file():
        return values
    for path in (SITE_FILE, SITE_FILE.parent):
        status = path.stat()
        if status.st_uid != 0 or is_open(status.st_mode):
            raise ConfigError(
                f"others than root can change it: {path}", f"as root: chown root {path}; chmod go-w {path}"
            )
    defaults = read_toml(SITE_FILE)
    for key in _OF_USERS:
        if defaults.get((key,)) is not None:
            where = defaults.origin((key,))
            raise ConfigError(f"{where}: {key}: not for all clusters of a machine", f"as root, remove it: {SITE_FILE}")
    defaults.layer(values)
    return defaults


def cluster_of_jobs(name: str | None) -> Cluster:
    """Like `load_cluster`, to look at jobs: with none chosen, the Slurm whose commands are on PATH."""
    if _chosen(name, os.environ) or not shutil.which("squeue"):
        return load_cluster(name)
    return ANY_SLURM


def cluster_file(name: str | None) -> Path | None:
    """The file of the chosen cluster; None if none is chosen."""
    chosen = _chosen(name, os.environ)
    return find_file("cluster", chosen, current_folder()) if chosen else None


def chosen_runs_folder(name: str | None) -> Path:
    """The runs folder of a cluster, or the default one if none is chosen, which is fine for reading."""
    chosen = _chosen(name, os.environ)
    return runs_folder(load_cluster(chosen) if chosen else None)


def chosen_images_folder(name: str | None) -> Path:
    """The image folder of a cluster, or the user's own if none is chosen."""
    chosen = _chosen(name, os.environ)
    return images_folder(load_cluster(chosen) if chosen else None)


def _chosen(name: str | None, environment: Mapping[str, str]) -> str | None:
    if chosen := name or environment.get("CLUSTERCTL_CLUSTER"):
        return chosen
    name = user_values().get(("cluster",))
    return str(name) if name else None


def user_file() -> Path:
    """The user's own configuration, which may not exist."""
    return user_config_folder() / "config.toml"


def user_values() -> Values:
    """The validated values of the user's own configuration; empty if there is none."""
    if client := client_data():
        if client.sent.user is None:
            return Values()
        path = Path(client.sent.user.path)
    else:
        path = user_file()
        if not path.is_file():
            return Values()
    values = read_toml(path)
    read_values(UserConfiguration, values, path, 'such as: cluster = "local"')
    return values
