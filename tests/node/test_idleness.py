"""Whether a program that logs no steps is working, and when all of its ranks count as stuck."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scenario import wait_until

from clusterctl.shared.node.idleness import GpuReading, Observer, Signs, at_work, observe
from clusterctl.shared.node.node_watch import all_idle
from clusterctl.shared.node.processes import ProcessTree, Used
from clusterctl.shared.record.heartbeats import ENDED, Beat, idle_together
from clusterctl.shared.record.layout import Attempt, RunDir
from clusterctl.shared.record.place import Place

WAITING, COMPUTING, RESTING = GpuReading(100, 0), GpuReading(100, 30), GpuReading(0, 0)
BEFORE = Signs(Used(100.0, 10**9), 5000)


def after(cpu: float = 0.0, disk: int = 0, output: int = 0, gpus: tuple[GpuReading, ...] = ()) -> Signs:
    return Signs(Used(100.0 + cpu, 10**9 + disk), 5000 + output, gpus)


@pytest.mark.parametrize(
    ("now", "works"),
    [
        (after(), False),
        (after(cpu=0.1), False),  # threads that poll
        (after(cpu=0.3), True),
        (after(output=1), True),
        (after(disk=4096), False),  # a logger
        (after(disk=10**6), True),  # a download
        (after(cpu=5.0, gpus=(WAITING, WAITING)), False),  # both spin in a collective
        (after(cpu=5.0, gpus=(WAITING, RESTING)), True),  # one rank evaluates on the CPU, the other waits
        (after(cpu=5.0, gpus=(WAITING, COMPUTING)), True),
        (after(cpu=5.0, gpus=(RESTING,)), True),
        (after(gpus=(RESTING,)), False),
        (after(gpus=(COMPUTING,)), True),  # while the CPU is idle
        (after(cpu=5.0, output=1, gpus=(WAITING,)), True),
    ],
)
def test_output_cpu_disk_and_gpu_memory_traffic_are_signs_of_work(now: Signs, works: bool) -> None:
    assert at_work(BEFORE, now, 5.0) is works


IDLE = Beat(1000.0, "training", 900.0, pid=11, host="node1", idle=2000.0)


def two_looks(*ranks: Beat) -> tuple[dict[int, Beat], dict[int, Beat]]:
    """Two looks at the heartbeats; all ranks have written in between."""
    later = {rank: replace(beat, time=beat.time + 5) for rank, beat in enumerate(ranks)}
    return dict(enumerate(ranks)), later


@pytest.mark.parametrize(
    ("ranks", "stuck"),
    [
        ([IDLE, IDLE], True),
        ([IDLE, replace(IDLE, idle=0.0)], False),  # only rank 1 evaluates, for half an hour
        ([IDLE, replace(IDLE, idle=1799.0)], False),
        ([IDLE, replace(IDLE, idle=None, step=4)], False),  # it logs steps, so those are watched
        ([IDLE, replace(IDLE, phase=ENDED, idle=None)], True),  # it has exited, and the others wait for it
        ([replace(IDLE, phase=ENDED)] * 2, False),
        ([], False),
    ],
)
def test_all_remaining_ranks_must_be_idle(ranks: list[Beat], stuck: bool) -> None:
    assert all_idle(*two_looks(*ranks), 1800, len(ranks)) is stuck


def test_a_silent_rank_may_be_busy() -> None:
    earlier, later = two_looks(IDLE, IDLE)
    assert not all_idle(earlier, later | {1: earlier[1]}, 1800, 2)
    assert not all_idle({0: earlier[0]}, later, 1800, 2)
    assert not all_idle(earlier, later, 1800, 3), "one has not written yet"


@given(st.lists(st.tuples(st.floats(0, 4000), st.floats(-1e5, 1e5)), min_size=1, max_size=9))
def test_skewed_clocks_neither_cause_nor_hide_an_alarm(ranks: list[tuple[float, float]]) -> None:
    beats = [replace(IDLE, idle=idle, time=1e6 + off, since=off) for idle, off in ranks]
    assert all_idle(*two_looks(*beats), 1800, len(beats)) == all(idle >= 1800 for idle, _ in ranks)


def test_the_common_idle_time_is_the_shortest_once_all_ranks_are_known() -> None:
    shorter = replace(IDLE, idle=70.0)
    assert idle_together([IDLE, shorter], 2) == 70
    assert idle_together([IDLE, shorter], 3) is None
    assert idle_together([IDLE, replace(IDLE, idle=None)], 2) is None
    assert idle_together([IDLE, replace(IDLE, phase=ENDED, idle=None)], 2) == 2000
    assert idle_together([], 0) is None


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    made = RunDir(tmp_path / "run").attempt(0)
    for folder in ("logs", "heartbeats"):
        (made.path / folder).mkdir(parents=True)
    return made


WAIT_FOR_A_LINE = "import sys, time\nprint('ready', flush=True)\nsys.stdin.readline()\n"


@contextmanager
def observed(attempt: Attempt, program: str, **settings: object) -> Iterator[tuple[Observer, list[float]]]:
    """An observer of `program`, which starts within the block, and a clock that the test advances."""
    argv = [sys.executable, "-c", WAIT_FOR_A_LINE + program]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        clock = [0.0]
        place = Place(world_size=2)
        observer = Observer(process.pid, attempt, place, clock=lambda: clock[0], **settings)  # type: ignore[arg-type]
        observer.look()
        for _ in range(4):
            clock[0] += 5
            observer.look()
        assert observer.idle == 20
        process.stdin.write(b"go\n")
        process.stdin.flush()
        try:
            yield observer, clock
        finally:
            os.killpg(process.pid, 9)


def looks(observer: Observer, clock: list[float], seconds: float = 0.1) -> bool:
    """Look again after `seconds`; return whether the program was working."""
    clock[0] += seconds
    observer.look()
    return observer.idle == 0


def test_an_unreadable_process_does_not_block_the_task(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    looked, ended = threading.Event(), threading.Event()

    def used(_: ProcessTree) -> Used:
        looked.set()
        ended.wait(60)
        raise OSError

    monkeypatch.setattr(ProcessTree, "used", used)
    assert observe(os.getpid(), attempt, Place(), tuple).idle == 0.0
    assert looked.wait(60)
    ended.set()


COMPUTE = "for _ in range(10**10): pass"
IN_A_THREAD = (
    f"import threading\nthreading.Thread(target=lambda: exec({COMPUTE!r}), daemon=True).start()\ntime.sleep(600)"
)
IN_A_CHILD = f"import subprocess\nsubprocess.run([sys.executable, '-c', {COMPUTE!r}])"


@pytest.mark.parametrize("program", [COMPUTE, IN_A_THREAD, IN_A_CHILD])
def test_a_program_that_computes_in_any_thread_or_child_is_at_work(attempt: Attempt, program: str) -> None:
    with observed(attempt, program) as (observer, clock):
        wait_until(lambda: looks(observer, clock), what="the computation to be seen")


def test_idle_time_is_measured_by_the_observers_clock(attempt: Attempt) -> None:
    with observed(attempt, "time.sleep(600)") as (observer, clock):
        assert not looks(observer, clock, 5)
        looks(observer, clock, 3600)  # the machine was suspended
        assert 20 < observer.idle <= 40


def test_a_program_that_prints_is_at_work(attempt: Attempt) -> None:
    with observed(attempt, "time.sleep(600)") as (observer, clock):
        attempt.log(0).write_text("epoch 3\n")
        assert looks(observer, clock)
        assert not looks(observer, clock, 5)
        attempt.log(0, "err").write_text("warning\n")
        assert looks(observer, clock)


def test_a_program_whose_gpu_moves_data_is_at_work_even_if_the_cpu_is_idle(attempt: Attempt) -> None:
    gpus = [RESTING]
    with observed(attempt, "time.sleep(600)", gpus=lambda: gpus) as (observer, clock):
        gpus[0] = COMPUTING
        assert looks(observer, clock)


FAULTHANDLER = """
import faulthandler, signal
faulthandler.register(signal.SIGRTMIN + 5, open({path!r}, "w"))
def deadlock():
    open({path!r} + ".set", "w").close()
    time.sleep(600)
deadlock()
"""


def test_only_a_program_that_registered_faulthandler_is_signalled(attempt: Attempt, tmp_path: Path) -> None:
    path = tmp_path / "stacks"
    with observed(attempt, FAULTHANDLER.format(path=str(path))) as (observer, clock):
        wait_until(Path(f"{path}.set").exists)
        assert "dumps its stacks to the rank's log" in observer.stacks()
        wait_until(lambda: "in deadlock" in path.read_text(), what="faulthandler")
        looks(observer, clock, 5)
    with observed(attempt, "time.sleep(600)") as (observer, clock):
        text = observer.stacks()
        assert "dumps its stacks" not in text
        assert not looks(observer, clock, 5)
        assert "process " in observer.stacks(), "it is alive"


def py_spy(folder: Path, text: str) -> None:
    path = folder / "py-spy"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_stacks_come_from_py_spy_or_explain_why_not(
    attempt: Attempt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with observed(attempt, "time.sleep(600)") as (observer, _):
        py_spy(tmp_path, "echo 'Process 1: python --token=secret'; echo '    all_reduce (distributed_c10d.py:2501)'")
        assert "by py-spy:\n    all_reduce (distributed_c10d.py:2501)" in observer.stacks()
        assert "secret" not in observer.stacks()
        scope = tmp_path / "scope"
        scope.write_text("2\n")
        monkeypatch.setattr("clusterctl.shared.node.idleness._PTRACE_SCOPE", scope)
        py_spy(tmp_path, "echo 'Permission Denied' >&2; exit 1")
        text = observer.stacks()
        assert "py-spy: Permission Denied (kernel.yama.ptrace_scope is 2" in text
        (tmp_path / "py-spy").unlink()
        monkeypatch.setenv("PATH", str(tmp_path))
        assert "py-spy is not installed" in observer.stacks()
