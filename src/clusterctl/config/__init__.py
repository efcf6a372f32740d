"""Reads job and cluster files; every value knows where it came from."""

from clusterctl.config.places import find_file, names, runs_folder, state_folder
from clusterctl.config.resolve import Resolved, load_cluster, resolve

__all__ = ["Resolved", "find_file", "load_cluster", "names", "resolve", "runs_folder", "state_folder"]
