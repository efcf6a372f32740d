"""The clock of a training step."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from clusterctl.engine.task.step_clock import StepClock
from clusterctl.shared.record.metrics import STEP_PARTS


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def wait(seconds: float) -> None:
        now[0] += seconds

    return wait


def test_the_parts_of_a_lap_add_up(pass_time: Callable[[float], None]) -> None:
    clock = StepClock()
    clock.restart("sampling")
    for part, seconds in (("gathering", 1.0), ("compute", 2.0), ("communication", 4.0)):
        pass_time(seconds)
        clock.enter(part)
    clock.count(nodes=1600, edges=0)
    pass_time(9.0)
    lap = clock.lap("compute").read()
    assert lap == {
        "seconds": 16.0, "sampling": 1.0, "gathering": 2.0, "compute": 4.0, "communication": 9.0,
        "nodes_per_second": 100,
    }  # fmt: skip


def test_time_after_a_lap_counts_for_the_next_unless_restarted(pass_time: Callable[[float], None]) -> None:
    clock = StepClock()
    clock.restart("sampling")
    pass_time(1.0)
    clock.lap("compute").read()
    pass_time(2.0)  # the optimiser
    clock.enter("sampling")
    pass_time(3.0)
    second = clock.lap("compute").read()
    assert (second["seconds"], second["compute"], second["sampling"]) == (5.0, 2.0, 3.0)
    pass_time(60.0)  # an evaluation
    clock.restart("sampling")
    pass_time(1.0)
    assert clock.lap("compute").read()["seconds"] == 1.0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_parts_measure_gpu_time() -> None:
    clock = StepClock(torch.device("cuda"))
    table = torch.randn(4096, 4096, device="cuda")
    clock.restart("gathering")
    for _ in range(20):
        table = table @ table / 64
    clock.enter("communication")
    float(table.sum())
    lap = clock.lap("compute").read()
    assert lap["gathering"] > lap["communication"] > 0
    assert lap["seconds"] == pytest.approx(sum(lap[part] for part in STEP_PARTS), abs=1e-5)
