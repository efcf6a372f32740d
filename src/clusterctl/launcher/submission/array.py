"""The batch script of a Slurm array, whose elements are runs of one sweep with the same resource request.

.sweeps/<sweep>/<number>/     the folder of an array: shown by squeue, like a run's directory
  array.json                  the run of each element, which executes that run's own script
  logs/<index>.log            a link to the run's slurm.log, where Slurm writes
"""

from __future__ import annotations

import os
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.launcher.submission.sbatch import BatchJob
from clusterctl.launcher.submission.script import part, sbatch_lines
from clusterctl.shared.record.files import write_json
from clusterctl.shared.record.ownership import make_new

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clusterctl.launcher.submission.plan import Plan
    from clusterctl.shared.record.layout import ArrayDir


class Request(NamedTuple):
    """The request to Slurm: runs with equal requests can be elements of one array."""

    options: tuple[tuple[str, str | int | None], ...]
    secrets: tuple[tuple[str, str], ...]  # all elements share sbatch's environment

    @classmethod
    def of(cls, plan: Plan) -> Request:
        return cls((("job-name", plan.name), *plan.options), tuple(sorted(plan.secrets.items())))


def arrays_of(plans: Iterable[Plan], most: int) -> list[list[Plan]]:
    """Group `plans`, in order, into arrays of at most `most` elements with equal requests."""
    alike: dict[Request, list[Plan]] = {}
    for plan in plans:
        alike.setdefault(Request.of(plan), []).append(plan)
    return [group[start : start + most] for group in alike.values() for start in range(0, len(group), most)]


def render_array(array: ArrayDir, plans: Sequence[Plan], at_once: int | None = None) -> str:
    """The batch script; at most `at_once` elements run at the same time."""
    first = plans[0]
    throttle = f"%{at_once}" if at_once else ""
    own = [
        ("chdir", str(array.path)),
        ("output", f"{array.logs}/%a.log"),
        ("open-mode", "append"),
        ("array", f"0-{len(plans) - 1}{throttle}"),
    ]
    return "\n".join(
        [
            "#!/bin/bash",
            *sbatch_lines([*Request.of(first).options, *own]),
            f"# Rendered by clusterctl {first.version}; the run directories are the record of what happened.",
            "",
            part("shell.sh"),
            f"runs={quote(str(first.run.path.parent))}",
            f"element=({' '.join(quote(plan.run.id) for plan in plans)})",
            "",
            part("array.sh"),
        ]
    )


def write_array(array: ArrayDir, plans: Sequence[Plan]) -> None:
    """Create the folder of an array, except for its script, which submitit writes. Raises OSError."""
    for folder in (array.path, array.pickles, array.logs):
        make_new(folder)
    for index, plan in enumerate(plans):
        (array.logs / f"{index}.log").symlink_to(os.path.relpath(plan.slurm_log, array.logs))
    write_json(array.array_json, {"runs": [plan.run.id for plan in plans]})


def batch_of(array: ArrayDir, plans: Sequence[Plan], at_once: int | None, sweep: str) -> BatchJob:
    """The job for sbatch; nothing uses the pickle that submitit writes."""
    first = plans[0]
    script = render_array(array, plans, at_once)
    return BatchJob(script, [*first.task], first.run.path.parent, array.pickles, first.tasks, first.secrets, sweep)
