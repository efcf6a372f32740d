from __future__ import annotations

import json
from pathlib import Path

from support.ranks import run_program

from clusterctl.shared.record.layout import RunDir

PROGRAM = """
import json, torch
from pathlib import Path
from torch import distributed as dist
from clusterctl.shared.node.events import Context
from clusterctl.shared.record.layout import current_attempt
from clusterctl.shared.record.place import Place
from clusterctl.engine.graph.storage import shared_table
from clusterctl.engine.task.task import joined

def mapped():
    return sum("clusterctl-table" in line for line in Path("/proc/self/maps").read_text().splitlines())

place = Place.from_environment()
with joined(Context({"name": "t", "workload": "reddit"}, attempt=current_attempt())) as task:
    with shared_table(task, (3, 2), torch.bfloat16) as (table, writes):
        table[place.local_rank] = place.rank + 1
        if writes:
            table[2] = 9
    seen = table.tolist()
    dist.barrier()
    maps, shared = mapped(), task.node.size() > 1
    del table
    print(json.dumps([seen, maps == shared, mapped() == 0]))
"""


def test_writes_to_a_shared_table_are_visible_only_within_the_node(tmp_path: Path) -> None:
    outputs = [json.loads(output) for output in run_program(PROGRAM, RunDir(tmp_path).attempt(0), [2, 1])]
    node, lonely = [[1, 1], [2, 2], [9, 9]], [[3, 3], [0, 0], [9, 9]]
    assert [seen for seen, _, _ in outputs] == [node, node, lonely]
    assert all(mapped_once and gone for _, mapped_once, gone in outputs)
