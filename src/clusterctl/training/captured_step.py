"""A step as two CUDA graphs: the host launches each with one call instead of launching hundreds of kernels.

The first graph samples and runs forward and backward; the second clips the gradients and updates the parameters. The
all-reduce happens between them, as in any other step, so NCCL's watchdog and flight recorder and stop requests work
unchanged.

A graph replays its kernels on the same memory. So the batch is copied into buffers, and everything else that changes
from step to step is in tensors too: the random keys (`hashing.ReplayedKeys`), the learning rate and the step number.
https://docs.pytorch.org/docs/2.13/notes/cuda.html#cuda-graphs
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from clusterctl.errors import Cause, TaskError
from clusterctl.graph.hashing import ReplayedKeys
from clusterctl.training.adam_step import FUSED
from clusterctl.training.epoch_plan import Batch
from clusterctl.training.progress import QueuedStep

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.training.learner import Learner

    Capture = Callable[[Callable[[], None]], Callable[[], None]]

_WARM_UPS = 3  # steps before the capture: libraries initialize in their first calls, which cannot be captured


class CapturedStep:
    """`Learner.train_step` for batches of a fixed size: runs the first steps normally, then captures and replays them.

    `capture` turns a callable into one that replays it. Raises TaskError.
    """

    def __init__(self, learner: Learner, device: torch.device, capture: Capture | None = None) -> None:
        if not FUSED:
            raise TaskError("train.cuda_graph needs a torch with a supported fused Adam", "leave it out", Cause.USER)
        self._learner, self._clock = learner, learner.clock
        self._keys = ReplayedKeys(device)
        self._batch: Batch | None = None
        capture = capture or _cuda_graph
        self._differentiate = _Repeated(self._forward_and_backward, device, capture)
        self._move = _Repeated(self._clip_and_update, device, capture)

    def train_step(self, batch: Batch, prepared: Any, lr_scale: float, checkpoint_due: bool) -> QueuedStep:  # noqa: ARG002
        """Like `Learner.train_step`, but nothing is prepared. A collective."""
        flat, optimizer = self._learner.flat, self._learner.optimizer
        self._clock.enter("compute", "forward")
        self._fill(batch)
        with self._clock.paused():
            self._differentiate()
        self._clock.count(nodes=batch.total, edges=self._clock.work["edges"])  # constant over steps
        reading = flat.add_up(self._learner.stop, checkpoint_due)
        lap = self._clock.lap("compute", "optimizer")
        optimizer.advance(lr_scale)
        self._move()
        return QueuedStep(reading, lap)

    def _fill(self, batch: Batch) -> None:
        """Copy the batch into the buffers of the graphs; the weights are scaled to give a mean."""
        weights = batch.weights.to(self._learner.flat.values.dtype) / batch.total
        if self._batch is None:
            keys = self._keys
            self._batch = Batch(keys.epoch, keys.step, batch.seeds.clone(), weights, 1, batch.seeds[:0])
        self._batch.seeds.copy_(batch.seeds)
        self._batch.weights.copy_(weights)
        self._keys.fill(batch.epoch, batch.step)

    def _forward_and_backward(self) -> None:
        batch = self._batch
        assert batch is not None
        objective = self._learner.objective
        self._learner.flat.differentiate(objective.loss(batch, objective.prepare(batch)))

    def _clip_and_update(self) -> None:
        self._learner.clip()
        self._learner.optimizer.move()


class _Repeated:
    """Work that runs normally a few times, on a side stream, and is then captured and replayed."""

    def __init__(self, work: Callable[[], None], device: torch.device, capture: Capture) -> None:
        self._work, self._capture, self._on_gpu = work, capture, device.type == "cuda"
        self._left = _WARM_UPS
        self._repeat: Callable[[], None] | None = None

    def __call__(self) -> None:
        if self._left:
            self._left -= 1
            _on_side_stream(self._work) if self._on_gpu else self._work()
            return
        if self._repeat is None:
            self._repeat = self._capture(self._work)  # does not execute it
        self._repeat()


def _on_side_stream(work: Callable[[], None]) -> None:
    """Run the work on a side stream, as a capture will, ordered with the current stream."""
    usual, side = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(usual)
    with torch.cuda.stream(side):
        work()
    usual.wait_stream(side)


def _cuda_graph(work: Callable[[], None]) -> Callable[[], None]:
    """Capture `work` as a CUDA graph; returns its launch function."""
    graph = torch.cuda.CUDAGraph()
    # Other threads keep running: NCCL's watchdog queries events, which is an error in a "global" capture.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        work()
    return graph.replay
