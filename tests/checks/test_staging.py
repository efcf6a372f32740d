"""The nodes' own disk, and the environments to copy there: what `doctor` and `submit` say of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.checks.look import look_at_cluster
from clusterctl.checks.staging_rules import staging_rules
from clusterctl.checks.surroundings import Folder, Seen, Surroundings
from clusterctl.spec import Cluster

DISK = Folder("/local", exists=True, writable=True, file_system="xfs")
GOOD = Surroundings(
    cluster=Cluster(name="site", kind="sandbox"),
    runs=Folder("/shared/runs", exists=True, writable=True),
    open_files=65536,
    scratch=DISK,
    environments=(Seen("/shared/env", True),),
)


def said(found: Surroundings) -> list[str]:
    return [f"{check.verdict} {check.name}: {check.message}" for check in staging_rules(found)]


def test_what_is_as_it_should_be_is_not_mentioned() -> None:
    assert said(GOOD) == []
    assert said(replace(GOOD, scratch=None)) == []


@pytest.mark.parametrize(
    ("disk", "kind", "words"),
    [
        (replace(DISK, exists=False), "sandbox", "no such folder: /local: ranks import from the shared file system"),
        (replace(DISK, exists=False), "slurm", "not on this machine: /local"),
        (replace(DISK, writable=False), "slurm", "cannot write to /local: ranks import from the shared file system"),
        (replace(DISK, file_system="lustre"), "slurm", "/local is on lustre, not on a local disk"),
    ],
)
def test_a_disk_that_would_not_do_is_warned_of_as_ranks_do_without(disk: Folder, kind: str, words: str) -> None:
    found = replace(GOOD, cluster=Cluster(name="site", kind=kind), scratch=disk)
    assert said(found) == [f"WARN scratch: {words}"]


def test_a_disk_that_only_a_node_can_name_is_not_looked_at() -> None:
    assert look_at_cluster(Cluster(name="x", kind="emulator", local_scratch="$TMPDIR")).scratch is None


def test_an_environment_that_is_none_is_refused() -> None:
    found = replace(GOOD, environments=(Seen("/shared/enw", False),))
    assert said(found) == ["FAIL environments: not a Python environment: /shared/enw"]
