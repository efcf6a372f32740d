from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.engine.training.learner import clip_norm
from clusterctl.engine.training.optimizer import lr_scale


@given(st.integers(1, 50))
def test_a_constant_rate_is_constant(steps: int) -> None:
    assert {lr_scale("constant", 0.0, step, steps) for step in range(steps)} == {1.0}


@given(st.sampled_from(["constant", "cosine"]), st.floats(0, 0.99), st.integers(1, 200))
def test_the_scale_peaks_at_one_after_warmup_and_never_reaches_zero(schedule: str, warmup: float, steps: int) -> None:
    scales = [lr_scale(schedule, warmup, step, steps) for step in range(steps)]
    top = scales.index(max(scales))
    assert max(scales) == 1.0
    assert min(scales) > 0
    assert scales[: top + 1] == sorted(scales[: top + 1])
    assert scales[top:] == sorted(scales[top:], reverse=True)
    assert top == max(0, int(warmup * steps + 0.5) - 1)


def test_cosine_is_at_half_in_the_middle() -> None:
    assert lr_scale("cosine", 0.0, 50, 100) == pytest.approx(0.5)
    assert lr_scale("cosine", 0.51, 75, 100) == pytest.approx(0.5)  # warmup ends at step 50


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=8), st.floats(0.1, 10))
def test_clipping_matches_torch(values: list[float], bound: float) -> None:
    ours, parameter = torch.tensor(values), torch.nn.Parameter(torch.zeros(len(values)))
    parameter.grad = ours.clone()
    torch.nn.utils.clip_grad_norm_([parameter], bound)
    clip_norm(ours, bound)
    torch.testing.assert_close(ours, parameter.grad)
