"""Traces of runs, the input of `clusterctl why`, made by hand, and what torchrun prints when workers have failed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from clusterctl.launcher.diagnosis.traces import AttemptTrace, RankTrace, RunTrace
from clusterctl.launcher.observe.attempt import AttemptEvidence
from clusterctl.launcher.observe.rank_events import Raised
from clusterctl.launcher.observe.run_record import RunRecord
from clusterctl.launcher.observe.state import Status
from clusterctl.shared.errors import Cause
from clusterctl.shared.record.heartbeats import Beat
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.states import State
from clusterctl.shared.spec import Cluster, Data, Job, RedditTrain, Resources

# The defaults are those after a failure.

START, END = 5000.0, 5100.0
RECORD = RunRecord(
    RunDir(Path("/runs/cora-20260102-030405-00a1")),
    START - 60,
    Job(
        name="cora",
        workload="reddit",
        resources=Resources(nodes=2, tasks_per_node=2, time=1200, memory="200M"),
        data=Data(root="/data/it's cora"),
        train=RedditTrain(),
    ),
    Cluster(name="site"),
    argv=("submit", "cora", "--cluster", "site", "--follow"),
)
BEAT = Beat(END - 1, "training", START + 10, 40, END - 2, 0.1, 0.2, 0.1, None, 100)


def rank(number: int, **changes: Any) -> RankTrace:
    """A rank that was terminated, with exit code 143; there are two ranks per node."""
    node = f"node{number // 2 + 1}"
    ended = RankTrace(
        number, node, "training", exit_code=143, ended=END, beat=replace(BEAT, host=node, time=END - 1 + number / 10)
    )
    return replace(ended, **changes)


def raised(message: str, type_: str = "ValueError", time: float = END - 5, **changes: Any) -> Raised:
    return Raised(time, type_, message, f"Traceback (most recent call last):\n{type_}: {message}\n", **changes)


def failed(message: str, type_: str = "ValueError", time: float = END - 5, **changes: Any) -> dict[str, Any]:
    """The fields of a rank that raised an exception: `rank(1, **failed("..."))`."""
    return {"raised": raised(message, type_, time), "exit_code": 1, "ended": time, **changes}


def program_ended(code: int, signal: int | None = None) -> dict[str, Any]:
    """The fields of a rank whose program failed."""
    cause = Cause.KILLED if signal else Cause.USER
    error = raised("python train.py failed", "ProgramEnded", cause=cause, code=code, signal=signal)
    return {"raised": error, "exit_code": code, "ended": error.time}


def attempt(*ranks: RankTrace, lines: str = "", number: int = 0, **changes: Any) -> AttemptTrace:
    given = {one.rank: one for one in ranks}
    every = tuple(given.get(r, rank(r)) for r in range(4))
    made = AttemptTrace(
        number,
        start=START,
        end=END,
        exit_code=1,
        nodes="node[1-2]",
        tasks=4,
        lines=tuple(lines.splitlines()),
        ranks=every,
    )
    return replace(made, **changes)


def trace(*attempts: AttemptTrace, state: State = State.FAILED, sure: bool = True, **changes: Any) -> RunTrace:
    last = AttemptEvidence(number=attempts[-1].number, exit_code=attempts[-1].exit_code) if attempts else None
    status = Status(RECORD, state, sure, "12", (last,) if last else (), False, "", START, END)
    made = RunTrace(status, END + 10, attempts)
    return replace(made, **changes)


# What torchrun prints when workers have failed.

TRACEBACK = """Traceback (most recent call last):
  File "/venv/bin/torchrun", line 8, in <module>
    sys.exit(main())
  File "/venv/lib/python3.11/site-packages/torch/distributed/launcher/api.py", line 264, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""


def entry(number: int, code: int, message: str = "") -> str:
    name = {9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}.get(-code)
    message = message or (f"Signal {-code} ({name}) received by PID {100 + number}" if code < 0 else "To enable ...")
    shown = f"{code} (pid: {100 + number}) {f' ({name})' if name else ''}"
    return f"""[{number}]:
  time      : 2026-11-26_00:46:41
  host      : node{number}
  rank      : {4 + number} (local_rank: {number})
  exitcode  : {shown}
  error_file: <N/A>
  traceback : {message}
"""


def block(root: str, others: str = "  <NO_OTHER_FAILURES>\n") -> str:
    line, rule = "-" * 60, "=" * 60
    head = f"{TRACEBACK}{rule}\ntrain.py FAILED\n{line}\nFailures:\n{others}{line}\n"
    return f"{head}Root Cause (first observed failure):\n{root}{rule}\n"
