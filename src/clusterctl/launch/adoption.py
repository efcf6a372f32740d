"""Which job a run has, noted in the run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from clusterctl.runs.files import exists, write_json

if TYPE_CHECKING:
    from clusterctl.runs.layout import ArrayDir, RunDir


def adopt(run: RunDir | ArrayDir, job_id: str) -> None:
    """Note the job of `run`, when sbatch has answered or later when it is found, unless it is noted: one job a run."""
    if not exists(run.submission_json):
        write_json(run.submission_json, {"job_id": job_id, "time": time.time()})
