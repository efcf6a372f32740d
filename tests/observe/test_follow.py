"""Watching one run: when it ends, and when Slurm is queried."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from clusterctl.launcher.observe.follow import LOOK_SECONDS, Sources, wait, watch
from clusterctl.launcher.slurm import Slurm
from clusterctl.shared.errors import WaitTimedOut
from clusterctl.shared.record.files import Lines, write_json
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.states import State
from clusterctl.shared.spec import Cluster

Fabricate = Callable[..., RunDir]
SITE = Cluster(name="site", polling_floor=10)
SUBMITTED = {"submission.json": {"job_id": "12"}}
HOST = {"job_id": "12", "start": 100}


class Play:
    """A clock that advances only while the watcher sleeps, with actions at given seconds."""

    def __init__(self, state: str | None, **happens: Callable[[], Any]) -> None:
        self.now = 0.0
        self.state = state  # of job 12; None: Slurm does not answer; "": no such job
        self.asked_at: list[float] = []
        self._happens = {float(second.strip("_")): action for second, action in happens.items()}
        self.sources = Sources(lambda _: Slurm(str, {}, self._squeue), lambda: self.now, self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds
        assert self.now < 3600, "the watcher never ends"
        for second in [second for second in self._happens if second <= self.now]:
            self._happens.pop(second)()

    def _squeue(self, argv: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        self.asked_at.append(self.now)
        if self.state is None:
            raise subprocess.TimeoutExpired("squeue", 10)
        line = "\x1f".join(["12", self.state, *["0"] * 6, ""]) if self.state else ""
        return subprocess.CompletedProcess(argv, 0, line, "")


def states(run: RunDir, play: Play) -> list[State]:
    """The states seen, without consecutive duplicates."""
    seen = [status.state for status in watch(run, SITE, play.sources)]
    return [state for state, before in zip(seen, [None, *seen], strict=False) if state is not before]


def test_a_run_is_watched_from_the_queue_to_its_end(fabricate: Fabricate) -> None:
    run = fabricate(files=SUBMITTED)
    events = run.attempt(0)

    def begin() -> None:
        events.path.mkdir(parents=True)
        write_json(events.host_json, HOST)

    play = Play(
        "PENDING",
        _2=begin,
        _3=lambda: Lines(events.events(0)).append({"event": "stage", "stage": "training"}),
        _4=lambda: write_json(run.finished_json, {"attempt": 0, "time": 4}),
    )
    assert states(run, play) == [State.QUEUED, State.STARTING, State.TRAINING, State.FINISHED]
    assert play.asked_at == [0.0], "Slurm was queried although the files had changed"


def test_slurm_is_polled_at_the_clusters_polling_floor_while_a_run_waits(fabricate: Fabricate) -> None:
    run = fabricate(files=SUBMITTED)
    play = Play("PENDING", _35=lambda: write_json(run.finished_json, {}))
    states(run, play)
    assert play.asked_at == [0.0, 10.0, 20.0, 30.0]


def test_slurm_is_not_queried_while_files_change(fabricate: Fabricate) -> None:
    run = fabricate(files=SUBMITTED | {"attempts/0/host.json": HOST})
    metrics = Lines(run.attempt(0).metrics)
    actions = {f"_{second}": lambda s=second: metrics.append({"step": s}) for second in range(1, 60, 5)}
    play = Play("RUNNING", **actions, _61=lambda: write_json(run.finished_json, {}))
    states(run, play)
    assert play.asked_at == [0.0]


def test_a_run_whose_node_failed_ends_once_slurm_reports_it(fabricate: Fabricate) -> None:
    run = fabricate(files=SUBMITTED | {"attempts/0/host.json": HOST})
    play = Play("RUNNING")
    play._happens[5.0] = lambda: setattr(play, "state", "NODE_FAIL")
    assert states(run, play) == [State.STARTING, State.FAILED]
    assert play.now == 10.0


def test_an_unresponsive_slurm_is_polled_with_backoff_and_ends_no_run(fabricate: Fabricate) -> None:
    run = fabricate(files=SUBMITTED)
    play = Play(None, _200=lambda: write_json(run.finished_json, {}))
    assert states(run, play) == [State.QUEUED, State.FINISHED]
    assert play.asked_at == [0.0, 10.0, 30.0, 70.0, 130.0, 190.0]


def test_a_cancelled_run_ends_when_its_job_is_gone(fabricate: Fabricate) -> None:
    run = fabricate(files=SUBMITTED | {"cancel.json": {"time": 1}})
    play = Play("PENDING")
    play._happens[3.0] = lambda: setattr(play, "state", "CANCELLED")
    assert states(run, play) == [State.QUEUED, State.CANCELLED]


def test_waiting_returns_the_final_state(fabricate: Fabricate) -> None:
    run = fabricate(files={"attempts/0/host.json": HOST | {"end": 120, "exit_code": 3, "signal": ""}})
    assert wait(run, SITE, None, Play("").sources) is State.FAILED


def test_waiting_times_out_without_affecting_the_run(fabricate: Fabricate) -> None:
    run = fabricate(files=SUBMITTED)
    play = Play("PENDING")
    with pytest.raises(WaitTimedOut, match="still queued after 5 s") as caught:
        wait(run, SITE, 5.0, play.sources)
    assert caught.value.exit_code == 124
    assert play.now <= 5.0 + LOOK_SECONDS
    assert not run.cancel_json.exists()


def test_waiting_for_an_ended_run_never_times_out(fabricate: Fabricate) -> None:
    run = fabricate(files={"finished.json": {}})
    assert wait(run, SITE, 0.0, Play("").sources) is State.FINISHED


@pytest.mark.parametrize("closely", [False, True])
def test_the_cost_of_watching_does_not_depend_on_nodes_and_attempts(
    fabricate: Fabricate, monkeypatch: pytest.MonkeyPatch, closely: bool
) -> None:
    """Telemetry is read only with `closely`, twice a minute."""
    ended = {f"attempts/{number}/host.json": HOST | {"exit_code": 85} for number in range(20)}
    nodes = {f"attempts/20/telemetry/node{number}.jsonl": [{"time": 1}] for number in range(50)}
    run = fabricate(files=SUBMITTED | ended | nodes | {"attempts/20/host.json": HOST})
    opened: list[str] = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest, **named: opened.append(str(path)) or real(path, *rest, **named))
    play = Play("RUNNING", _10=opened.clear, _70=lambda: write_json(run.finished_json, {"attempt": 20}))
    assert [status.state for status in watch(run, SITE, play.sources, closely=closely)][-1] is State.FINISHED
    of_nodes = [path for path in opened if "telemetry" in path]
    assert len(of_nodes) == (2 * 13 if closely else 0)  # every fourth node represents all
    assert len(opened) - len(of_nodes) < 60 * 10
    assert not [path for path in opened if "attempts/7/" in path]
