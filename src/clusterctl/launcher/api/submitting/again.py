"""Start runs again: the same run from its last checkpoint, or a new run like it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.launcher.api.find import as_run
from clusterctl.launcher.api.remote.operations import operation
from clusterctl.launcher.config.shown import SILENT

if TYPE_CHECKING:
    from clusterctl.launcher.api.run import Run
    from clusterctl.launcher.api.settings import Overrides
    from clusterctl.launcher.config.shown import ProgressListener


@operation(changes=True, restarts=True)
def resume(
    run: Run | str,
    cluster: str | None = None,
    *,
    overrides: Overrides = (),
    hold: bool = False,
    progress: ProgressListener = SILENT,
) -> Run:
    """Start `run`, or the run of that name, again from its last checkpoint: the same run, another attempt.

    It goes to `cluster`, or else to its previous one, with `overrides` applied. Later stages of its job that were
    cancelled with it are submitted again. Raises NotFoundError, UsageError for a run that has not ended or has
    finished, ConfigError with everything that would make it fail, and SlurmError.
    """
    return as_run(run, cluster).resume(cluster, overrides=overrides, hold=hold, progress=progress)


@operation(changes=True, restarts=True)
def rerun(
    run: Run | str,
    cluster: str | None = None,
    *,
    overrides: Overrides = (),
    in_allocation: str | None = None,
    hold: bool = False,
    progress: ProgressListener = SILENT,
) -> Run:
    """Submit a new run with the code and configuration of `run`, which may be in any state, and return it.

    It goes to `cluster`, or else to that of `run`, with `overrides` applied, and starts at the first step. Both are in
    the same runs folder. `in_allocation` and `hold` are as for `submit`.

    Raises NotFoundError, UsageError for other code, ConfigError if the snapshot of the code was removed and for
    everything that would make the run fail, and SlurmError.
    """
    earlier = as_run(run, cluster)
    return earlier.rerun(cluster, overrides=overrides, in_allocation=in_allocation, hold=hold, progress=progress)
