"""A sandbox with room for many faults at once, and a small disk to fill."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.matrix import NODES, Ground
from support.sandbox_fixture import RunningSandbox

from clusterctl.launcher.sandbox import lifecycle
from clusterctl.launcher.sandbox.description import SandboxRequest
from clusterctl.launcher.sandbox.lifecycle import check_cgroups
from clusterctl.shared.errors import UsageError


@pytest.fixture
def accounting() -> bool:
    return False


# What sites set differently from a sandbox, in its slurm.conf; a plugin of the site may change each job in silence.
SITES = {
    "no requeue by default": [("JobRequeue=1", "JobRequeue=0")],
    "no requeue": [("JobRequeue=1", "JobSubmitPlugins=lua")],
    "preempted jobs are cancelled": [("PreemptMode=REQUEUE GraceTime=10", "PreemptMode=CANCEL GraceTime=10")],
    "preempted jobs are cancelled at once": [("PreemptMode=REQUEUE GraceTime=10", "PreemptMode=CANCEL GraceTime=0")],
    "no requeue, and preempted jobs are cancelled": [
        ("JobRequeue=1", "JobSubmitPlugins=lua"),
        ("PreemptMode=REQUEUE GraceTime=10", "PreemptMode=CANCEL GraceTime=10"),
    ],
}
NO_REQUEUE = """
function slurm_job_submit(job, partitions, user) job.requeue = 0; return slurm.SUCCESS end
function slurm_job_modify(job, record, partitions, user) return slurm.SUCCESS end
return slurm.SUCCESS
"""


@pytest.fixture
def site() -> str | None:
    return None


def follow_rules(sandbox: RunningSandbox, site: str) -> None:
    """Give the sandbox the rules of `site`."""
    etc = sandbox.folder / "etc"
    text = (etc / "slurm.conf").read_text()
    for usual, other in SITES[site]:
        assert text.count(usual) == 1
        text = text.replace(usual, other)
    (etc / "job_submit.lua").write_text(NO_REQUEUE)
    (etc / "slurm.conf").write_text(text)
    sandbox.call("scontrol", "reconfigure")


@pytest.fixture
def ground(sandbox_home: RunningSandbox, tmp_path: Path, accounting: bool, site: str | None) -> Iterator[Ground]:
    """A sandbox of thirteen nodes, most of them for faults that need nodes of their own."""
    try:
        check_cgroups()
        cgroups = True
    except UsageError:
        cgroups = False
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300m", "tmpfs", str(small)], check=True
    )  # before the nodes start
    try:
        request = SandboxRequest(nodes=NODES, kill_wait=15, cgroups=cgroups, accounting=accounting)
        lifecycle.up(sandbox_home.folder, request)
        if site:
            follow_rules(sandbox_home, site)
        yield Ground(sandbox_home, tmp_path, small)
    finally:
        lifecycle.down(sandbox_home.folder)
        subprocess.run(["umount", "--lazy", str(small)], check=True)
