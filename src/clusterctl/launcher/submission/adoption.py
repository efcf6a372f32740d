"""Records a run's job ID in its directory."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from clusterctl.shared.record.files import exists, write_json

if TYPE_CHECKING:
    from clusterctl.shared.record.layout import ArrayDir, RunDir


def adopt(run: RunDir | ArrayDir, job_id: str) -> None:
    """Record the job of `run`, either from sbatch's answer or when it is found later. The first record is kept."""
    if not exists(run.submission_json):
        write_json(run.submission_json, {"job_id": job_id, "time": time.time()})
