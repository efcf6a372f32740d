"""The resources a run requested and used."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.made_runs import GPUS, NODES, NOW, busy_files

from clusterctl.launcher.config import load_cluster, resolve
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


@pytest.mark.parametrize("job", ["cora", "synthetic", "taobao-generated", "imdb-gin", "command"])
def test_what_to_change_next_time_are_settings_that_submit_takes(fabricate, job: str) -> None:
    evidence = read_evidence(read_record(fabricate()))
    cluster = load_cluster("local")
    own = resolve(job, cluster).job
    evidence = replace(evidence, record=replace(evidence.record, job=own))
    use = use_of(judge(evidence, NOW), History(evidence.record.run), NOW)
    changes = [change for change in (use.larger_batch, use.sooner_checkpoint) if change]
    assert len(changes) == (0 if job == "command" else 2)
    changed = resolve(job, cluster, changes).job
    key = use.larger_batch.partition("=")[0].removeprefix("train.")
    assert not changes or getattr(changed.train, key) == 2 * getattr(own.train, key)
    assert not changes or changed.checkpoint.every == own.checkpoint.every // 2


def test_a_queued_run_has_used_nothing(fabricate) -> None:
    run = fabricate()
    evidence = read_evidence(read_record(run))
    use = use_of(judge(evidence, NOW), History(run), NOW)
    assert (use.held, use.queued, use.gpus, use.split) == (0.0, 0.0, (), {})
