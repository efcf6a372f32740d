from __future__ import annotations

from clusterctl.runs.metrics import score_of


def test_a_score_is_found_whatever_it_counts() -> None:
    assert score_of({"loss": 0.5, "val_accuracy": 0.9}, "val") == ("accuracy", 0.9)
    assert score_of({"test_auc": 0.8, "val_auc": 0.7}, "test") == ("AUC", 0.8)
    assert score_of({"loss": 0.5, "val_auc": 0.7}, "test") is None
