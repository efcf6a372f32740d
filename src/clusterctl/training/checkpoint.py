"""When a training is saved and what it goes on from: the loop's side of checkpoints.

All ranks call everything here at the same step. What is saved is copied at the step boundary; a thread writes it while
the training goes on, and speaks with its peers in a gloo group of its own, so that no collective meets the training's.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import distributed as dist

from clusterctl.errors import TaskError
from clusterctl.runs import checkpoints
from clusterctl.runs.checkpoints import Superseded
from clusterctl.runs.layout import RunDir
from clusterctl.runs.requests import EXIT_RESTART, request_restart
from clusterctl.runs.signals import EXIT_TERMINATED
from clusterctl.runs.stages import Stage
from clusterctl.spec import to_record
from clusterctl.training.objective import Accuracy
from clusterctl.training.state import Staging, pieces, wholes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from clusterctl.runs.layout import Attempt
    from clusterctl.spec import LoopTrain
    from clusterctl.task.task import Task
    from clusterctl.training.flat import Stops
    from clusterctl.training.state import Stateful

LAST_SAVE_SECONDS = 20.0  # after TERM; Slurm kills after KillWait, 30 s by default
# What may be changed when a run is resumed; with any other value it would be another training.
_CHANGEABLE = {"epochs", "batch_size", "lr", "schedule", "warmup", "clip_norm", "weight_decay", "device"} | {
    "evaluate_every",
    "patience",
    "folds",
    "profile",
}


class Position(NamedTuple):
    """How far a training is, between two steps."""

    fold: int = 1
    epoch: int = 1
    seeds: int = 0  # of the epoch, that all ranks together have trained on
    step: int = 0  # of all epochs and folds, as the metrics count
    loss: float = 0.0  # of the epoch so far


class Checkpoints:
    """The checkpoints of one training, or of all folds of a cross-validation."""

    def __init__(self, task: Task, train: LoopTrain) -> None:
        self._task = task
        self._fingerprint = fingerprint(train)
        self._groups: dict[str, dist.ProcessGroup] = {}
        self._staging = Staging()
        self._writer: threading.Thread | None = None
        self._saved_at = time.monotonic()
        self._last_step = -1
        self._warned = False
        self.results: list[Accuracy] = []  # of the folds that are done
        self.metrics: dict[str, float] = {}  # the newest value of each name, for the metrics of the next attempt
        self._found: tuple[Path, dict[str, Any]] | None = None
        if task.attempt is not None and task.attempt.number > 0:
            self._found = self._choose(task.attempt)
        if self._found:
            position = self._found[1]["position"]
            self.results = [Accuracy(*counts) for counts in position["results"]]

    # Going on

    def restore(self, parts: Mapping[str, Stateful], fold: int = 1) -> Position:
        """Bring the parts to where the run was, if it was in `fold`; the position to go on from."""
        found, self._found = self._found, None
        if found is None:
            return Position(fold)
        folder, manifest = found
        saved = manifest["position"]
        position = Position(*(saved[name] for name in Position._fields))
        if position.fold != fold:
            return Position(fold)
        from clusterctl.training.shards import read  # slow to import

        wanted = wholes(parts)
        try:
            read(wanted, folder)
        except ValueError as error:
            raise TaskError(
                f"checkpoint {folder.name} does not fit: {error}", "has the data set changed? submit the job anew"
            ) from error
        for part, stateful in parts.items():
            state = stateful.state()
            same = {name: wanted[f"{part}.{name}"].rows for name in state.same}
            stateful.load(state._replace(same=same))
        self._last_step = position.step
        self.metrics = dict(saved["metrics"])
        self._print(f"going on from checkpoint {folder.name}, epoch {position.epoch}, step {position.step}")
        self._task.events.record("resumed", checkpoint=folder.name, epoch=position.epoch, step=position.step)
        return position

    def _choose(self, attempt: Attempt) -> tuple[Path, dict[str, Any]] | None:
        """The newest whole checkpoint of this run's lineage, all ranks reading a share of its files each."""
        leads = self._task.place.rank == 0
        for folder in self._from_first(checkpoints.candidates(attempt) if leads else None):
            manifest = checkpoints.read_manifest(folder)
            wrong = self._judge(folder, manifest)
            verdicts: list[str] = [""] * dist.get_world_size()
            dist.all_gather_object(verdicts, wrong, self._group("agreeing"))
            wrong = next((verdict for verdict in verdicts if verdict), "")
            if not wrong and manifest is not None:
                if leads:
                    checkpoints.note_origin(attempt, folder)
                return folder, manifest
            self._print(f"checkpoint {folder.name} is passed over: {wrong}")
            if leads:
                self._task.events.record("checkpoint-refused", name=folder.name, why=wrong)
        if leads:
            checkpoints.note_origin(attempt, None)
        self._print("there is no checkpoint to go on from: training begins anew")
        return None

    def _judge(self, folder: Path, manifest: dict[str, Any] | None) -> str:
        if manifest is None:
            return "it is not whole"
        wrong = checkpoints.mismatch(manifest, self._fingerprint)
        share = slice(self._task.place.rank, None, self._task.place.world_size)
        return wrong or checkpoints.damage(folder, manifest, share)

    # Saving

    @property
    def due(self) -> bool:
        """Whether rank 0 finds that it is time for the next one."""
        every = self._task.checkpoint.every
        if self._task.attempt is None or self._task.place.rank != 0 or not every:
            return False
        return time.monotonic() - self._saved_at >= every and not (self._writer and self._writer.is_alive())

    def boundary(self, stop: Stops, position: Position, parts: Mapping[str, Stateful]) -> None:
        """Between two steps: save when it is time, and save and leave when this run was asked to.

        Raises SystemExit where it leaves: 75 when the batch script is asked to start the run again, 143 after TERM.
        """
        attempt = self._task.attempt
        first_warning = stop.warned and not self._warned
        if first_warning:
            self._warned = True
            self._task.events.stage(Stage.TRAINING, epoch=position.epoch, warned=True)
        if stop.terminated:
            if attempt is not None and self._goes_on(attempt):
                self._task.stop.hold(LAST_SAVE_SECONDS)
                self._save(position, parts, wait=True)
            raise SystemExit(EXIT_TERMINATED)
        if attempt is None:
            return
        if first_warning:
            self._save(position, parts, wait=True)
            if self._task.restarts:
                self._leave(attempt, position)
        elif stop.due:
            self._save(position, parts, wait=False)

    def keep_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Leave rank 0's trained parameters in the run directory, on the CPU and by name: what torch.load reads."""
        attempt = self._task.attempt
        if attempt is None or self._task.place.rank != 0 or checkpoints.newer_attempt(attempt) is not None:
            return
        path = RunDir(attempt.path.parents[1]).weights
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        torch.save({name: tensor.detach().cpu().clone() for name, tensor in weights.items()}, aside)
        aside.replace(path)

    def finish(self) -> None:
        """Wait until what is being written is written."""
        if self._writer:
            self._writer.join()

    def _leave(self, attempt: Attempt, position: Position) -> None:
        """Ask to be started again, and leave when that is written."""
        if self._task.place.rank == 0:
            made = [name for name in self._names() if name.attempt == attempt.number]
            request_restart(attempt, "warned", step=position.step, progress=bool(made))
        dist.barrier(self._group("agreeing"))
        raise SystemExit(EXIT_RESTART)

    def _names(self) -> list[checkpoints.Name]:
        assert self._task.attempt is not None
        found = [checkpoints.parse_name(path.name) for path in checkpoints.candidates(self._task.attempt)]
        return [name for name in found if name is not None]

    def _goes_on(self, attempt: Attempt) -> bool:
        """Whether the run may be wanted again: nobody cancelled it, and no newer attempt has it."""
        cancelled = RunDir(attempt.path.parents[1]).cancel_json.exists()
        (answer,) = self._from_first([not cancelled and checkpoints.newer_attempt(attempt) is None])
        return bool(answer)

    def _save(self, position: Position, parts: Mapping[str, Stateful], *, wait: bool) -> None:
        attempt, place = self._task.attempt, self._task.place
        assert attempt is not None
        self.finish()
        if position.step == self._last_step:  # nothing new
            return
        began = time.monotonic()
        group = self._group("writing")
        if wait:
            self._task.events.stage(Stage.CHECKPOINTING, epoch=position.epoch)
        staged = self._staging.copy(pieces(parts, place.rank, place.world_size))
        results = [list(result) for result in self.results]
        facts = {
            "world_size": place.world_size,
            "fingerprint": self._fingerprint,
            "position": {**position._asdict(), "results": results, "metrics": self.metrics},
        }
        write = _Write(self._task, attempt, position.step, staged, facts, group)
        self._writer = threading.Thread(target=write, name="checkpoint", daemon=True)
        self._writer.start()
        if wait:
            self._writer.join()
            self._task.events.stage(Stage.TRAINING, epoch=position.epoch)
        self._last_step, self._saved_at = position.step, time.monotonic()
        self._task.metrics.write(step=position.step, checkpoint_seconds=time.monotonic() - began)

    # Ranks among themselves

    def _group(self, purpose: str) -> dist.ProcessGroup:
        """All ranks, over gloo. The writing threads have a group of their own: they may be at work at any time."""
        if purpose not in self._groups:
            self._groups[purpose] = dist.new_group(backend="gloo")
        return self._groups[purpose]

    def _from_first(self, items: list[Any] | None) -> list[Any]:
        """The list that rank 0 has."""
        box = [items]
        dist.broadcast_object_list(box, 0, group=self._group("agreeing"))
        return box[0] or []

    def _print(self, text: str) -> None:
        if self._task.place.rank == 0:
            print(text, flush=True)


class _Write:
    """Writing one checkpoint, in a thread of each rank. A failure is recorded, and the training goes on."""

    def __init__(
        self, task: Task, attempt: Attempt, step: int, staged: dict[str, Any], facts: dict[str, Any], group: Any
    ) -> None:
        self._task, self._attempt, self._step = task, attempt, step
        self._staged, self._facts, self._group = staged, facts, group

    def __call__(self) -> None:
        began = time.monotonic()
        try:
            final = self._write()
        except Exception as error:  # a full disk, a peer that is gone: a training can do without this checkpoint
            why = _reason(error)
            if self._task.place.rank == 0:
                print(f"checkpoint of step {self._step} failed: {why}", file=sys.stderr, flush=True)
            self._task.events.record("checkpoint-failed", step=self._step, why=why)
            return
        if self._task.place.rank == 0:
            seconds = time.monotonic() - began
            self._task.events.record("checkpoint", name=final, step=self._step, seconds=seconds)

    def _write(self) -> str:
        from clusterctl.training.shards import write  # slow to import

        rank = self._task.place.rank
        box = [_tried(lambda: str(checkpoints.write_aside(self._attempt, self._step))) if rank == 0 else None]
        dist.broadcast_object_list(box, 0, group=self._group)
        aside = RunDir(self._attempt.path.parents[1]).checkpoints / os.path.basename(_raised(box[0]))  # noqa: PTH119
        try:
            write(self._staged, aside, self._group)
            names = [path.name for path in aside.glob(f"__{rank}_*")] + [".metadata"] * (rank == 0)
            digests: list[Any] = [None] * dist.get_world_size()
            own = _tried(lambda: {name: checkpoints.digest(aside / name) for name in names})
            dist.all_gather_object(digests, own, self._group)
            box = [_tried(lambda: self._complete(aside, digests)) if rank == 0 else None]
            dist.broadcast_object_list(box, 0, group=self._group)
            return str(_raised(box[0]))
        except BaseException:
            if rank == 0:
                shutil.rmtree(aside, ignore_errors=True)
            raise

    def _complete(self, aside: Path, digests: list[Any]) -> str:
        files = {name: found for own in digests for name, found in _raised(own).items()}
        final = checkpoints.complete(self._attempt, aside, self._facts, files)
        with suppress(OSError):
            checkpoints.prune(self._attempt, self._task.checkpoint.keep)
        return final.name


def fingerprint(train: LoopTrain) -> dict[str, Any]:
    """What makes a training the same one: two with the same values can go on from each other's checkpoints."""
    kept = {name: value for name, value in to_record(train).items() if name not in _CHANGEABLE}
    return {"train": type(train).__name__, **kept, "patience": bool(getattr(train, "patience", 0))}


class _Failure(NamedTuple):
    why: str


def _tried(work: Any) -> Any:
    """What `work` returns, or its failure as a value: the other ranks wait to hear of it."""
    try:
        return work()
    except (OSError, Superseded) as error:
        return _Failure(_reason(error))


def _raised(value: Any) -> Any:
    if isinstance(value, _Failure):
        raise OSError(value.why)
    return value


def _reason(error: BaseException) -> str:
    """The innermost cause in one line: DCP wraps what happened on a rank in a report of many lines."""
    failures = getattr(error, "failures", None)
    if failures:
        error = next(iter(failures.values()))[0]
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
