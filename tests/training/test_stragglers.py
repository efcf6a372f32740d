"""Finding the slow rank that the others wait for, from the heartbeats of real ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.ranks import run_program

from clusterctl.launcher.diagnosis.running import stragglers
from clusterctl.shared.record.heartbeats import Beat
from clusterctl.shared.record.layout import RunDir

TRAIN = """
import json, time, torch
from dataclasses import asdict
from torch import distributed as dist, nn
from clusterctl.shared.record.heartbeats import Heart
from clusterctl.shared.record.layout import current_attempt
from clusterctl.shared.record.place import Place
from clusterctl.shared.node.signals import StopRequest
from clusterctl.engine.task.rendezvous import meet
from clusterctl.engine.training.flat import FlatModel
place = Place.from_environment()
store, _ = meet(place, current_attempt())
dist.init_process_group("gloo", store=store, rank=place.rank, world_size=place.world_size)
heart, model = Heart(), nn.Linear(2, 2)
heart.enter("training")
flat = FlatModel(model, heart=heart)
for step in range(1, 21):
    time.sleep(0.06 if place.rank == 1 else 0.01)
    flat.backward(model(torch.ones(1, 2)).sum(), StopRequest())
    heart.beat(step)
print(json.dumps(asdict(heart.beat_at(time.time()))))
"""


@pytest.mark.long
def test_the_slow_rank_is_found_even_if_all_ranks_step_equally_often(tmp_path: Path) -> None:
    outputs = run_program(TRAIN, RunDir(tmp_path / "run").attempt(0), [3])
    beats = {rank: Beat(**json.loads(text)) for rank, text in enumerate(outputs)}
    pace = [beat.step_seconds or 0.0 for beat in beats.values()]
    assert max(pace) < 1.3 * min(pace)
    assert [straggler.rank for straggler in stragglers({rank: beat.busy_seconds for rank, beat in beats.items()})] == [
        1
    ]
