"""The preflight of a run's container: nothing is submitted that its image or its mounts would stop on a node."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.checks.container import examine
from clusterctl.checks.container_facts import gather
from clusterctl.errors import ConfigError, SlurmError
from clusterctl.launch.plan import brings_code

if TYPE_CHECKING:
    from clusterctl.checks.container import Complaint
    from clusterctl.config import Resolved
    from clusterctl.containers.listener import ProgressListener
    from clusterctl.launch.plan import Plan
    from clusterctl.slurm import Slurm


def fetch_image(plan: Plan, resolved: Resolved, progress: ProgressListener) -> None:
    """Import the image of a reference where no pyxis would; of several submits at a time one does, the others wait.

    Raises ImageError.
    """
    from clusterctl.containers.importing import import_reference

    assert plan.view
    assert resolved.job.container.image
    import_reference(resolved.job.container.image, None, Path(plan.view.image).parent, progress)


def check_container(plan: Plan, resolved: Resolved, slurm: Slurm) -> list[Complaint]:
    """What may go wrong. Raises one error for everything that will: SlurmError without pyxis, else ConfigError."""
    if plan.view is None:
        return []
    cluster = resolved.cluster
    facts = gather(
        plan.view,
        plan.python,
        brings_code=brings_code(resolved.job),
        brings_packages="PYTHONPATH" in resolved.job.env,
        builtin=not cluster.has_pyxis,
        gpus=resolved.job.resources.gpus_per_node or 0,
        made_later=(str(plan.run.path.parent),),
        srun_help=slurm.answer("srun", "--help") if cluster.has_pyxis else None,
        unpacks_here=cluster.kind != "slurm" and not cluster.has_pyxis,
        environment=slurm.environment,
    )
    complaints = examine(facts)
    fatal = [complaint for complaint in complaints if complaint.fatal]
    if not fatal:
        return complaints
    error = SlurmError if fatal[0].of_slurm else ConfigError
    lines = [complaint.message for complaint in fatal]
    message = lines[0] if len(lines) == 1 else "\n".join([f"{len(lines)} problems with the container", *lines])
    raise error(f"container: {message}" if len(lines) == 1 else message, fatal[0].hint)
