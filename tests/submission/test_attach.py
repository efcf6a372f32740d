"""A command attached to a rank, in a real bash: it gets the environment of the rank's process."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from clusterctl.launcher.submission.script import part

_SHOWN = "RANK LOCAL_RANK WORLD_SIZE COLOUR SLURM_PROCID TERM"


def test_an_attached_command_gets_the_ranks_variables_and_folder(tmp_path: Path) -> None:
    ranks = {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NTASKS": "8", "COLOUR": "red = blue", "TERM": "rank"}
    show = f'for name in {_SHOWN}; do echo "$name=${{!name}}"; done; pwd -P'
    here = {"PATH": os.environ["PATH"], "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "TERM": "mine"}
    with subprocess.Popen(["sleep", "60"], env={"PATH": os.environ["PATH"], **ranks}, cwd=tmp_path) as rank:
        command = ["bash", "-c", part("attach.sh"), "attach", str(rank.pid), "bash", "-c", show]
        done = subprocess.run(command, env=here, capture_output=True, text=True, check=False)
        rank.kill()
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        *("RANK=3", "LOCAL_RANK=1", "WORLD_SIZE=8", "COLOUR=red = blue", "SLURM_PROCID=0", "TERM=mine"),
        str(tmp_path.resolve()),
    ]
