from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.training.schedule import clip_norm, rate


@given(st.integers(1, 50))
def test_a_constant_rate_is_constant(steps: int) -> None:
    assert {rate("constant", 0.0, step, steps) for step in range(steps)} == {1.0}


@given(st.sampled_from(["constant", "cosine"]), st.floats(0, 0.99), st.integers(1, 200))
def test_the_rate_climbs_to_one_at_the_end_of_the_warm_up_and_never_falls_to_zero(
    schedule: str, warmup: float, steps: int
) -> None:
    rates = [rate(schedule, warmup, step, steps) for step in range(steps)]
    top = rates.index(max(rates))
    assert max(rates) == 1.0
    assert min(rates) > 0
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert top == max(0, int(warmup * steps + 0.5) - 1)


def test_a_cosine_is_half_way_in_the_middle() -> None:
    assert rate("cosine", 0.0, 50, 100) == pytest.approx(0.5)
    assert rate("cosine", 0.51, 75, 100) == pytest.approx(0.5)  # the climb ends at step 50


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=8), st.floats(0.1, 10))
def test_clipping_is_torchs(values: list[float], bound: float) -> None:
    ours, parameter = torch.tensor(values), torch.nn.Parameter(torch.zeros(len(values)))
    parameter.grad = ours.clone()
    torch.nn.utils.clip_grad_norm_([parameter], bound)
    clip_norm(ours, bound)
    torch.testing.assert_close(ours, parameter.grad)
