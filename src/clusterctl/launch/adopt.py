"""Note the number of a run's job: by `submit` when sbatch has answered, or later by whoever finds the job."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from clusterctl.runs.files import write_json

if TYPE_CHECKING:
    from clusterctl.runs.layout import RunDir


def adopt(run: RunDir, job_id: str) -> None:
    """Write submission.json, unless it is there: one job a run."""
    if not run.submission_json.exists():
        write_json(run.submission_json, {"job_id": job_id, "time": time.time()})
