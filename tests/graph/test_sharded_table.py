from __future__ import annotations

import json
from pathlib import Path

from support.ranks import run_program

from clusterctl.shared.record.layout import RunDir

PROGRAM = """
import json, torch
from clusterctl.engine.graph.embeddings import ShardedTable, whole_weights
from clusterctl.shared.node.events import Context
from clusterctl.shared.record.layout import current_attempt
from clusterctl.shared.record.place import Place
from clusterctl.engine.task.task import joined

place = Place.from_environment()
with joined(Context({"name": "t", "workload": "taobao"}, attempt=current_attempt())):
    model = torch.nn.ModuleDict({"shop": ShardedTable(7, 2, 5, torch.float64), "layer": torch.nn.Linear(2, 1)})
    weights = whole_weights(model)
    print(json.dumps([sorted(weights), weights["shop.rows"].tolist(), len(model["shop"].rows)]))
"""


def test_whole_weights_on_rank_0_have_all_rows_for_any_number_of_ranks(tmp_path: Path) -> None:
    alone, three = (
        [json.loads(line) for line in run_program(PROGRAM, RunDir(tmp_path / str(count)).attempt(0), [1] * count)]
        for count in (1, 3)
    )
    assert alone[0][0] == ["layer.bias", "layer.weight", "shop.rows"]
    assert len(alone[0][1]) == 7
    assert three[0][:2] == alone[0][:2]
    assert [held for _, _, held in three] == [3, 3, 1]
