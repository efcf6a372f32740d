from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.engine.training.loop import Best
from clusterctl.engine.training.objective import Accuracy
from clusterctl.shared.errors import TaskError


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.integers(1, 4))
def test_patience_counts_scores_without_improvement_and_the_first_best_is_kept(
    scores: list[int], patience: int
) -> None:
    values = torch.tensor([0.0])
    best = Best(values, patience)
    seen = []
    for number, score in enumerate(scores):
        values.fill_(number)
        seen.append(score)
        first_best = seen.index(max(seen))
        if best.offer(Accuracy(score, 5)):
            assert number - first_best == patience
            break
        assert number - first_best < patience
    best.restore()
    assert values.item() == first_best


def test_patience_needs_a_validation_split() -> None:
    with pytest.raises(TaskError, match="validation split is empty"):
        Best(torch.zeros(1), 2).offer(Accuracy(0, 0))
