"""Reads job and cluster files; every value knows where it came from."""

from clusterctl.config.clusters import chosen_runs_folder, load_cluster
from clusterctl.config.places import find_file, names, runs_folder, state_folder
from clusterctl.config.resolve import Resolved, resolve, resolve_again

__all__ = [
    "Resolved",
    "chosen_runs_folder",
    "find_file",
    "load_cluster",
    "names",
    "resolve",
    "resolve_again",
    "runs_folder",
    "state_folder",
]
