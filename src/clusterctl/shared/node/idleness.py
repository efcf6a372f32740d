"""Detects from outside whether a program that logs no steps is idle: by its output, CPU, disk and GPU use.

The process that runs it checks every few seconds. The idle time is part of the rank's heartbeat, measured by this
process's own clock; a node whose ranks have all been idle for too long raises the alarm, once two checks of all nodes
have found each rank alive and idle (`node_watch`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.shared.node.answers import DUMP_SIGNAL
from clusterctl.shared.node.processes import ProcessTree, Used, has_signal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterctl.shared.record.layout import Attempt
    from clusterctl.shared.record.place import Place

LOOK_SECONDS = 5.0
_LEAST_PROCESSORS = 0.05  # polling threads use less
_LEAST_DISK = 10_000  # bytes per second; loggers and watchers write less
_SPINNING_PERCENT = 95  # an NCCL collective keeps its GPU, and the CPU core that waits for it, busy
_RESTING_PERCENT = 1  # memory activity of a GPU that only waits
_PY_SPY_SECONDS = 3.0
_PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
_SCOPES = {"1": "only its descendants", "2": "nothing without root's permission", "3": "nothing"}


class GpuReading(NamedTuple):
    """One GPU: the percentages of time in which a kernel ran, and in which its memory was accessed."""

    utilisation: float
    memory: float


@dataclass(frozen=True)
class Signs:
    """Measurements of a program: totals since its start, and the current load of its node's GPUs, empty if unknown."""

    used: Used
    output_bytes: int = 0
    gpus: Sequence[GpuReading] = ()


def observe(pid: int, attempt: Attempt, place: Place, gpus: Callable[[], Sequence[GpuReading]]) -> Observer:
    """Observe the program `pid` in a thread until this process ends.

    Even the first check is in the thread: reading /proc of a process that waits for a dead file system may block.
    """
    observer = Observer(pid, attempt, place, gpus)

    def look_forever() -> None:
        while True:
            try:
                observer.look()
            except Exception as error:  # the program must not suffer from an unusual machine
                text = f"idleness is no longer checked: {type(error).__name__}: {error}"
                print(text, file=sys.stderr)  # noqa: T201 - into the rank's log
                observer.idle = 0.0
                return
            time.sleep(LOOK_SECONDS)

    threading.Thread(target=look_forever, name="observer", daemon=True).start()
    return observer


class Observer:
    """Observes the program `pid` of this rank."""

    def __init__(
        self,
        pid: int,
        attempt: Attempt,
        place: Place,
        gpus: Callable[[], Sequence[GpuReading]] = tuple,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.idle = 0.0  # seconds
        self._attempt, self._place, self._gpus, self._clock = attempt, place, gpus, clock
        self._tree = ProcessTree(pid)
        self._time = clock()
        self._last: Signs | None = None  # before the first check
        self._asked_for_stacks = False

    def look(self) -> None:
        """Record the program's activity since the last check, ignoring time in which this process did not run."""
        now, output_bytes = self._clock(), 0
        for stream in ("out", "err"):
            with suppress(OSError):
                output_bytes += self._attempt.log(self._place.rank, stream).stat().st_size
        signs = Signs(self._tree.used(), output_bytes, self._gpus())
        if self._last is None:
            self._time, self._last = now, signs
            return
        if self._asked_for_stacks:  # printing them is not work
            self._last = Signs(self._last.used, signs.output_bytes)
            self._asked_for_stacks = False
        seconds = now - self._time
        if at_work(self._last, signs, seconds) or self._tree.waits_for_disk():
            self.idle = 0.0
        else:
            self.idle += min(seconds, 3 * LOOK_SECONDS)
        self._time, self._last = now, signs

    def stacks(self) -> str:
        """The program's stacks, from faulthandler and py-spy, as far as available, and why there are no more."""
        lines, members = [], self._tree.members()
        for pid in members:
            if has_signal(pid, DUMP_SIGNAL, "SigCgt"):  # otherwise the signal would kill the process
                with suppress(OSError):
                    os.kill(pid, DUMP_SIGNAL)
                    self._asked_for_stacks = True
                    lines.append(f"process {pid} dumps its stacks to the rank's log (signal {DUMP_SIGNAL})")
        if program := shutil.which("py-spy"):
            deadline = time.monotonic() + _PY_SPY_SECONDS
            for pid in members:
                try:
                    lines.append(_py_spy(program, pid, deadline - time.monotonic()))
                except (OSError, subprocess.TimeoutExpired) as error:
                    lines.append(f"no further Python stacks: {error}")
                    break
        else:
            lines.append("no Python stacks: py-spy is not installed in the tasks' environment")
        return "\n".join([*lines, *self._tree.describe()])


def at_work(before: Signs, now: Signs, seconds: float) -> bool:
    """Whether a program did any work in the `seconds` between two checks.

    A busy CPU counts unless all GPUs of the node are busy without memory activity: then it waits for them, as they
    wait for other ranks.
    """
    cpu_seconds, disk_bytes = (after - earlier for after, earlier in zip(now.used, before.used, strict=True))
    if now.output_bytes != before.output_bytes or disk_bytes >= _LEAST_DISK * seconds:
        return True
    if any(gpu.memory > _RESTING_PERCENT for gpu in now.gpus):
        return True
    spinning = bool(now.gpus) and all(gpu.utilisation >= _SPINNING_PERCENT for gpu in now.gpus)
    return not spinning and cpu_seconds >= _LEAST_PROCESSORS * seconds


def _py_spy(program: str, pid: int, seconds: float) -> str:
    argv = [program, "dump", "--nonblocking", "--pid", str(pid)]
    done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=seconds, check=False)
    if done.returncode == 0:
        _, _, stacks = done.stdout.rstrip().partition("\n")  # the first line has the program's arguments
        return f"process {pid}, by py-spy:\n{stacks}"
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    allowed = ""
    with suppress(OSError):
        scope = _PTRACE_SCOPE.read_text().strip()
        if scope in _SCOPES:
            allowed = f" (kernel.yama.ptrace_scope is {scope}: a process may trace {_SCOPES[scope]})"
    return f"no Python stacks of process {pid}: py-spy: {last}{allowed}"
