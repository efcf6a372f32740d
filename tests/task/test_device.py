from __future__ import annotations

import pytest

from clusterctl.engine.task.rendezvous import Member
from clusterctl.engine.task.task import check_exclusive, choose_device
from clusterctl.shared.errors import TaskError


@pytest.mark.parametrize(
    ("wanted", "requested", "visible", "local_rank", "device"),
    [
        ("auto", 0, 0, 3, "cpu"),
        ("auto", 0, 8, 0, "cpu"),  # the job did not request these GPUs
        ("cpu", 4, 4, 0, "cpu"),
        ("auto", 4, 4, 3, "cuda:3"),
        ("auto", 4, 1, 3, "cuda:0"),  # Slurm restricts the task to one GPU
        ("cuda", 0, 2, 1, "cuda:1"),
    ],
)
def test_each_rank_gets_its_own_device(wanted: str, requested: int, visible: int, local_rank: int, device: str) -> None:
    assert str(choose_device(wanted, requested, visible, local_rank)) == device


@pytest.mark.parametrize(
    ("wanted", "requested", "visible", "local_rank", "message"),
    [
        ("auto", 4, 0, 0, "sees no GPU, but the job needs 4"),
        ("cuda", 0, 0, 0, "sees no GPU"),
        ("auto", 2, 2, 2, "local rank 2 has no GPU of its own: 2 visible"),
    ],
)
def test_a_rank_without_its_gpu_fails(wanted: str, requested: int, visible: int, local_rank: int, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        choose_device(wanted, requested, visible, local_rank)


def test_two_ranks_may_not_share_a_gpu_of_one_node() -> None:
    check_exclusive([Member(0), Member(0), Member(0, "GPU-a"), Member(0, "GPU-b"), Member(1, "GPU-a")])
    with pytest.raises(TaskError, match="ranks 1 and 2 would share one GPU of node 0: GPU-b"):
        check_exclusive([Member(0, "GPU-a"), Member(0, "GPU-b"), Member(0, "GPU-b")])
