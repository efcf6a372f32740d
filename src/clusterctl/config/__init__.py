"""Reads job and cluster files; every value knows where it came from."""

from clusterctl.config.clusters import chosen_images_folder, chosen_runs_folder, load_cluster
from clusterctl.config.places import (
    cache_folder,
    expanded,
    images_folder,
    names,
    runs_folder,
    shipped_folder,
    state_folder,
    state_path,
)
from clusterctl.config.resolve import Resolved, resolve, resolve_again

__all__ = [
    "Resolved",
    "cache_folder",
    "chosen_images_folder",
    "chosen_runs_folder",
    "expanded",
    "images_folder",
    "load_cluster",
    "names",
    "resolve",
    "resolve_again",
    "runs_folder",
    "shipped_folder",
    "state_folder",
    "state_path",
]
