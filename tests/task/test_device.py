from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from clusterctl.engine.task.rendezvous import Member
from clusterctl.engine.task.task import check_exclusive, choose_device, round_to_tf32, use_device
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


@pytest.fixture
def rounding() -> Iterator[Callable[[], tuple[bool, bool]]]:
    flags = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [flag.allow_tf32 for flag in flags]
    yield lambda: (flags[0].allow_tf32, flags[1].allow_tf32)
    for flag, value in zip(flags, before, strict=True):
        flag.allow_tf32 = value


def test_tf32_is_the_same_for_products_and_convolutions(rounding: Callable[[], tuple[bool, bool]]) -> None:
    for is_on in (True, False, True):
        round_to_tf32(is_on)
        assert rounding() == (is_on, is_on)


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("wanted", ["cpu", "cuda"])
def test_a_ranks_gpu_rounds_as_its_job_says_and_a_cpu_is_left_alone(
    wanted: str, tf32: bool, rounding: Callable[[], tuple[bool, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    round_to_tf32(not tf32)
    used: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", used.append)
    use_device(torch.device(wanted, 1 if wanted == "cuda" else None), tf32=tf32)
    assert rounding() == ((tf32, tf32) if wanted == "cuda" else (not tf32, not tf32))
    assert used == ([torch.device("cuda", 1)] if wanted == "cuda" else [])


def test_two_ranks_may_not_share_a_gpu_of_one_node() -> None:
    check_exclusive([Member(0), Member(0), Member(0, "GPU-a"), Member(0, "GPU-b"), Member(1, "GPU-a")])
    with pytest.raises(TaskError, match="ranks 1 and 2 would share one GPU of node 0: GPU-b"):
        check_exclusive([Member(0, "GPU-a"), Member(0, "GPU-b"), Member(0, "GPU-b")])
