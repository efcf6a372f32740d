"""For a user's own program (`workload = "command"`): checkpoints, stop marks, restart marks.

    import clusterctl.runs as run

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

import os
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from clusterctl.errors import Cause, TaskError
from clusterctl.runs import checkpoints, marks
from clusterctl.runs.layout import RunDir
from clusterctl.runs.marks import EXIT_RESTART
from clusterctl.runs.metrics import current_attempt
from clusterctl.runs.place import Place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.runs.layout import Attempt

STOP_FILE = "CLUSTERCTL_STOP_FILE"  # created at the warning; one per task, on its node
RESTART_FILE = "CLUSTERCTL_RESTART_FILE"  # creating this file marks a restart
CHECKPOINTS = "CLUSTERCTL_CHECKPOINTS"
KEEP = "CLUSTERCTL_CHECKPOINTS_KEPT"
_LOOK_SECONDS = 0.2
_CHOICE_SECONDS = 300.0  # rank 0 may still be starting, or verifying checkpoints
_ARRIVAL_SECONDS = 90.0  # until a checkpoint seen by rank 0 is visible here
_asked: set[Attempt] = set()  # attempts in which this process has asked for a checkpoint


def whole_step(step: Any) -> int:
    """A step, which may be a number of NumPy or torch."""
    return int(step.item() if hasattr(step, "item") else step)


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
    first = attempt not in _asked and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    _asked.add(attempt)
    leads = Place.from_environment().rank == 0
    return _choose(attempt, leads=leads and first) if leads or not first else _take_rank_0s(attempt)


def _choose(attempt: Attempt, *, leads: bool) -> Path | None:
    """Find the checkpoint; the leader records its choice."""
    for folder in checkpoints.candidates(attempt):
        wrong = _wrong_with(folder)
        if not wrong:
            if leads:
                checkpoints.note_origin(attempt, folder)
            return folder
        if leads:
            print(f"checkpoint {folder.name} is passed over: {wrong}", flush=True)  # noqa: T201 - into the rank's log
    if leads:
        checkpoints.note_origin(attempt, None)
    return None


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


@contextmanager
def checkpoint(step: int) -> Iterator[Path]:
    """A new folder for the checkpoint of `step`, which is complete when the block ends without an error.

    Call it on one rank. Only the newest few checkpoints are kept (`[checkpoint] keep`). Raises Superseded if a newer
    attempt of the run has started: results of this one no longer count.
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
        checkpoints.prune(attempt, int(os.environ.get(KEEP, "2")))


def request_restart(step: int | None = None) -> NoReturn:
    """Exit and have the run restarted (requested by rank 0). Call it on all ranks, after the last checkpoint.

    The other ranks wait up to a minute for rank 0, since srun ends all ranks when the first one exits. With `step`, a
    run that got no further than at its last request is not restarted.
    """
    attempt = current_attempt()
    step = None if step is None else whole_step(step)
    if attempt is not None and Place.from_environment().rank == 0:
        marks.request_restart(attempt, "warned", step=step)
    elif attempt is not None:
        marks.wait_for_request(attempt)
    raise SystemExit(EXIT_RESTART)
