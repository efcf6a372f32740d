from __future__ import annotations

import json
from pathlib import Path

from support.ranks import run_program

from clusterctl.shared.record.files import read_json
from clusterctl.shared.record.layout import RunDir

PROGRAM = """
import json, os, resource, torch
from torch import distributed as dist
from clusterctl.shared.node.events import Context
from clusterctl.shared.record.layout import current_attempt
from clusterctl.shared.record.place import Place
from clusterctl.engine.task.task import joined

def prepare(folder):
    (folder / f"by-{os.getpid()}").touch()
    with open(task.cache / "calls", "a") as calls:
        calls.write("prepared\\n")

most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (256, most))
place = Place.from_environment()
with joined(Context({"name": "t", "workload": "reddit"}, attempt=current_attempt())) as task:
    world, node = torch.tensor([1.0 + place.rank]), torch.tensor([1.0 + place.rank])
    dist.all_reduce(world)
    dist.all_reduce(node, group=task.node)
    prepared = task.prepared("thing-1", prepare)
    print(json.dumps({
        "world": world.item(), "node": node.item(), "ranks": dist.get_process_group_ranks(task.node),
        "leads": task.leads_node, "device": str(task.device), "backend": dist.get_backend(),
        "files": resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most),
        "prepared": [path.name for path in prepared.iterdir()], "cache": str(task.cache),
    }))
assert not dist.is_initialized()
"""


def test_ranks_on_uneven_nodes_form_groups_and_prepare_once(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "runs" / "a run")
    reported = [json.loads(output) for output in run_program(PROGRAM, run.attempt(0), [2, 1])]
    assert all(rank["files"] for rank in reported)
    assert [rank["world"] for rank in reported] == [6.0, 6.0, 6.0]
    assert [rank["node"] for rank in reported] == [3.0, 3.0, 3.0]  # 1 + 2 on the first node, 3 on the second
    assert [rank["ranks"] for rank in reported] == [[0, 1], [0, 1], [2]]
    assert [rank["leads"] for rank in reported] == [True, False, True]
    assert {(rank["device"], rank["backend"]) for rank in reported} == {("cpu", "gloo")}
    assert len({tuple(rank["prepared"]) for rank in reported}) == len(reported[0]["prepared"]) == 1
    assert (run.data_cache / "calls").read_text() == "prepared\n"
    assert {rank["cache"] for rank in reported} == {str(run.data_cache)}
    assert set(read_json(run.attempt(0).rendezvous)) == {"host", "port"}
