from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterctl.engine.task.task import Task
from clusterctl.engine.training.objectives.link import Auc, auc

SCORES = st.lists(st.integers(-3, 3), max_size=12)  # few values: many ties


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(SCORES, SCORES)
def test_auc_is_the_share_of_correctly_ordered_pairs_with_ties_counting_half(
    lone_task: Task, positive: list[int], negative: list[int]
) -> None:
    found = auc(torch.tensor(positive, dtype=torch.float32), torch.tensor(negative, dtype=torch.float32))
    wins = sum(2 * (above > below) + (above == below) for above in positive for below in negative)
    assert found == Auc(wins, len(positive), len(negative))
    pairs = len(positive) * len(negative)
    assert found.value == (pytest.approx(wins / (2 * pairs)) if pairs else 0.0)
    assert found.total == len(positive)
