"""The training loop: epochs of steps with exact evaluation in between, and the same results for any number of ranks.

`fit` does the bookkeeping: epochs, metrics, checkpoints. `Learner.train_step` does the arithmetic of one step, and
`CapturedStep` the same as CUDA graphs. `Best` keeps the best weights, `Halving` stops the worse runs of a sweep.
"""

from __future__ import annotations

import math
from collections import deque
from contextlib import closing
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from clusterctl.engine.graph.embeddings import ShardedTable, whole_weights
from clusterctl.engine.graph.hashing import ReplayedKeys
from clusterctl.engine.task.heap import Heap
from clusterctl.engine.task.task import from_first
from clusterctl.engine.task.worker import Worker
from clusterctl.engine.training.checkpoint import Checkpoints
from clusterctl.engine.training.epoch_plan import Batch, EpochPlan
from clusterctl.engine.training.learner import FUSED, Adam, Learner
from clusterctl.engine.training.objective import merit_of
from clusterctl.engine.training.optimizer import Schedule
from clusterctl.engine.training.progress import Fold, Progress, QueuedStep, TrainingLog
from clusterctl.engine.training.state import PartState, Sharded, flattened, put, untrained
from clusterctl.engine.training.trace import StepTrace
from clusterctl.shared.errors import Cause, TaskError
from clusterctl.shared.record.fields import read_fields
from clusterctl.shared.record.files import write_json
from clusterctl.shared.record.layout import RunDir, SweepDir
from clusterctl.shared.record.ownership import make_private
from clusterctl.shared.spec import Batches, TrainingSet

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

    from torch import Tensor, nn

    from clusterctl.engine.task.task import Task
    from clusterctl.engine.task.worker import Later
    from clusterctl.engine.training.objective import Objective, Score
    from clusterctl.shared.spec import LoopTrain


_CPU = torch.device("cpu")
_AHEAD = 2  # prepared batches; the second one makes up for slow ones

T = TypeVar("T")
P = TypeVar("P")


def fit(
    objective: Objective[Any],
    train: LoopTrain,
    task: Task,
    fold: Fold | None = None,
    checkpoints: Checkpoints | None = None,
) -> Score:
    """Train for `train.epochs` epochs; returns the score on the test split, evaluated once, at the end.

    With `train.patience`, training stops when the validation score no longer improves, and the best weights are tested;
    with `train.stop_early`, it stops when other runs of the sweep are better.
    An interrupted run continues from its last checkpoint. Folds share theirs: pass the same `checkpoints` to each.
    """
    if train.tf32 and task.device.type == "cpu" and task.place.rank == 0:
        print("train.tf32 changes nothing: this training runs on CPUs", flush=True)
    examples = TrainingSet(objective.seeds.numel(), objective.unit_of_seeds)
    sizes = Batches(train, task.place.world_size, examples)
    plan = EpochPlan(objective.seeds, sizes.size, train.seed, task.place.rank, task.place.world_size)
    if plan.steps == 0:
        raise TaskError("the training split is empty", cause=Cause.DATA)
    learner, schedule = Learner(objective, train, task), Schedule(train, plan.steps)
    best = Best(learner.measured, train.patience, learner.tables, objective.model)
    parts = learner.parts() | {"best": best} | ({"schedule": schedule} if schedule.waits_for_scores else {})
    checkpoints = checkpoints or Checkpoints(task, train)
    position = checkpoints.restore(parts, fold.number if fold else 1)
    if position.epoch > train.epochs:  # resumed with fewer epochs
        position = position._replace(epoch=train.epochs, seeds=plan.seeds.numel())
    log = TrainingLog(task, train, plan.steps, objective, fold, checkpoints.metrics)
    if fold is None or fold.number == 1:
        log.batches(sizes)
    if position.step:
        log.resume(position.epoch, plan.steps_after(position.seeds))

    steps_left = (train.epochs + 1 - position.epoch) * plan.steps - plan.steps_after(position.seeds)
    trace = StepTrace(task, train.profile, log.steps_done, steps_left)
    captured = CapturedStep(learner, task.device) if getattr(train, "cuda_graph", False) else None
    train_step = captured.train_step if captured else learner.train_step
    prepare = trace.named("sample", (lambda _: None) if captured else objective.prepare)
    more = ("train",) if getattr(train, "report_train", False) else ()

    accumulate = getattr(train, "accumulate", 1)
    halving, progress = Halving(train.stop_early, task), Progress(log, position, plan.seeds.numel(), task.device)
    heap = Heap()
    for epoch in range(position.epoch, train.epochs + 1):
        log.epoch(epoch)
        objective.model.train()
        task.clock.restart("sampling")
        seeds_done = progress.position.seeds
        in_parts = (part for batch in plan.batches(epoch, seeds_done) for part in batch.parts(accumulate))
        with closing(prefetched(in_parts, prepare, task.device)) as ahead:
            steps = groupby(ahead, lambda pair: pair[0].step)
            for _, of_step in trace.steps(steps, plan.steps - plan.steps_after(seeds_done)):
                for batch, prepared in of_step:
                    if batch.is_last:  # left to `train_step`, which adds up the gradients of all parts and ranks
                        break
                    learner.add(batch, prepared)
                    task.clock.enter("sampling")
                factor = schedule.factor(epoch, batch.step)
                stops = progress.add(batch, train_step(batch, prepared, factor, checkpoints.due))
                checkpoints.boundary(stops, progress.position, parts)
                heap.look()
                task.clock.enter("sampling")
        stops = progress.catch_up()
        checkpoints.boundary(stops, progress.position, parts)

        scores: Mapping[str, Score] = {}
        last, decides = epoch == train.epochs, halving.decides(epoch)
        if last or decides or (train.evaluate_every and epoch % train.evaluate_every == 0):
            scores = _evaluated(learner, (*more, "val", "test") if last and not train.patience else (*more, "val"), log)
        log.print_line(f"epoch {epoch}/{train.epochs}  loss {progress.position.loss:.4f}", scores)
        if schedule.waits_for_scores and scores:
            schedule.offer(scores["val"])
        if train.patience and scores and best.offer(scores["val"]):
            break
        if decides and not last and halving.stops(epoch, merit_of(scores["val"])):
            # With patience, the best weights are tested below, and these need not be.
            scores = scores if train.patience else _evaluated(learner, (*more, "val", "test"), log)
            break
        progress.position = progress.position._replace(epoch=epoch + 1, seeds=0, loss=0.0)
        if scores and not last:  # evaluation can take long: handle a stop request that arrived meanwhile
            checkpoints.boundary(learner.flat.agree(task.stop, checkpoints.due), progress.position, parts)

    if train.patience:
        best.restore()
        scores = _evaluated(learner, (*more, "val", "test"), log)
        log.print_line("best weights", scores)
    trace.close()
    checkpoints.finish()
    learner.flat.values.copy_(learner.measured)  # with `train.ema`, the file has the weights that were tested
    if fold is None:
        checkpoints.keep_weights(whole_weights(objective.model))
    return scores["test"]


def _evaluated(learner: Learner, splits: Sequence[str], log: TrainingLog) -> Mapping[str, Score]:
    log.evaluating()
    learner.objective.model.eval()
    with learner.evaluating():
        scores = learner.objective.evaluate(splits)
    log.scores(scores)
    return scores


def prefetched(items: Iterable[T], prepare: Callable[[T], P], device: torch.device = _CPU) -> Generator[tuple[T, P]]:
    """Each item with the result of `prepare`, in order; an error in `prepare` is raised at its item.

    It uses one thread and no processes: nothing is copied, and nothing needs shared memory. What it prepares on a GPU
    runs beside the steps. Close it if you do not use it up: the garbage collector would wait for the
    thread wherever it happens to run, also while Python starts another one and holds the lock that this needs.
    """
    waiting: deque[tuple[T, Later[P]]] = deque()
    with Worker("prefetch", device) as worker:
        for item in items:
            waiting.append((item, worker.submit(prepare, item)))
            if len(waiting) > _AHEAD:
                ready, prepared = waiting.popleft()
                yield ready, prepared.result()
        for ready, prepared in waiting:
            yield ready, prepared.result()


class Best:
    """Keeps a copy of `values`, the rows of `tables` and the buffers of `model` from the best score.

    On ties, from the earliest. Without its buffers, such as the statistics of a BatchNorm, it would be another model.
    """

    def __init__(
        self, values: Tensor, patience: int, tables: Sequence[ShardedTable] = (), model: nn.Module | None = None
    ) -> None:
        self._values, self._patience, self._tables = [values, *(table.rows for table in tables)], patience, tables
        self._model = model
        self._kept = [value.clone() for value in self._values] if patience else []
        self._kept_untrained = self._untrained() if patience else {}
        self._merit, self._waited = -math.inf, 0

    def state(self) -> PartState:
        """The best score's merit, the number of scores since, and the best weights if they may be restored."""
        noted = torch.tensor([self._merit, self._waited], dtype=torch.float64)
        if not self._patience:
            return PartState({"noted": noted})
        values, *rows = self._kept
        parts = [Sharded(kept, table.start, table.total) for kept, table in zip(rows, self._tables, strict=True)]
        sharded = {f"kept{number}": part for number, part in enumerate(parts)}
        buffers = {f"untrained.{name}": flattened(tensor) for name, tensor in self._kept_untrained.items()}
        return PartState({"noted": noted, "kept": values, **buffers}, sharded, optional=buffers)

    def load(self, state: PartState) -> None:
        self._merit, waited = state.same["noted"].tolist()
        self._waited = int(waited)
        if self._patience:
            _copy([state.same["kept"], *(part.rows for part in state.sharded.values())], self._kept)
            self._kept_untrained = self._untrained()  # as restored with the model, for checkpoints without the best
            for name, tensor in self._kept_untrained.items():
                if (kept := state.same.get(f"untrained.{name}")) is not None:
                    put(tensor, kept)

    def offer(self, score: Score) -> bool:
        """Record a score of the current values; returns whether `patience` scores in a row were no better."""
        if score.total == 0:
            raise TaskError(
                "the validation split is empty, but train.patience needs it", "set train.patience = 0", Cause.DATA
            )
        if (merit := merit_of(score)) > self._merit:
            self._merit, self._waited = merit, 0
            _copy(self._values, self._kept)
            self._kept_untrained = self._untrained() if self._patience else {}
        else:
            self._waited += 1
        return self._waited >= self._patience

    def restore(self) -> None:
        """Restore the kept values."""
        _copy(self._kept, self._values)
        live = untrained(self._model) if self._model else {}
        for name, kept in self._kept_untrained.items():
            put(live[name], flattened(kept))

    def _untrained(self) -> dict[str, Tensor]:
        live = untrained(self._model) if self._model else {}
        return {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in live.items()}


def _copy(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source)


# Asynchronous successive halving: a run of a sweep stops early if other runs did better at the same epoch.


class Halving:
    """The decisions of one run; none if the run is not part of a sweep or has not enabled halving."""

    def __init__(self, first_epoch: int, task: Task) -> None:
        self._first, self._task = first_epoch, task
        run = RunDir(task.attempt.path.parents[1]) if task.attempt else None
        sweep, _, self._place = run.id.rpartition(".") if run else ("", "", "")
        self._rungs = SweepDir.of(run.path.parent, sweep).rungs if run and self._place.isdigit() else None

    def decides(self, epoch: int) -> bool:
        """Whether `epoch` is one of e, 2e, 4e, ..."""
        if self._rungs is None or not self._first or epoch % self._first:
            return False
        times = epoch // self._first
        return times & (times - 1) == 0

    def stops(self, epoch: int, merit: float) -> bool:
        """Whether the run stops after `epoch`, with a validation score of this merit. A collective of all ranks.

        A restarted run repeats its earlier decision.
        """
        assert self._rungs is not None
        rung = self._rungs / str(epoch)

        def judged() -> tuple[int, int, bool]:
            """The number of better runs, the number of other runs, and whether this run stops."""
            own = make_private(rung) / f"{self._place}.json"
            known = read_fields(own)
            if not known.absent and not known.problem:
                return known.whole("better") or 0, known.whole("others") or 0, known.flag("stops")
            scores = [read_fields(path).number("score") for path in rung.glob("[0-9]*.json")]
            others = [other for other in scores if other is not None]
            better = sum(other > merit for other in others)
            stops = better > len(others) / 2
            write_json(own, {"score": merit, "better": better, "others": len(others), "stops": stops})
            return better, len(others), stops

        better, others, stops = from_first(judged, self._task.agreeing)
        if stops and self._task.place.rank == 0:
            print(f"stopped early: {better} of {others} other runs were better at epoch {epoch}", flush=True)
        return bool(stops)


# A step as two CUDA graphs: the host launches each with one call instead of launching hundreds of kernels.


if TYPE_CHECKING:
    Capture = Callable[[Callable[[], None]], Callable[[], None]]

_WARM_UPS = 3  # steps before the capture: libraries initialize in their first calls, which cannot be captured


class CapturedStep:
    """`Learner.train_step` for batches of a fixed size: runs the first steps normally, then captures and replays them.

    `capture` turns a callable into one that replays it. Raises TaskError.
    """

    def __init__(self, learner: Learner, device: torch.device, capture: Capture | None = None) -> None:
        if not FUSED:
            raise TaskError("train.cuda_graph needs a torch with a supported fused Adam", "leave it out", Cause.USER)
        assert isinstance(learner.optimizer, Adam)  # no workload with this key has another
        self._learner, self._optimizer, self._clock = learner, learner.optimizer, learner.clock
        self._keys = ReplayedKeys(device)
        self._batch: Batch | None = None
        capture = capture or _cuda_graph
        self._differentiate = _Repeated(self._forward_and_backward, device, capture)
        self._move = _Repeated(self._clip_and_update, device, capture)

    def train_step(self, batch: Batch, prepared: Any, lr_scale: float, checkpoint_due: bool) -> QueuedStep:  # noqa: ARG002
        """Like `Learner.train_step`, but nothing is prepared. A collective."""
        flat = self._learner.flat
        self._clock.enter("compute", "forward")
        # Copy the batch into the buffers of the graphs; the weights are scaled to give a mean.
        weights = batch.weights.to(flat.values.dtype) / batch.total
        if self._batch is None:
            keys = self._keys
            # A graph reads these addresses at every replay. Its sampling draws by the keys, which are on the device.
            self._batch = Batch(keys.epoch, keys.step, batch.seeds.clone(), weights, 1, batch.seeds[:0])
        self._batch.seeds.copy_(batch.seeds)
        self._batch.weights.copy_(weights)
        self._keys.fill(batch.epoch, batch.step)
        with self._clock.paused():
            self._differentiate()
        self._clock.count(nodes=batch.total, edges=self._clock.work["edges"])  # constant over steps
        reading = flat.add_up(self._learner.stop, checkpoint_due)
        lap = self._clock.lap("compute", "optimizer")
        self._optimizer.advance(lr_scale)
        self._move()
        return QueuedStep(reading, lap)

    def _forward_and_backward(self) -> None:
        batch = self._batch
        assert batch is not None
        objective = self._learner.objective
        self._learner.flat.differentiate(objective.loss(batch, objective.prepare(batch)))

    def _clip_and_update(self) -> None:
        self._learner.clip()
        self._optimizer.move()


class _Repeated:
    """Work that runs normally a few times, on a side stream, and is then captured and replayed."""

    def __init__(self, work: Callable[[], None], device: torch.device, capture: Capture) -> None:
        self._work, self._capture, self._on_gpu = work, capture, device.type == "cuda"
        self._left = _WARM_UPS
        self._repeat: Callable[[], None] | None = None

    def __call__(self) -> None:
        if self._left:
            self._left -= 1
            if not self._on_gpu:
                self._work()
                return
            # On a side stream, as a capture will, ordered with the current stream.
            usual, side = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(usual)
            with torch.cuda.stream(side):
                self._work()
            usual.wait_stream(side)
            return
        if self._repeat is None:
            self._repeat = self._capture(self._work)  # does not execute it
        self._repeat()


def _cuda_graph(work: Callable[[], None]) -> Callable[[], None]:
    """Capture `work` as a CUDA graph; returns its launch function."""
    graph = torch.cuda.CUDAGraph()
    # Other threads keep running: NCCL's watchdog queries events, which is an error in a "global" capture.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        work()
    return graph.replay
