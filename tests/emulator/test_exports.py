"""Which variables reach a job and its steps."""

from __future__ import annotations

import pytest

from clusterctl.launcher.emulator.variables import exported

CALLER = {"PATH": "/bin", "LR": "1", "OTHER": "2", "SLURM_JOB_ID": "7"}


@pytest.mark.parametrize(
    ("wanted", "has", "lacks"),
    [
        (None, {"LR": "1", "OTHER": "2", "SLURM_JOB_ID": "7"}, set()),
        ("ALL", {"LR": "1", "OTHER": "2"}, set()),
        ("ALL,LR=3", {"LR": "3", "OTHER": "2"}, set()),
        ("LR", {"LR": "1", "SLURM_JOB_ID": "7"}, {"OTHER", "PATH"}),
        ("LR=3,NEW=a=b", {"LR": "3", "NEW": "a=b"}, {"OTHER"}),
        ("NONE", {"SLURM_JOB_ID": "7"}, {"LR", "OTHER"}),
        ("NIL", {"SLURM_JOB_ID": "7"}, {"LR", "PATH", "HOME"}),
    ],
)
def test_export_chooses_variables(wanted: str | None, has: dict[str, str], lacks: set[str]) -> None:
    found = exported(CALLER, wanted)
    assert found.items() >= has.items()
    assert not lacks & set(found)


def test_a_step_follows_its_job_unless_it_chooses_itself(cluster) -> None:
    _, log = cluster.finish("srun env | grep ^LR; srun --export=ALL,LR=5 env | grep ^LR", "--export=LR=3")
    assert log.splitlines() == ["LR=3", "LR=5"]
