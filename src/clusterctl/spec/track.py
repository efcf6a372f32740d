"""`[track]` of a job file, a cluster file or the user's configuration: which trackers receive a run's metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from clusterctl.spec.values import Line, OneOf


@dataclass(frozen=True, kw_only=True)
class Track:
    """`[track]`: the trackers that receive the run's metrics, its settings and how it ended."""

    tensorboard: bool = False
    """Whether to write TensorBoard event files to the folder `tensorboard` in the run directory."""
    wandb: Line | None = None
    """Project in Weights & Biases, as "project" or "entity/project"; WANDB_API_KEY authenticates you."""
    mlflow: Line | None = None
    """MLflow tracking server, such as "http://mlflow:5000"; the experiment has the job's name."""
    where: Annotated[str, OneOf(("node", "login"))] = "node"
    """What sends the metrics: the run's first node or, if nodes have no internet access, `clusterctl track` on the
    login node."""

    @property
    def names(self) -> tuple[str, ...]:
        """The trackers that are set."""
        return tuple(name for name in ("tensorboard", "wandb", "mlflow") if getattr(self, name))
