"""`[track]` of a job file, a cluster file or the user's configuration: where else a run's metrics are shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from clusterctl.spec.values import Line, OneOf


@dataclass(frozen=True, kw_only=True)
class Track:
    """`[track]`: the trackers that get a copy of the run's metrics, its settings and how it ended."""

    tensorboard: bool = False
    """Whether to write TensorBoard's event files, into the folder `tensorboard` of the run directory."""
    wandb: Line | None = None
    """Project in Weights & Biases, as "project" or "entity/project"; WANDB_API_KEY authenticates you."""
    mlflow: Line | None = None
    """Tracking server of MLflow, such as "http://mlflow:5000"; the experiment has the job's name."""
    where: Annotated[str, OneOf(("node", "login"))] = "node"
    """Who copies: the run's first node, or, where nodes have no internet, `clusterctl track` on the login node."""

    @property
    def names(self) -> tuple[str, ...]:
        """The trackers that are wanted."""
        return tuple(name for name in ("tensorboard", "wandb", "mlflow") if getattr(self, name))
