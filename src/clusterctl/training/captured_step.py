"""A step as two CUDA graphs: the host starts each with one call, where it else starts some hundred kernels by name.

The first samples, computes and differentiates; the second clips and moves the parameters. The sum over the ranks is
between them, as in any other step: NCCL's watchdog, its flight recorder and the requests to stop stay what they are.

A graph repeats its kernels on the same memory. So a batch is copied into buffers, and what changes from step to step is
in tensors too: the keys of randomness (`hashing.ReplayedKeys`), the learning rate and the number of the step.
https://docs.pytorch.org/docs/2.13/notes/cuda.html#cuda-graphs
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from clusterctl.errors import Cause, TaskError
from clusterctl.graph.hashing import ReplayedKeys
from clusterctl.training.adam_step import FUSED
from clusterctl.training.epoch_plan import Batch
from clusterctl.training.learner import clip_norm
from clusterctl.training.progress import QueuedStep

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.training.learner import Learner

    Capture = Callable[[Callable[[], None]], Callable[[], None]]

_WARM_UPS = 3  # steps before the capture: libraries set themselves up in their first calls, which no graph can hold


class CapturedStep:
    """`Learner.train_step` for batches of one size, whose first steps are run as usual and captured then.

    `capture` makes of some work what repeats it. Raises TaskError.
    """

    def __init__(self, learner: Learner, device: torch.device, clip: float, capture: Capture | None = None) -> None:
        if not FUSED:
            raise TaskError("train.cuda_graph needs a torch whose fused Adam is known", "leave it out", Cause.USER)
        self._learner, self._clip, self._clock = learner, clip, learner.clock
        self._keys = ReplayedKeys(device)
        self._batch: Batch | None = None
        capture = capture or _cuda_graph
        self._differentiate = _Repeated(self._forward_and_backward, device, capture)
        self._move = _Repeated(self._clip_and_update, device, capture)

    def train_step(self, batch: Batch, prepared: Any, lr_scale: float, checkpoint_due: bool) -> QueuedStep:  # noqa: ARG002
        """As `Learner.train_step`; nothing is prepared. A collective."""
        flat, optimizer = self._learner.flat, self._learner.optimizer
        self._clock.enter("compute", "forward")
        self._fill(batch)
        with self._clock.paused():
            self._differentiate()
        self._clock.count(nodes=batch.total, edges=self._clock.work["edges"])  # as many in every step
        reading = flat.add_up(self._learner.stop, checkpoint_due)
        lap = self._clock.lap("compute", "optimizer")
        optimizer.advance(lr_scale)
        self._move()
        return QueuedStep(reading, lap)

    def _fill(self, batch: Batch) -> None:
        """Bring the batch to where the graphs read it; the weights are those of a mean."""
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
        if self._clip:
            clip_norm(self._learner.flat.gradients, self._clip)
        self._learner.optimizer.move()


class _Repeated:
    """Work that is done as it is written some times, in a stream beside the usual one, and captured then."""

    def __init__(self, work: Callable[[], None], device: torch.device, capture: Capture) -> None:
        self._work, self._capture, self._on_gpu = work, capture, device.type == "cuda"
        self._left = _WARM_UPS
        self._repeat: Callable[[], None] | None = None

    def __call__(self) -> None:
        if self._left:
            self._left -= 1
            _beside(self._work) if self._on_gpu else self._work()
            return
        if self._repeat is None:
            self._repeat = self._capture(self._work)  # which executes nothing
        self._repeat()


def _beside(work: Callable[[], None]) -> None:
    """Do the work in another stream than the usual one, as a capture will, and in its place."""
    usual, side = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(usual)
    with torch.cuda.stream(side):
        work()
    usual.wait_stream(side)


def _cuda_graph(work: Callable[[], None]) -> Callable[[], None]:
    """What launches `work` as a CUDA graph."""
    graph = torch.cuda.CUDAGraph()
    # Other threads go on meanwhile: NCCL's watchdog asks for events, which "global" would take for a mistake of ours.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        work()
    return graph.replay
