"""Saving and restoring a training: the loop's side of checkpoints.

All ranks call everything here at the same step. The state is copied at the step boundary, and a thread writes it while
training continues. The thread talks to its peers through rank 0's store, so that its collectives do not interleave
with those of the training. `write` and `read` are the file format: every rank writes its own rows, any number can read.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import threading
import time
from contextlib import suppress
from dataclasses import MISSING, fields
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import distributed as dist

from clusterctl.engine.task.task import from_first, to_first
from clusterctl.engine.training.metrics import Measured
from clusterctl.engine.training.objective import Accuracy
from clusterctl.engine.training.state import Staging, pieces, wholes
from clusterctl.shared.errors import TaskError, reason
from clusterctl.shared.node.signals import EXIT_TERMINATED
from clusterctl.shared.record import checkpoints
from clusterctl.shared.record.files import exists, open_regular, replacing
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.marks import EXIT_RESTART, request_restart
from clusterctl.shared.record.states import State
from clusterctl.shared.spec import to_record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from io import BufferedReader
    from pathlib import Path

    from torch import Tensor

    from clusterctl.engine.task.task import Task
    from clusterctl.engine.training.flat import Stops
    from clusterctl.engine.training.objective import Score
    from clusterctl.engine.training.state import Sharded, Stateful
    from clusterctl.shared.record.layout import Attempt
    from clusterctl.shared.spec import LoopTrain


LAST_SAVE_SECONDS = 20.0  # after TERM; Slurm kills after KillWait, 30 s by default
# Keys that may change when a run resumes. Changing any other key would make it a different training.
_CHANGEABLE = {"epochs", "batch_size", "global_batch_size", "lr", "schedule", "warmup", "clip_norm", "weight_decay"}
_CHANGEABLE |= {"device", "cuda_graph", "evaluate_every", "patience", "folds", "profile", "report_train"}
_CHANGEABLE |= {"schedule_every", "schedule_factor", "accumulate"}


class Position(NamedTuple):
    """The progress of a training, between two steps."""

    fold: int = 1
    epoch: int = 1
    seeds: int = 0  # of the epoch, done by all ranks together
    step: int = 0  # over all epochs and folds, as in the metrics
    loss: float = 0.0  # of the epoch so far


class Checkpoints:
    """The checkpoints of one training, or of all folds of a cross-validation."""

    def __init__(self, task: Task, train: LoopTrain) -> None:
        self._task = task
        self._fingerprint, self._defaults = fingerprint(train), defaults(type(train))
        self._staging = Staging()
        self._writer: threading.Thread | None = None
        self._saved_at = time.monotonic()
        self._last_step = -1
        self._warned = False
        self.results: list[Score] = []  # of the completed folds
        self.metrics: dict[str, float] = {}  # the newest value of each name, for the metrics of the next attempt
        self._found: tuple[Path, dict[str, Any]] | None = None
        if task.attempt is not None and task.attempt.number > 0:
            self._found = self._choose(task.attempt)
        if self._found:
            stored = self._found[1]["position"]["results"]
            self.results = [Measured(*one) if isinstance(one[0], str) else Accuracy(*one) for one in stored]

    # Resuming

    def restore(self, parts: Mapping[str, Stateful], fold: int = 1) -> Position:
        """Restore the parts if the checkpoint is of `fold`; returns the position to continue from."""
        found, self._found = self._found, None  # once: the folds after this one start from scratch
        if found is None:
            return Position(fold)
        folder, manifest = found
        saved = manifest["position"]
        position = Position(*(saved[name] for name in Position._fields))
        if position.fold != fold:
            return Position(fold)
        wanted, stored = wholes(parts), names(folder)
        for part, stateful in parts.items():
            for name in stateful.state().optional:
                if f"{part}.{name}" not in stored:
                    del wanted[f"{part}.{name}"]
        try:
            read(wanted, folder)
        except ValueError as error:
            raise TaskError(
                f"checkpoint {folder.name} does not fit: {error}", "has the data set changed? submit the job again"
            ) from error
        for part, stateful in parts.items():
            state = stateful.state()
            same = {name: wanted[f"{part}.{name}"].rows for name in state.same if f"{part}.{name}" in wanted}
            stateful.load(state._replace(same=same))
        self._last_step = position.step
        self.metrics = dict(saved["metrics"])
        self._print(f"resuming from checkpoint {folder.name}, epoch {position.epoch}, step {position.step}")
        self._task.events.record("resumed", checkpoint=folder.name, epoch=position.epoch, step=position.step)
        return position

    def _choose(self, attempt: Attempt) -> tuple[Path, dict[str, Any]] | None:
        """The newest intact checkpoint of this run's lineage; each rank verifies a share of its files."""
        leads = self._task.place.rank == 0
        group = self._task.agreeing
        kept = RunDir(attempt.path.parents[1]).checkpoints
        # Rank 0 lists them for all: on a shared disk each node may see other ones, and all must choose the same.
        for name in from_first(lambda: [folder.name for folder in checkpoints.candidates(attempt)], group):
            folder = kept / str(checkpoints.parse_name(name))
            manifest = checkpoints.read_manifest(folder)
            verdicts = to_first(partial(self._judge, folder, manifest), group)
            wrong = from_first(partial(next, filter(None, verdicts), ""), group)
            if not wrong and manifest is not None:
                if leads:
                    checkpoints.note_origin(attempt, folder)
                return folder, manifest
            self._print(f"checkpoint {folder.name} is passed over: {wrong}")
            if leads:
                self._task.events.record("checkpoint-refused", name=folder.name, why=wrong)
        if leads:
            checkpoints.note_origin(attempt, None)
        self._print("no checkpoint to resume from: training starts from scratch")
        return None

    def _judge(self, folder: Path, manifest: dict[str, Any] | None) -> str:
        if manifest is None:
            return "it is incomplete"
        wrong = checkpoints.mismatch(manifest, self._fingerprint, self._defaults)
        share = slice(self._task.place.rank, None, self._task.place.world_size)
        return wrong or checkpoints.damage(folder, manifest, share)

    # Saving

    @property
    def due(self) -> bool:
        """Whether the next checkpoint is due, on rank 0; False on the others."""
        every = self._task.checkpoint.every
        if self._task.attempt is None or self._task.place.rank != 0 or not every:
            return False
        return time.monotonic() - self._saved_at >= every and not (self._writer and self._writer.is_alive())

    def boundary(self, stop: Stops, position: Position, parts: Mapping[str, Stateful]) -> None:
        """Call between two steps: saves if a checkpoint is due; saves and exits if the run was asked to stop.

        Raises SystemExit to exit: with 75 to make the batch script restart the run, with 143 after TERM.
        """
        attempt = self._task.attempt
        if first_warning := stop.warned and not self._warned:
            self._warned = True
            self._task.events.state(State.TRAINING, epoch=position.epoch, warned=True)
        if stop.terminated:
            if attempt is not None:
                cancel = RunDir(attempt.path.parents[1]).cancel_json
                # Nobody will resume a run that was cancelled, nor this attempt if there is a newer one.
                if from_first(
                    lambda: not exists(cancel) and checkpoints.newer_attempt(attempt) is None, self._task.agreeing
                ):
                    self._task.stop.hold(LAST_SAVE_SECONDS)
                    self._save(position, parts, wait=True)
            raise SystemExit(EXIT_TERMINATED)
        if attempt is None:
            return
        if first_warning:
            self._save(position, parts, wait=True)
            if self._task.restarts:  # request a restart, and exit once the request is written
                if self._task.place.rank == 0:
                    names = [checkpoints.parse_name(path.name) for path in checkpoints.candidates(attempt)]
                    made = any(name and name.attempt == attempt.number for name in names)
                    request_restart(attempt, "warned", step=position.step, progress=made)
                dist.barrier(self._task.agreeing)
                raise SystemExit(EXIT_RESTART)
        elif stop.due:
            self._save(position, parts, wait=False)

    def keep_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Save the trained parameters of rank 0 in the run directory, as a CPU state dict for torch.load."""
        attempt = self._task.attempt
        if attempt is None or self._task.place.rank != 0 or checkpoints.newer_attempt(attempt) is not None:
            return
        path = RunDir(attempt.path.parents[1]).weights
        with replacing(path) as file:
            torch.save({name: tensor.detach().cpu().clone() for name, tensor in weights.items()}, file)

    def finish(self) -> None:
        """Wait until the pending checkpoint is written."""
        if self._writer:
            self._writer.join()

    def _save(self, position: Position, parts: Mapping[str, Stateful], *, wait: bool) -> None:
        attempt, place = self._task.attempt, self._task.place
        assert attempt is not None
        self.finish()  # the previous one still uses the staging memory
        if position.step == self._last_step:  # nothing new
            return
        began = time.monotonic()
        if wait:
            self._task.events.state(State.CHECKPOINTING, epoch=position.epoch)
        staged = self._staging.copy(pieces(parts, place.rank, place.world_size))
        results = [list(cast("tuple[Any, ...]", result)) for result in self.results]
        facts = {
            "world_size": place.world_size,
            "fingerprint": self._fingerprint,
            "position": {**position._asdict(), "results": results, "metrics": self.metrics},
        }
        work = (attempt, position.step, staged, facts)
        self._writer = threading.Thread(target=self._write, args=work, name="checkpoint", daemon=True)
        self._writer.start()
        if wait:
            self._writer.join()
            self._task.events.state(State.TRAINING, epoch=position.epoch)
        self._last_step, self._saved_at = position.step, time.monotonic()
        self._task.metrics.write(step=position.step, checkpoint_seconds=time.monotonic() - began)

    def _print(self, text: str) -> None:
        if self._task.place.rank == 0:
            print(text, flush=True)

    # In the writing thread

    def _write(self, attempt: Attempt, step: int, staged: dict[str, Sharded], facts: dict[str, Any]) -> None:
        """Write one checkpoint. If that fails on one rank, all ranks record that and continue training."""
        began, rank, events = time.monotonic(), self._task.place.rank, self._task.events
        aside = checkpoints.aside_folder(attempt, step)

        def write_own() -> dict[str, Any]:
            path = write(staged, aside, rank)
            return {path.name: checkpoints.digest(path)}

        def complete() -> None:
            checkpoints.complete(attempt, aside, facts, {name: found for own in written for name, found in own.items()})
            with suppress(OSError):
                checkpoints.prune(attempt, self._task.checkpoint.keep)

        try:
            talk = self._task.writing.begin()
            try:
                talk.from_first(lambda: checkpoints.write_aside(attempt, step).name)
                written = talk.to_first(write_own)
                talk.from_first(complete)
                talk.end()
            except BaseException:
                if rank == 0:
                    shutil.rmtree(aside, ignore_errors=True)
                raise
        except Exception as error:  # a full disk, a lost peer: training can continue without this checkpoint
            why = reason(error)
            if rank == 0:
                print(f"checkpoint of step {step} failed: {why}", file=sys.stderr, flush=True)
            events.record("checkpoint-failed", step=step, why=why)
            return
        if rank == 0:
            name = str(checkpoints.Name(attempt.number, step))
            events.record("checkpoint", name=name, step=step, seconds=time.monotonic() - began)


def fingerprint(train: LoopTrain) -> dict[str, Any]:
    """The identity of a training: trainings with equal fingerprints can resume from each other's checkpoints."""
    kept = {name: value for name, value in to_record(train).items() if name not in _CHANGEABLE}
    # How long to wait may change, but not whether: only with patience do checkpoints have the best weights.
    return {"train": type(train).__name__, **kept, "patience": bool(getattr(train, "patience", 0))}


def defaults(kind: type[LoopTrain]) -> dict[str, Any]:
    """The values of keys that were not set, or that an earlier version did not have."""
    found = {one.name: one.default for one in fields(kind) if one.default is not MISSING}
    found |= {one.name: one.default_factory() for one in fields(kind) if one.default_factory is not MISSING}
    return {name: to_record(value) for name, value in found.items()}


# State on disk: every rank writes its rows to its own file, and any number of ranks can read them.


_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_MOST_BYTES = 100_000_000  # of a header: the limit of the format
_ALIGNMENT = 8


def write(pieces: Mapping[str, Sharded], folder: Path, rank: int) -> Path:
    """Write the rows of `rank`, which are on the CPU, to a new file in `folder`, and fsync it. Raises OSError."""
    header: dict[str, Any] = {"__metadata__": {}}
    kept, end = [], 0
    for name, piece in pieces.items():
        if piece.rows.numel():
            begin, end = end, end + piece.rows.nbytes
            shape = list(piece.rows.shape)
            header[name] = {"dtype": _NAMES[piece.rows.dtype], "shape": shape, "data_offsets": [begin, end]}
            header["__metadata__"][name] = f"{piece.start} {piece.total}"
            kept.append(piece.rows.contiguous())
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    path = folder / f"rank_{rank:05}.safetensors"
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for rows in kept:
            file.write(_bytes_of(rows))
        file.flush()
        os.fsync(file.fileno())
    return path


def read(pieces: Mapping[str, Sharded], folder: Path) -> None:
    """Fill the rows of `pieces`, in place, from the files in `folder`. Not a collective.

    Raises ValueError if a tensor is missing or has another shape or dtype.
    """
    missing = {name: len(piece.rows) for name, piece in pieces.items()}
    for path in sorted(folder.glob("rank_*.safetensors")):
        with open_regular(path) as file:
            for name, stored in _stored(file):
                if piece := pieces.get(name):
                    missing[name] -= _fill(name, piece, stored, file)
    for name, rows in missing.items():
        if rows:
            raise ValueError(f"it has no {name}" if rows == len(pieces[name].rows) else f"it lacks rows of {name}")


def names(folder: Path) -> set[str]:
    """The names of the tensors in the files in `folder`. Raises ValueError."""
    found = set()
    for path in sorted(folder.glob("rank_*.safetensors")):
        with open_regular(path) as file:
            found |= {name for name, _ in _stored(file)}
    return found


class _Stored(NamedTuple):
    """Rows [start, start + shape[0]) of a tensor of `total` rows, from byte `begin` of a file on."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    total: int
    begin: int


def _stored(file: BufferedReader) -> Iterator[tuple[str, _Stored]]:
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if length > min(_MOST_BYTES, size):
        raise ValueError(f"{file.name} is not a safetensors file")
    try:
        header = json.loads(file.read(length))
        for name, numbers in header.pop("__metadata__").items():
            start, total = map(int, numbers.split())
            dtype, shape = _DTYPES[header[name]["dtype"]], tuple(header[name]["shape"])
            begin, end = header[name]["data_offsets"]
            if end - begin != math.prod(shape) * dtype.itemsize or 8 + length + end > size:
                raise ValueError(f"it does not hold all of {name}")
            yield name, _Stored(dtype, shape, start, total, 8 + length + begin)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{file.name} is damaged: {error}") from error


def _fill(name: str, piece: Sharded, stored: _Stored, file: BufferedReader) -> int:
    """Read the rows that both `piece` and the file contain; returns their number."""
    wanted = (piece.total, *piece.rows.shape[1:]), piece.rows.dtype
    found = (stored.total, *stored.shape[1:]), stored.dtype
    if found != wanted:
        raise ValueError(f"its {name} is {_shown(*found)}, not {_shown(*wanted)}")
    first = max(piece.start, stored.start)
    last = min(piece.start + len(piece.rows), stored.start + stored.shape[0])
    if first >= last:
        return 0
    rows = piece.rows[first - piece.start : last - piece.start]
    arrived = rows if rows.is_contiguous() and not rows.is_cuda else torch.empty(rows.shape, dtype=rows.dtype)
    file.seek(stored.begin + (first - stored.start) * math.prod(stored.shape[1:]) * stored.dtype.itemsize)
    if file.readinto(_bytes_of(arrived)) != arrived.nbytes:
        raise ValueError(f"{file.name} does not hold all of {name}")
    if arrived is not rows:
        rows.copy_(arrived)
    return last - first


def _bytes_of(rows: Tensor) -> memoryview:
    """The memory of a CPU tensor, for reading and writing."""
    return rows.detach().view(-1).view(torch.uint8).numpy().data


def _shown(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"{' x '.join(map(str, shape))} of {str(dtype).removeprefix('torch.')}"
