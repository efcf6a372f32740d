"""A report of a busy run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from support.made_runs import NOW, busy_files

from clusterctl.launcher.display.report.page import examine
from clusterctl.launcher.display.report.sections import PostMortem
from clusterctl.shared.errors import SlurmError


class Silent:
    """A Slurm that does not answer: a report needs none."""

    def snapshot(self) -> None:
        raise SlurmError("no answer")

    def accounted(self, job_ids: Sequence[str]) -> None:
        raise SlurmError("no answer")


@pytest.fixture
def examined(fabricate, tmp_path: Path):
    def make(run_id: str = "cora-20260102-030405-00a1", files: dict | None = None) -> PostMortem:
        run = fabricate(run_id, busy_files() if files is None else files)
        return examine(run, run.path, slurm_of=lambda cluster: Silent(), clock=lambda: NOW)

    return make
