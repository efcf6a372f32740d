"""The nodes' local disk, and the environments to copy there: what `doctor` and `submit` report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.launcher.checks.look import look_at_cluster
from clusterctl.launcher.checks.surroundings import Folder, Seen, Surroundings
from clusterctl.launcher.checks.verify import staging_rules
from clusterctl.shared.spec import Cluster

DISK = Folder("/local", exists=True, writable=True, file_system="xfs")
GOOD = Surroundings(
    cluster=Cluster(name="site", kind="sandbox"),
    runs=Folder("/shared/runs", exists=True, writable=True),
    open_files=65536,
    scratch=DISK,
    environments=(Seen("/shared/env", True),),
)


def messages(found: Surroundings) -> list[str]:
    return [f"{check.verdict} {check.name}: {check.message}" for check in staging_rules(found)]


def test_a_good_setup_has_no_findings() -> None:
    assert messages(GOOD) == []
    assert messages(replace(GOOD, scratch=None)) == []


@pytest.mark.parametrize(
    ("disk", "kind", "message"),
    [
        (replace(DISK, exists=False), "sandbox", "no such folder: /local: ranks import from the shared file system"),
        (replace(DISK, exists=False), "slurm", "not on this machine: /local"),
        (replace(DISK, writable=False), "slurm", "cannot write to /local: ranks import from the shared file system"),
        (replace(DISK, file_system="lustre"), "slurm", "/local is on lustre, not on a local disk"),
    ],
)
def test_an_unusable_disk_is_only_a_warning(disk: Folder, kind: str, message: str) -> None:
    found = replace(GOOD, cluster=Cluster(name="site", kind=kind), scratch=disk)
    assert messages(found) == [f"WARN scratch: {message}"]


def test_a_disk_named_by_a_variable_is_not_checked() -> None:
    assert look_at_cluster(Cluster(name="x", kind="emulator", local_scratch="$TMPDIR")).scratch is None


def test_a_path_that_is_not_an_environment_is_refused() -> None:
    found = replace(GOOD, environments=(Seen("/shared/enw", False),))
    assert messages(found) == ["FAIL environments: not a Python environment: /shared/enw"]
