"""A run on disk whose metrics are mirrored to trackers."""

from __future__ import annotations

from typing import Any

from conftest import CREATED, RUN_ID, Fabricate

from clusterctl.shared.record.layout import RUN_FORMAT, RunDir
from clusterctl.shared.spec import Cluster, Job, to_record
from clusterctl.shared.spec.notify import Track


def tracked_run(fabricate: Fabricate, track: Track, files: dict[str, Any] | None = None) -> RunDir:
    """A run of a job called cora, with `files` beside its run.json."""
    job = Job(name="cora", workload="command", argv=("x",), env={"A_TOKEN": "***"}, track=track)
    record = {"schema_version": RUN_FORMAT, "id": RUN_ID, "created": CREATED, "job": to_record(job)}
    return fabricate(RUN_ID, {"run.json": {**record, "cluster": to_record(Cluster(name="site"))}, **(files or {})})
