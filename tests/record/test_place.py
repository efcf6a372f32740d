"""Rank and node from the environment."""

from __future__ import annotations

import pytest

from clusterctl.shared.errors import TaskError
from clusterctl.shared.record.place import Place

SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
}
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "x",
    "RANK": "5",
    "LOCAL_RANK": "2",
    "GROUP_RANK": "1",
    "WORLD_SIZE": "6",
    "GROUP_WORLD_SIZE": "2",
}


def test_the_place_comes_from_slurms_variables() -> None:
    assert Place.from_environment(SLURM) == Place(rank=3, local_rank=1, node_rank=1, world_size=4, nodes=2)


def test_torchruns_variables_take_precedence_in_an_allocation() -> None:
    assert Place.from_environment(SLURM | TORCHRUN) == Place(rank=5, local_rank=2, node_rank=1, world_size=6, nodes=2)


def test_without_either_there_is_one_task() -> None:
    assert Place.from_environment({}) == Place()


def test_an_invalid_variable_is_named_in_the_error() -> None:
    with pytest.raises(TaskError, match="SLURM_PROCID"):
        Place.from_environment(SLURM | {"SLURM_PROCID": "x"})
