from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from support.ranks import run_program

from clusterctl.engine.task.task import _received
from clusterctl.shared.record.layout import RunDir

PROGRAM = """
import json, os
from torch import distributed as dist
from clusterctl.shared.record.layout import current_attempt
from clusterctl.shared.record.place import Place
from clusterctl.engine.task.task import from_first, to_first
from clusterctl.engine.task.rendezvous import meet
place = Place.from_environment()
dist.init_process_group("gloo", store=meet(place, current_attempt())[0], rank=place.rank, world_size=place.world_size)
def fail():
    if place.rank == 1:
        raise FileNotFoundError(2, "No such file or directory", "/gone")
    return 1
found = [to_first(lambda: {"rank": place.rank, "long": "x" * 1000 * place.rank}, None)]
found.append(from_first(lambda: [None, "é"], None))
for ask in (to_first, from_first):
    try:
        found.append(ask(fail, None))
    except OSError as error:
        found.append(str(error))
print(json.dumps(found), flush=True)
os._exit(0)  # as at the end of a task: torch 2.6 may abort or hang at exit
"""


def test_values_and_failures_reach_every_rank(tmp_path: Path) -> None:
    import json

    outputs = run_program(PROGRAM, RunDir(tmp_path / "run").attempt(0), [3])
    for rank, output in enumerate(outputs):
        gathered, first, failure, fine = json.loads(output)
        assert [entry["rank"] for entry in gathered] == ([] if rank else [0, 1, 2])
        assert [len(entry["long"]) for entry in gathered] == ([] if rank else [0, 1000, 2000])
        assert first == [None, "é"]
        assert failure == "/gone: No such file or directory"
        assert fine == 1


def test_data_that_is_not_json_is_rejected_and_not_unpickled(tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple[object, ...]:
            return Path.touch, (tmp_path / "made",)

    content = bytearray(pickle.dumps(Payload()))
    with pytest.raises(ValueError, match=r"codec|Expecting"):
        _received(torch.frombuffer(content, dtype=torch.uint8), len(content))
    assert not (tmp_path / "made").exists()


def test_tasks_never_unpickle_data_from_peers() -> None:
    """Neither with torch.distributed's object collectives, nor with its checkpoint module, which uses them."""
    import clusterctl

    for path in (Path(clusterctl.__file__).parent / "engine").rglob("*.py"):
        text = path.read_text()
        for forbidden in ("_object(", "object_list", "import pickle", "distributed.checkpoint", "weights_only=False"):
            assert forbidden not in text, f"{path.name} has {forbidden}"
