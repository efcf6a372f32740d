"""For a user's own program (`workload = "command"`): metrics, checkpoints, stop requests, restart requests.

    import clusterctl.program as run

    run.log(step=step, loss=loss)              # rank 0 writes; other ranks ignore it
    folder = run.latest_checkpoint()           # None at the first start
    ...
    if rank == 0 and step % 1000 == 0:
        with run.checkpoint(step) as folder:   # renamed into place when complete
            torch.save(state, folder / "state.pt")
    if run.stop_requested():                   # all ranks must agree before they exit: see docs/guides/surviving.md
        run.request_restart(step)              # does not return

Outside a run nothing is written, no stop is requested, and there is no checkpoint.
"""

from __future__ import annotations

import atexit
import math
import os
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from clusterctl.shared.errors import Cause, TaskError, reason
from clusterctl.shared.record import checkpoints, marks
from clusterctl.shared.record.heartbeats import Heart
from clusterctl.shared.record.layout import RunDir, current_attempt
from clusterctl.shared.record.marks import EXIT_RESTART
from clusterctl.shared.record.metrics import MetricsWriter, as_number, say_once
from clusterctl.shared.record.place import Place
from clusterctl.shared.record.states import State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.shared.record.layout import Attempt
    from clusterctl.shared.record.metrics import Number

STOP_FILE = "CLUSTERCTL_STOP_FILE"  # created at the warning; one per task, on its node
RESTART_FILE = "CLUSTERCTL_RESTART_FILE"  # creating this file requests a restart
CHECKPOINTS = "CLUSTERCTL_CHECKPOINTS"
KEEP = "CLUSTERCTL_CHECKPOINTS_KEPT"
ROLE = "CLUSTERCTL_ROLE"  # of this program, in a job with several
LEADS = "CLUSTERCTL_ROLE_LEADS"  # set if its rank 0 logs the metrics of the run
_LOOK_SECONDS = 0.2
_CHOICE_SECONDS = 300.0  # rank 0 may still be starting, or verifying checkpoints
_ARRIVAL_SECONDS = 90.0  # until a checkpoint seen by rank 0 is visible here
_LETTING_GO_SECONDS = 0.05
_asked: set[Attempt] = set()  # attempts in which this process has asked for a checkpoint


def log(**values: Number) -> None:
    """Record numbers of the running program: `log(step=3, loss=0.7)`; `clusterctl status` shows them.

    For `workload = "command"`. Call it on every rank: the values of rank 0 are stored, and each rank's `step` is its
    heartbeat, which lets the watchdog and `clusterctl why` find a stuck rank. Outside a run it does nothing, so a
    program can always call it. It never raises: numbers of NumPy and torch are converted, and what is no number, or
    cannot be written, is left out with a line on stderr.
    """
    if "step" in values and type(values["step"]) is not int:
        step = as_number("step", values.pop("step"))
        values |= {} if step is None else {"step": int(step) if math.isfinite(step) and step == int(step) else step}
    try:
        _writer().write(**values)
    except Exception as error:
        say_once(f"metrics are not written: {reason(error)}")
    if type(step := values.get("step")) is int:
        try:
            _heart().beat(step)
        except Exception as error:
            say_once(f"heartbeats are not sent: {reason(error)}")


def phase(name: str) -> None:
    """Report the program's current phase if it is not training: "loading", "evaluating", "checkpointing".

    The watchdog waits longer in these phases; pass "training" when steps continue. An unknown phase is left out with a
    line on stderr.
    """
    try:
        _heart().enter(State(name).value)
    except Exception as error:
        say_once(f"phase {name!r} is not reported: {reason(error)}")


def stop_requested() -> bool:
    """Whether this run was warned of its time limit or a preemption. Cheap enough for every step."""
    path = os.environ.get(STOP_FILE)
    return path is not None and os.path.exists(path)  # noqa: PTH110 - a microsecond


def latest_checkpoint() -> Path | None:
    """The newest complete checkpoint that this attempt may resume from; all ranks use rank 0's choice.

    Call it on all ranks, or only on rank 0. On further calls, or if torchrun has restarted the program within this
    attempt, each rank decides for itself. Raises TaskError if rank 0 does not choose in time, or if its choice does not
    become visible on this node.
    """
    attempt = current_attempt()
    if attempt is None:
        return None
    first = attempt not in _asked and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0" and _leads()
    _asked.add(attempt)
    if first and _rank() != 0:
        return _take_rank_0s(attempt)
    for folder in checkpoints.candidates(attempt):
        wrong = _wrong_with(folder)
        if not wrong:
            chosen = folder
            break
        if first:
            print(f"checkpoint {folder.name} is passed over: {wrong}", flush=True)  # noqa: T201 - into the rank's log
    else:
        chosen = None
    if first:
        checkpoints.note_origin(attempt, chosen)
    return chosen


@contextmanager
def checkpoint(step: int) -> Iterator[Path]:
    """A new folder for the checkpoint of `step`, which is complete when the block ends without an error.

    Call it on one rank. Only the newest few checkpoints are kept (`[checkpoint] keep`), and the one that this attempt
    resumed from. Raises Superseded if a newer attempt of the run has started: results of this one no longer count.
    """
    attempt, step = current_attempt(), whole_step(step)
    if attempt is None:
        with tempfile.TemporaryDirectory(prefix="checkpoint-") as name:
            yield Path(name)
        return
    aside = checkpoints.write_aside(attempt, step)
    try:
        yield aside
        checkpoints.complete(attempt, aside, {"fingerprint": None})
    except BaseException:
        checkpoints.remove(aside)
        raise
    with suppress(OSError):  # the next checkpoint will prune
        # A rank that starts late still needs what rank 0 resumed from: nothing tells when the last one has read it.
        origin = checkpoints.read_origin(attempt)
        checkpoints.prune(attempt, int(os.environ.get(KEEP, "2")), spared=origin.name if origin else None)


def request_restart(step: int | None = None) -> NoReturn:
    """Exit and have the run restarted (requested by rank 0). Call it on all ranks, after the last checkpoint.

    The other ranks wait up to a minute for rank 0, since srun ends all ranks when the first one exits. With `step`, a
    run that got no further than at its last request is not restarted.
    """
    attempt = current_attempt()
    step = None if step is None else whole_step(step)
    if attempt is not None and _rank() == 0:
        marks.request_restart(attempt, "warned", step=step)
    elif attempt is not None:
        marks.wait_for_request(attempt)
    raise SystemExit(EXIT_RESTART)


def whole_step(step: Any) -> int:
    """A step, which may be a number of NumPy or torch."""
    return int(step.item() if hasattr(step, "item") else step)


def _take_rank_0s(attempt: Attempt) -> Path | None:
    """Wait for rank 0's choice, since files do not become visible on all nodes at the same time.

    See docs/decisions/late-and-weak-file-systems.md.
    """
    deadline = time.monotonic() + _CHOICE_SECONDS
    while (origin := checkpoints.read_origin(attempt)) is None:
        if time.monotonic() > deadline:
            message = f"rank 0 did not choose a checkpoint within {_CHOICE_SECONDS:.0f} s"
            raise TaskError(message, "call latest_checkpoint() on rank 0 as well")
        time.sleep(_LOOK_SECONDS)
    if origin.name is None:
        return None
    folder = RunDir(attempt.path.parents[1]).checkpoints / str(origin.name)
    deadline = time.monotonic() + _ARRIVAL_SECONDS
    while wrong := _wrong_with(folder):
        if time.monotonic() > deadline:
            raise TaskError(f"checkpoint {folder.name}, which rank 0 resumes from: {wrong}", cause=Cause.NODE)
        time.sleep(_LOOK_SECONDS)
    return folder


def _wrong_with(folder: Path) -> str:
    manifest = checkpoints.read_manifest(folder)
    return "it is incomplete" if manifest is None else checkpoints.damage(folder, manifest)


@cache
def _writer() -> MetricsWriter:
    writer = MetricsWriter(current_attempt(), _rank())
    atexit.register(writer.write_left_out)
    atexit.register(_let_go)
    return writer


@cache
def _heart() -> Heart:
    """This program's heart: from the first step on, it sends the rank's heartbeats."""
    heart, attempt = Heart(), current_attempt()
    heart.enter(State.TRAINING)
    if attempt is not None and (place := _task_of_this()) is not None:
        from clusterctl.shared.node.answers import beating  # late: not needed by a program that logs no steps

        beating(heart, attempt, place)
    return heart


def _leads() -> bool:
    """Whether this process's metrics and choices are the run's: in a job with roles, those of one role are."""
    return ROLE not in os.environ or LEADS in os.environ


def _rank() -> int:
    """Its rank among the processes that lead; not 0 for any other."""
    if ROLE not in os.environ:
        return Place.from_environment().rank
    return int(os.environ.get("RANK", "1")) if _leads() else 1


def _task_of_this() -> Place | None:
    """Whose heartbeats it sends; nobody's if another worker of its torchrun does, in a job with roles."""
    if ROLE not in os.environ:
        return Place.from_environment()
    if os.environ.get("TORCHELASTIC_RUN_ID") and os.environ.get("LOCAL_RANK") != "0":
        return None
    return Place.from_environment({name: text for name, text in os.environ.items() if name != "TORCHELASTIC_RUN_ID"})


def _let_go() -> None:
    """Let torch's threads run once more before the interpreter shuts down.

    A gloo thread that frees its last work during shutdown is killed by Python and takes the process with it: "terminate
    called without an active exception" (torch 2.13, github.com/pytorch/pytorch/issues/190489). An additional thread of
    ours makes that likely.
    """
    if "torch.distributed" in sys.modules:
        time.sleep(_LETTING_GO_SECONDS)
