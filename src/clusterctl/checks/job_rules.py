"""Data, code and request: what the job names exists, and what it asks for fits."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from clusterctl.checks.check import Check, Verdict, fail
from clusterctl.checks.look import data_folder
from clusterctl.checks.size import misfit
from clusterctl.config import shipped_folder
from clusterctl.spec import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.checks.surroundings import Surroundings, WantedRun


def data_rules(found: Surroundings) -> Iterator[Check]:
    wanted = found.wanted
    if wanted is None:
        return
    data = wanted.data
    if data is None:
        yield from _no_data(wanted)
    elif data.visible and not data.there:
        yield fail("data", f"no data: {data.path}: no such folder", "set data.root to the folder of the data set")
    elif data.there and data.missing:
        missing = ", ".join(data.missing)
        yield fail("data", f"no data: {data.path} lacks {missing}", "set data.root to the data set's folder")


def _no_data(wanted: WantedRun) -> Iterator[Check]:
    job = wanted.resolved.job
    parts, data_set = WORKLOADS[job.workload].data, WORKLOADS[job.workload].data_set
    if not parts or getattr(job.train, "generated", None):
        return
    message = f'no data: workload "{job.workload}" needs {" and ".join(parts)}, but data.root is not set'
    folder = data_folder(job.workload)
    if folder is None:  # graph classification: no command brings it, and one comes with clusterctl
        changes = {"data.root": str(shipped_folder() / "data" / "IMDB-BINARY")}
        yield Check("data", Verdict.FAIL, message, "set data.root to the folder of the data set", changes)
        return
    python = wanted.resolved.cluster.python
    where = f" --cluster {shlex.quote(wanted.resolved.cluster.name)}" if python else ""
    first = "" if wanted.data_here else f"clusterctl data generate {data_set} --root {folder}{where}"
    hint = f"or download the real data set first: clusterctl data prepare {data_set} --root DIR{where}"
    yield Check("data", Verdict.FAIL, message, hint, {"data.root": folder}, first)


def code_rules(found: Surroundings) -> Iterator[Check]:
    program = found.wanted.program if found.wanted else None
    if program and not program.there:
        hint = "paths in argv are relative to the job's `code` folder, by default the current one"
        yield fail("program", f"argv: no such file: {program.path}", hint)


def request_rules(found: Surroundings) -> Iterator[Check]:
    wanted = found.wanted
    if wanted and wanted.nodes and (check := misfit(wanted.resolved, wanted.nodes, found.cluster.name)):
        yield check
