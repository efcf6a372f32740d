from __future__ import annotations

from pathlib import Path

import pytest
from ranks import losses_of, metrics_of, run_job

from clusterctl.runs.layout import RunDir
from clusterctl.spec import Data, Job, TaobaoTrain
from clusterctl.workloads.generated import taobao
from clusterctl.workloads.taobao_format import read_events


def test_two_ranks_train_on_a_data_set_and_tell_the_best_possible_score(tmp_path: Path) -> None:
    root = tmp_path / "data ü"
    best = taobao.write(root, 0.0003, 0)
    run = RunDir(tmp_path / "runs" / "taobao")
    train = TaobaoTrain(epochs=2, batch_size=512, lr=0.01, hidden_channels=16)
    done = run_job(Job(name="taobao", workload="taobao", data=Data(root=str(root)), train=train), run, [1, 1])
    assert [code for code, _, _ in done] == [0, 0], done
    assert sorted(path.name for path in root.iterdir()) == ["raw", "truth.json"]
    *_, score, known = metrics_of(run)
    assert known["best_possible_auc"] == best
    events = len(read_events(root).users)
    assert score["test_edges"] == pytest.approx(events / 10, rel=0.1)
    assert score["val_auc"] > 0.6
    assert score["test_auc"] > 0.6
    assert len(losses_of(run)) == pytest.approx(2 * 0.8 * events / 1024, abs=2)
    assert f"the best possible on this data is {best:.4f}" in done[0][1]
    assert "val AUC" in done[0][1]
    assert done[1][1] == ""


@pytest.mark.long
@pytest.mark.parametrize("row_optimizer", ["adam", "touched-rows"])
def test_the_planted_tastes_are_found(tmp_path: Path, row_optimizer: str) -> None:
    run = RunDir(tmp_path / "runs" / "taobao")
    train = TaobaoTrain(
        generated=0.002, epochs=20, batch_size=1024, lr=3e-3, evaluate_every=0, row_optimizer=row_optimizer
    )
    done = run_job(Job(name="taobao", workload="taobao", train=train), run, [1, 1], timeout=1200)
    assert [code for code, _, _ in done] == [0, 0], done
    *_, score, known = metrics_of(run)
    print(f"{row_optimizer}: test AUC {score['test_auc']:.4f}, the best possible is {known['best_possible_auc']:.4f}")
    assert score["test_auc"] > known["best_possible_auc"] - 0.05
