"""Reads job and cluster files; every value records its origin.

Names are imported on first use: shell completion needs only the folders, without delay.
"""

TYPE_CHECKING = False  # like typing's; type checkers know the name
if TYPE_CHECKING:
    from clusterctl.launcher.config.clusters import (
        chosen_images_folder,
        chosen_runs_folder,
        cluster_of_jobs,
        load_cluster,
    )
    from clusterctl.launcher.config.places import (
        cache_folder,
        current_folder,
        expanded,
        images_folder,
        names,
        runs_folder,
        shipped_folder,
        state_folder,
        state_path,
    )
    from clusterctl.launcher.config.resolution import Resolved, resolve, resolve_again
    from clusterctl.launcher.config.script_resolution import resolve_script, resolve_script_again

__all__ = [
    "Resolved",
    "cache_folder",
    "chosen_images_folder",
    "chosen_runs_folder",
    "cluster_of_jobs",
    "current_folder",
    "expanded",
    "images_folder",
    "load_cluster",
    "names",
    "resolve",
    "resolve_again",
    "resolve_script",
    "resolve_script_again",
    "runs_folder",
    "shipped_folder",
    "state_folder",
    "state_path",
]
_HOMES = dict.fromkeys(("chosen_images_folder", "chosen_runs_folder", "cluster_of_jobs", "load_cluster"), "clusters")
_HOMES |= dict.fromkeys(("Resolved", "resolve", "resolve_again"), "resolution")
_HOMES |= dict.fromkeys(("resolve_script", "resolve_script_again"), "script_resolution")


if not TYPE_CHECKING:  # so that type checkers still report undefined names

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"clusterctl.launcher.config.{_HOMES.get(name, 'places')}"), name)
