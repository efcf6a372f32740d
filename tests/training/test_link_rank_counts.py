"""The same link prediction on 1 and 3 ranks that split the embeddings, started once per number of ranks."""

from __future__ import annotations

from typing import Any

import pytest
from support.ranks import results_of

pytestmark = pytest.mark.long  # test_rank_counts covers node classification in the same way

GLOBAL_BATCH = 24
PROGRAM = f"""
import json, torch
from support.made_graphs import random_shop
from torch import distributed as dist
from clusterctl.engine.graph.embeddings import ShardedTable
from clusterctl.shared.node.events import Context
from clusterctl.shared.record.layout import current_attempt
from clusterctl.shared.record.place import Place
from clusterctl.shared.spec import TaobaoTrain
from clusterctl.engine.task.task import joined
from clusterctl.engine.training.learner import TableAdam
from clusterctl.engine.training.objectives.link import auc
from clusterctl.engine.training.objectives.link import LinkPrediction
from clusterctl.engine.training.loop import fit
from support.ranks import Losses

place = Place.from_environment()
result = {{}}
with joined(Context({{"name": "t", "workload": "taobao"}}, attempt=current_attempt())) as task:
    size = {GLOBAL_BATCH} // place.world_size
    for name, options in {{
        "adam": {{}},
        "touched": dict(row_optimizer="touched-rows", clip_norm=0.05, weight_decay=1e-3, replace=True),
        "patient": dict(patience=1, clip_norm=0.05, lr=0.5),
    }}.items():
        train = TaobaoTrain(**dict(dict(epochs=3, batch_size=size, hidden_channels=6, fan_out=(4, 3), lr=0.01,
                                        precision="float64", evaluate_every=1), **options))
        losses = Losses()
        object.__setattr__(task, "metrics", losses)
        objective = LinkPrediction(random_shop(), train, task)
        score = fit(objective, train, task)
        table = objective.model.table
        result[name] = dict(losses=losses, score=score.value, counts=score[1:])
        result[name] |= dict(rows=table.rows.tolist(), start=table.start)

    # A split table against a whole one: the ranks request different rows, some in common, one rank none.
    torch.manual_seed(place.rank)
    table = ShardedTable(11, 2, seed=5, dtype=torch.float64)
    adam = TableAdam(table, 0.1, 0.0)
    requested = [[0, 10, 4], [4, 9, 1, 0], []]
    own = {{rank: ids for rank, ids in enumerate(requested) if rank % place.world_size == place.rank}}
    mine = sorted({{row for ids in own.values() for row in ids}})
    weights = {{row: sum(1.0 + rank for rank, ids in own.items() if row in ids) for row in mine}}
    result["fetched"] = []
    for _ in range(3):
        rows = table.fetch(table.route(torch.tensor(mine[::-1], dtype=torch.int64)))
        result["fetched"].append(dict(zip(mine[::-1], rows.tolist())))
        scale = torch.tensor([[weights[row]] for row in mine[::-1]], dtype=torch.float64).view(-1, 1)
        (rows * rows.detach().sin() * scale).sum().backward()
        adam.collect()
        adam.step()
    result["table"], result["table_start"] = table.rows.tolist(), table.start

    scores = torch.tensor([3.0, 1.0, 2.0, 2.0, 5.0, 0.0, 2.0, 4.0])
    positive, negative = scores[place.rank::place.world_size], scores.flip(0)[:5][place.rank::place.world_size]
    result["auc"] = auc(positive, negative)
print(json.dumps(result))
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    """Number of ranks -> the results of each rank."""
    return results_of(PROGRAM, tmp_path_factory.mktemp("runs"))


def joined_rows(pieces: list[dict[str, Any]]) -> list[list[float]]:
    """The pieces of all ranks, which must be contiguous."""
    rows: list[list[float]] = []
    for piece in pieces:
        assert piece["start"] == len(rows)
        rows += piece["rows"]
    return rows


@pytest.mark.parametrize("name", ["adam", "touched", "patient"])
def test_in_float64_losses_scores_and_embeddings_are_the_same(
    results: dict[int, list[dict[str, Any]]], name: str
) -> None:
    alone = results[1][0][name]
    assert len(alone["losses"]) >= 20
    assert alone["losses"][-1] < alone["losses"][0]
    for rank in results[3]:
        assert rank[name]["losses"] == pytest.approx(alone["losses"], rel=0, abs=1e-9)
        assert rank[name]["score"] == pytest.approx(alone["score"], rel=0, abs=1e-9)
        assert rank[name]["counts"] == alone["counts"]
    flat = [
        [number for row in joined_rows([rank[name] for rank in ranks]) for number in row] for ranks in results.values()
    ]
    assert flat[1] == pytest.approx(flat[0], rel=0, abs=1e-9)


def test_a_rank_holds_only_its_own_rows(results: dict[int, list[dict[str, Any]]]) -> None:
    assert [len(rank["adam"]["rows"]) for rank in results[3]] == [34, 34, 32]  # of 100


def test_rows_are_fetched_from_their_owner_and_gradients_summed_there(
    results: dict[int, list[dict[str, Any]]],
) -> None:
    pieces = [{"rows": rank["table"], "start": rank["table_start"]} for rank in results[3]]
    alone = [number for row in results[1][0]["table"] for number in row]
    assert [number for row in joined_rows(pieces) for number in row] == pytest.approx(alone, rel=0, abs=1e-12)
    for rank in results[3]:
        for fetched, whole in zip(rank["fetched"], results[1][0]["fetched"], strict=True):
            for row, values in fetched.items():
                assert values == pytest.approx(whole[row], rel=0, abs=1e-12)


def test_auc_counts_pairs_across_ranks(results: dict[int, list[dict[str, Any]]]) -> None:
    assert {tuple(rank["auc"]) for ranks in results.values() for rank in ranks} == {tuple(results[1][0]["auc"])}
    assert results[1][0]["auc"][1:] == [8, 5]
