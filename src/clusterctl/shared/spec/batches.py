"""How training examples are divided: an epoch into steps, and each step among the ranks."""

from __future__ import annotations

from dataclasses import dataclass

from clusterctl.shared.spec.train import LoopTrain, Train


def batch_key(train: Train) -> str:
    """The key of `train` that sets the batch size."""
    return "global_batch_size" if isinstance(train, LoopTrain) and train.global_batch_size else "batch_size"


@dataclass(frozen=True)
class TrainingSet:
    """The examples of one epoch. `exact`: counted, not estimated."""

    size: int
    unit: str  # what an example is, in the plural
    exact: bool = True


@dataclass(frozen=True)
class Batches:
    """The batches of a training on `ranks` ranks. `examples` is None while the training set is unknown."""

    train: LoopTrain
    ranks: int
    examples: TrainingSet | None = None

    @property
    def size(self) -> int:
        """The global batch: examples of all ranks together in a full step."""
        if self.is_whole:
            return self.examples.size if self.examples else 1
        per_rank = 1 if getattr(self.train, "batch", "") == "clusters" else self.train.batch_size or 1
        return (self.train.global_batch_size or per_rank * self.ranks) * self._parts

    @property
    def is_whole(self) -> bool:
        """Whether each epoch is one step on the whole graph."""
        return getattr(self.train, "batch", "") == "graph"

    @property
    def steps(self) -> int | None:
        """Steps per epoch."""
        return None if self.examples is None else -(-self.examples.size // self.size)

    @property
    def per_rank(self) -> int:
        """The largest share of any rank in a full step."""
        return -(-self.size // self.ranks)

    @property
    def too_large(self) -> str:
        """The problem if the batch of several ranks exceeds the training set; otherwise empty."""
        if self.examples is None or self.ranks == 1 or self.size <= self.examples.size:
            return ""
        text = f"the global batch of {self._size_in_words} exceeds the training set of {self._examples_in_words}"
        idle = self.ranks - self.examples.size
        return f"{text}: each epoch is a single step" + (f", and {idle:,} ranks train only on padding" * (idle > 0))

    @property
    def remedy(self) -> str:
        """What to set if the batch is `too_large`."""
        if self.train.global_batch_size:
            return "lower train.global_batch_size"
        return "set train.global_batch_size instead of train.batch_size: it stays the same for any number of ranks"

    def __str__(self) -> str:
        if self.is_whole:
            return "the whole graph in each step; 1 step per epoch"
        batch = f"global batch {self._size_in_words}"
        if self.examples is None:
            return f"{batch}; the log shows the steps per epoch once the data set is prepared"
        about = "" if self.examples.exact else "about "
        plural = "s" * (self.steps != 1)
        return f"{batch}; {about}{self.steps:,} step{plural} per epoch of {self._examples_in_words}"

    @property
    def _parts(self) -> int:
        """How many parts each rank's share of a full step is computed in."""
        return getattr(self.train, "accumulate", 1)

    @property
    def _size_in_words(self) -> str:
        least, most = self.size // self.ranks, self.per_rank
        parts = f" in {self._parts:,} parts" if self._parts > 1 else ""
        if self.ranks == 1:
            return f"{self.size:,}{parts}"
        share = f"{most:,}" if least == most else f"{least:,} or {most:,}"
        return f"{self.size:,} ({self.ranks:,} ranks x {share}{parts})"

    @property
    def _examples_in_words(self) -> str:
        assert self.examples is not None
        return f"{'' if self.examples.exact else 'about '}{self.examples.size:,} {self.examples.unit}"
