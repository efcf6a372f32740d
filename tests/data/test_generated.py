"""Generated data sets have the documented statistics, and a structure that models can learn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from clusterctl.engine.data import reddit, taobao
from clusterctl.engine.data.data_sets import generate
from clusterctl.engine.data.reddit import read_raw
from clusterctl.engine.data.taobao import BEHAVIOURS, best_auc, read_events
from clusterctl.shared.errors import UsageError

SCALE = 0.001


def area(positive: torch.Tensor, negative: torch.Tensor) -> float:
    """The area under the ROC curve."""
    below = negative.sort().values
    wins = torch.searchsorted(below, positive) + torch.searchsorted(below, positive, right=True)
    return float(wins.double().mean()) / (2 * below.numel())


def test_a_generated_reddit_has_the_documented_statistics() -> None:
    graph = reddit.reddit_like(0.01, seed=3)
    assert graph.num_nodes == 2330
    assert graph.num_features == 602
    assert float(graph.degree.double().mean()) == pytest.approx(
        491, rel=0.08
    )  # minus what the cap on the largest removes
    assert int(graph.degree.max()) <= 2329
    assert sorted(graph.y.unique().tolist()) == list(range(41))
    sources = graph.indices.to(torch.int64)
    targets = torch.arange(graph.num_nodes).repeat_interleave(graph.degree)
    right = (1 - reddit.WRONG_LABELS * 40 / 41) ** 2  # both ends are labelled by their class
    alike = 0.7 + 0.3 / 41
    assert float((graph.y[sources] == graph.y[targets]).double().mean()) == pytest.approx(alike * right, abs=0.02)
    shares = [part.numel() / graph.num_nodes for part in (graph.train, graph.val, graph.test)]
    assert shares == pytest.approx([0.66, 0.10, 0.24], abs=0.001)
    assert torch.cat([graph.train, graph.val, graph.test]).unique().numel() == graph.num_nodes


def test_the_best_accuracy_assumes_that_every_class_is_known() -> None:
    truth = reddit.community(0.2, seed=1)
    accuracy = float((truth.labels == truth.classes).double().mean())
    assert accuracy == pytest.approx(reddit.BEST_ACCURACY, abs=0.004)


def test_pygs_class_reads_a_generated_reddit(tmp_path: Path) -> None:
    reported: list[tuple[int, int]] = []
    best = reddit.write(tmp_path, SCALE, 3, lambda done, total: reported.append((done, total)))
    assert json.loads((tmp_path / "truth.json").read_text())["best_accuracy"] == best == reddit.BEST_ACCURACY
    graph, same = read_raw(tmp_path, tmp_path / "scratch"), reddit.reddit_like(SCALE, 3)
    assert torch.equal(graph.x, same.x)
    assert torch.equal(graph.y, same.y)
    assert torch.equal(graph.test, same.test)
    assert reported[-1] == (same.indices.numel(), same.indices.numel())
    for node in (0, 7, 100):  # PyG drops repeated edges
        own, theirs = (g.indices[g.indptr[node] : g.indptr[node + 1]].unique() for g in (graph, same))
        assert torch.equal(own, theirs)


@pytest.mark.long
def test_a_generated_taobao_has_the_documented_statistics(tmp_path: Path) -> None:
    taobao.write(tmp_path, SCALE, 3)
    lines = [line.split(",") for line in (tmp_path / "raw" / "UserBehavior.csv").read_text().splitlines()]
    assert len(lines) == pytest.approx(100_150, abs=1)
    events = read_events(tmp_path)
    assert len(events.users) == pytest.approx(len(lines), rel=0.001)  # hardly any line is repeated
    assert events.num_users == pytest.approx(988, rel=0.01)
    assert events.num_items == pytest.approx(4162, rel=0.05)
    assert len({line[2] for line in lines}) == 9
    for name, share in zip(BEHAVIOURS, taobao.BEHAVIOUR_SHARES, strict=True):
        assert sum(line[3] == name.decode() for line in lines) / len(lines) == pytest.approx(share, abs=0.01)
    truth = taobao.market(SCALE, 3)
    users, items = (torch.tensor([int(line[column]) - 1_000_000 for line in lines]) for column in (0, 1))
    assert torch.equal(torch.bincount(users, minlength=988), truth.events_of)
    own = (truth.user_taste[users] == truth.item_taste[items]).double().mean()
    assert float(own) == pytest.approx(0.9 + 0.1 / taobao.TASTES, abs=0.02)
    assert (truth.item_category[items] == torch.tensor([int(line[2]) - 1_000_000 for line in lines])).all()


def test_the_best_auc_is_that_of_the_true_rates_and_depends_on_tastes(tmp_path: Path) -> None:
    best = taobao.write(tmp_path, SCALE, 3)
    assert best == best_auc(tmp_path) == pytest.approx(0.94, abs=0.02)
    truth = taobao.market(SCALE, 3)
    users, items = (torch.cat(part) for part in zip(*taobao.events(truth, 3), strict=True))
    others = [torch.randint(count.numel(), (users.numel(),)) for count in (truth.events_of, truth.popularity)]
    known = set(zip(users.tolist(), items.tolist(), strict=True))
    absent = torch.tensor([pair not in known for pair in zip(*(side.tolist() for side in others), strict=True)])
    negative = (others[0][absent], others[1][absent])
    assert area(truth.rate(users, items), truth.rate(*negative)) == pytest.approx(best, abs=0.003)
    popularity = [truth.events_of[pair[0]] * truth.popularity[pair[1]] for pair in ((users, items), negative)]
    assert area(*popularity) < best - 0.08


def test_the_file_depends_on_the_seed(tmp_path: Path) -> None:
    files = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        generate("taobao", 0.0002, seed, tmp_path / name)
        files.append((tmp_path / name / "raw" / "UserBehavior.csv").read_bytes())
    assert files[0] == files[1] != files[2]


def test_an_existing_data_set_is_kept_and_a_failure_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here" / "raw").mkdir(parents=True)
    with pytest.raises(UsageError, match="a data set exists already"):
        generate("taobao", SCALE, 0, tmp_path / "here")

    def full(folder: Path, *_: object) -> float:
        (folder / "raw").mkdir()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(taobao, "write", full)
    with pytest.raises(OSError, match="No space"):
        generate("taobao", SCALE, 0, tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []
