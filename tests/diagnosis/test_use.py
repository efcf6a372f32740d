"""The resources a run requested and used."""

from __future__ import annotations

import pytest
from support.made_runs import GPUS, NODES, NOW, busy_files

from clusterctl.launcher.diagnosis.efficiency import use_of
from clusterctl.launcher.observe.attempt import read_evidence
from clusterctl.launcher.observe.history import History
from clusterctl.launcher.observe.run_record import read_record
from clusterctl.launcher.observe.state import judge
from clusterctl.shared.record.states import State


def test_the_use_of_a_busy_run(fabricate) -> None:
    run = fabricate(files=busy_files())
    evidence = read_evidence(read_record(run))
    history = History(run)
    history.update(evidence.attempts)
    use = use_of(judge(evidence, NOW), history, NOW)
    assert len(use.gpus) == NODES * GPUS
    assert (use.queued, use.held, use.longest) == (30.0, 440.0, 240.0)
    assert (use.restarts, use.restarting) == (1, 20.0)
    assert use.undone == pytest.approx(50.0)
    assert use.cpu_busiest == 14.5
    assert use.memory_highest == 93 * 2**30
    assert not use.finished
    seconds = history.attempts[0].state_seconds(NOW)
    assert seconds[State.LOADING] == 14.0
    assert sum(seconds.values()) == pytest.approx(200.0)


def test_a_queued_run_has_used_nothing(fabricate) -> None:
    run = fabricate()
    evidence = read_evidence(read_record(run))
    use = use_of(judge(evidence, NOW), History(run), NOW)
    assert (use.held, use.queued, use.gpus, use.split) == (0.0, 0.0, (), {})
