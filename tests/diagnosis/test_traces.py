"""The evidence on an ended run, gathered from the files of all its ranks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace

import pytest
from support.recorded import write_beat

from clusterctl.launcher.diagnosis import traces
from clusterctl.launcher.diagnosis.diagnose import Diagnosis, diagnose_status, judge
from clusterctl.launcher.diagnosis.traces import gather
from clusterctl.launcher.observe.attempt import read_evidence
from clusterctl.launcher.observe.lines import log_lines
from clusterctl.launcher.observe.run_record import read_record
from clusterctl.launcher.observe.state import Status
from clusterctl.launcher.observe.state import judge as judge_state
from clusterctl.shared.errors import Cause
from clusterctl.shared.record.heartbeats import BEAT_SECONDS, Beat
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.marks import Refusal
from clusterctl.shared.record.states import State

Fabricate = Callable[..., RunDir]
BEGAN = {"time": 1, "event": "began", "host": "host-7", "node": "node7", "pid": 3}
STAGE = {"time": 2, "event": "stage", "stage": "training"}
RAISED = {"time": 3.5, "event": "exception", "type": "ValueError", "message": "no", "traceback": "T", "hint": "do"}
ECHO = {**RAISED, "message": "echo"}
BEAT = Beat(9.0, "training", 2.0, 7, host="host-7")
FILES = {
    "attempts/0/host.json": {"job_id": "7", "start": 1, "end": 10, "exit_code": 1, "signal": "", "nodes": "node7"},
    "attempts/0/host.log": "srun: error: node7: task 1: Exited with exit code 1\n\nsrun: launch\n",
    "attempts/0/events/rank_00000.jsonl": [BEGAN, STAGE, {"time": 4, "event": "exit", "code": 143}],
    "attempts/0/events/rank_00001.jsonl": [BEGAN, STAGE, RAISED, ECHO, {"event": "exit", "code": 1}],
    "attempts/0/nodes/00000.beats": json.dumps({"rank": 1, **asdict(BEAT)}),
    "attempts/0/logs/rank_00001.err": "2026-01-02T03:04:05.678Z Traceback (most recent):\r\n[rank1]: \x1b[31mplain\n",
    "attempts/0/nodes/00000.events.jsonl": [{"rank": 1, "event": "frozen", "stacks": "Current thread"}],
    "attempts/0/collectives/rank_1": "",
    "attempts/0/hang.json": {"time": 8, "seen": 1, "phase": "training", "suspects": [1], "how": "busy"},
    "slurm.log": "one\n=== 0 ===\ntwo\n",
    "cancel.json": {"time": 9, "by": "ada@login1"},
}  # fmt: skip
HOST = {"job_id": "7", "start": 1, "end": 10, "exit_code": 1}


def status_of(run: RunDir) -> Status:
    """Judged from the files, without Slurm."""
    return judge_state(read_evidence(read_record(run)), 99.0)


def test_the_memory_of_a_node_where_a_rank_died_is_its_last_sample(fabricate: Fabricate) -> None:
    samples = [{"time": 8, "memory": 1e9, "memory_limit": 4e9}, {"time": 9, "memory": 3.9e9, "memory_limit": 4e9}]
    files = {"attempts/0/telemetry/node7.jsonl": samples, "attempts/0/telemetry/node8.jsonl": samples}
    (attempt,) = gather(status_of(fabricate(files=FILES | files)), clock=lambda: 99.0).attempts
    assert attempt.memory == {"node7": (3.9e9, 4e9)}
    odd = {"attempts/0/telemetry/node7.jsonl": [{"time": 9, "memory": "much", "memory_limit": None}]}
    (attempt,) = gather(status_of(fabricate(files=FILES | odd)), clock=lambda: 99.0).attempts
    assert attempt.memory == {}


@pytest.mark.parametrize(("late", "arriving"), [(0.0, [False, False]), (70.0, [True, True]), (-1.0, [False, False])])
def test_with_visibility_lag_the_files_of_an_ended_attempt_keep_arriving(
    fabricate: Fabricate, monkeypatch: pytest.MonkeyPatch, late: float, arriving: list[bool]
) -> None:
    run = fabricate(files=FILES | {"attempts/1/host.json": HOST | {"start": 20, "end": 30}})
    monkeypatch.setattr(traces, "lateness", lambda _: abs(late))
    later = 100 if late < 0 else 0
    trace = gather(status_of(run), clock=lambda: time.time() + later)
    assert [attempt.arriving for attempt in trace.attempts] == arriving


def test_everything_written_by_ranks_and_slurm_is_gathered(fabricate: Fabricate) -> None:
    trace = gather(status_of(fabricate(files=FILES)), clock=lambda: 99.0)
    (attempt,) = trace.attempts
    assert (attempt.exit_code, attempt.start, attempt.end, attempt.nodes) == (1, 1, 10, "node7")
    assert attempt.lines == ("srun: error: node7: task 1: Exited with exit code 1", "srun: launch")
    zero, one = attempt.ranks
    assert (zero.node, zero.state, zero.exit_code, zero.raised) == ("node7", "training", 143, None)
    assert one.raised is not None
    assert (one.raised.message, one.raised.hint, one.raised.time) == ("no", "do", 3.5)
    assert (one.beat, one.frozen) == (BEAT, "Current thread")
    assert one.last_words == ("Traceback (most recent):", "[rank1]: plain")
    assert attempt.alarm is not None
    assert (attempt.alarm.suspects, attempt.alarm.how, attempt.collectives) == ((1,), "busy", 1)
    assert (trace.cancelled, trace.slurm_lines[0], trace.now) == ((9.0, "ada@login1"), "one", 99.0)
    assert attempt.job_lines == ("two",)
    assert trace.unknown == ()


def test_causes_codes_and_refusals_are_parsed_and_unknown_ones_are_none(fabricate: Fabricate) -> None:
    ours = {**RAISED, "type": "ProgramEnded", "cause": "killed", "code": 137, "signal": 9}
    files = {
        "attempts/0/host.json": {"exit_code": 137, "refused": "no-progress"},
        "attempts/0/events/rank_00000.jsonl": [BEGAN, ours],
        "attempts/0/events/rank_00001.jsonl": [BEGAN, {**ours, "cause": ["killed"], "code": "1", "signal": None}],
        "attempts/1/host.json": {"exit_code": 1, "refused": "whatever"},
    }
    first, second = gather(status_of(fabricate(files=files))).attempts
    assert (first.refused, second.refused) == (Refusal.NO_PROGRESS, None)
    known, damaged = (rank.raised for rank in first.ranks)
    assert known is not None
    assert damaged is not None
    assert (known.cause, known.code, known.signal) == (Cause.KILLED, 137, 9)
    assert (damaged.cause, damaged.code, damaged.signal) == (None, None, None)


def test_a_missing_log_is_listed_as_unknown(fabricate: Fabricate) -> None:
    files = {name: content for name, content in FILES.items() if "host.log" not in name}
    trace = gather(status_of(fabricate(files=files)))
    assert trace.unknown == ("0/host.log: missing",)
    assert judge(trace).unknown[0] == trace.unknown[0]


@pytest.mark.parametrize("cyclic", [False, True])
def test_a_few_ranks_need_only_the_files_of_their_nodes_unless_tasks_are_cyclic(
    fabricate: Fabricate, cyclic: bool
) -> None:
    files = {f"attempts/0/logs/rank_{rank:05}.err": "" for rank in range(4)} | {"attempts/0/host.json": HOST}
    for node in range(2):
        ranks = (node, node + 2) if cyclic else (2 * node, 2 * node + 1)
        files[f"attempts/0/nodes/{node:05}.events.jsonl"] = [{"rank": rank, **STAGE} for rank in ranks]
    files["attempts/0/host.log"] = "srun: error: node1: task 2: Exited with exit code 1\n"
    (attempt,) = gather(status_of(fabricate(files=files)), most_ranks=1).attempts
    assert [rank.rank for rank in attempt.ranks] == ([0, 1, 2, 3] if cyclic else [2])
    assert attempt.whole == cyclic
    assert all(rank.state == State.TRAINING for rank in attempt.ranks)


def test_both_ends_of_a_long_log_are_read_because_the_first_death_is_at_the_top(fabricate: Fabricate) -> None:
    long = "".join(f"line {number}\n" for number in range(100_000))
    trace = gather(status_of(fabricate(files=FILES | {"attempts/0/host.log": long})))
    lines = trace.attempts[0].lines
    assert (lines[0], lines[-1]) == ("line 0", "line 99999")
    assert set(lines) < set(long.splitlines())


def test_a_log_that_the_status_was_judged_by_is_read_once_unless_it_changes(fabricate: Fabricate) -> None:
    status = status_of(run := fabricate(files=FILES))
    log = run.attempt(0).host_log
    judged_by = log_lines(log, head=True).lines
    assert gather(status).attempts[0].lines is judged_by
    with log.open("a") as file:
        file.write("one more\n")
    assert gather(status).attempts[0].lines == (*judged_by, "one more")


@dataclass
class Nodes:
    """Two nodes of two ranks, node1's clock off by `off` seconds; ranks in `alive` write during sleeps."""

    run: RunDir
    off: float = 0.0
    alive: frozenset[int] = frozenset(range(4))
    now: float = 5000.0

    def write(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            time = self.now + self.off * (rank < 2)
            beat = Beat(
                time, "training", time - 90, 40, time - 0.1, 0.1, 0.2, host=f"node{rank // 2 + 1}", pid=rank + 1
            )
            write_beat(self.run.attempt(0), rank, beat, node=rank // 2)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.write(self.alive)

    def why(self) -> Diagnosis:
        self.write(range(4))
        self.now += 0 if self.alive == frozenset(range(4)) else 60
        self.write(self.alive)
        status = replace(status_of(self.run), state=State.TRAINING)
        return diagnose_status(status, clock=lambda: self.now, sleep=self.sleep)


@pytest.fixture
def nodes(fabricate: Fabricate) -> Nodes:
    events = {
        f"attempts/0/events/rank_0000{rank}.jsonl": [BEGAN | {"node": f"node{rank // 2 + 1}"}] for rank in range(4)
    }
    return Nodes(fabricate(files={"attempts/0/host.json": {"start": 4000}, **events}))


@pytest.mark.parametrize("off", [3600.0, -3600.0, 0.0])
def test_a_wrong_node_clock_does_not_make_ranks_look_silent(nodes: Nodes, off: float) -> None:
    nodes.off = off
    found = nodes.why()
    assert found.headline.cause_class is Cause.HEALTHY
    assert found.headline.facts == ((f"the clock of node1 is off by {off:+.0f} s",) if off else ())
    assert nodes.now <= 5000 + BEAT_SECONDS  # ends once every rank has written


@pytest.mark.parametrize("off", [3600.0, -3600.0, 0.0])
@pytest.mark.parametrize(("alive", "cause", "rank"), [({0, 1}, Cause.NODE, None), ({0, 1, 2}, Cause.HANG, 3)])
def test_a_silent_rank_is_named_whatever_the_node_clocks(
    nodes: Nodes, off: float, alive: set[int], cause: Cause, rank: int | None
) -> None:
    nodes.off, nodes.alive = off, frozenset(alive)
    found = nodes.why().headline
    assert (found.cause_class, found.rank, found.node) == (cause, rank, "node2")


def test_stdout_is_read_only_where_a_rank_failed_with_next_to_nothing_on_stderr(fabricate: Fabricate) -> None:
    run = fabricate(
        files={
            "attempts/0/host.json": HOST,
            **{f"attempts/0/logs/rank_0000{rank}.out": "the end\n" for rank in range(4)},
            **{f"attempts/0/logs/rank_0000{rank}.err": "x\n" * (20 if rank == 1 else 1) for rank in range(4)},
            **{
                f"attempts/0/events/rank_0000{rank}.jsonl": [BEGAN, {"event": "exit", "code": code}]
                for rank, code in enumerate((1, 1, 0, 143))
            },
        }
    )
    (attempt,) = gather(status_of(run)).attempts
    assert [rank.printed for rank in attempt.ranks] == [("the end",), (), (), ()]
