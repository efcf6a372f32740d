"""`[notify]` of a job file, a cluster file or the user's configuration: where to send notifications about runs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from clusterctl.shared.spec.values import EnvName, Line, OneOf, Text, Unshown


class RunEvent(StrEnum):
    """A change of a run that can be notified."""

    FINISHED = "finished"
    FAILED = "failed"  # ended in any other way, except when cancelled
    RESTARTED = "restarted"  # an attempt has ended, and the run is back in the queue
    STALLED = "stalled"  # the watchdog has raised an alarm


EVENTS = tuple(event.value for event in RunEvent)


@dataclass(frozen=True, kw_only=True)
class Notify:
    """`[notify]`: where to report that a run finishes, fails, restarts or stalls."""

    url_variable: Annotated[EnvName, Unshown()] | None = None
    """Environment variable with the URL of a webhook, such as "SLACK_WEBHOOK"; its value is kept secret."""
    format: Annotated[str, OneOf(("json", "slack", "matrix"))] = "json"
    """What the webhook expects: every value as JSON, or a message for Slack or Matrix."""
    command: tuple[Text, ...] = ()
    """Program and arguments to run for each message, which it reads from stdin."""
    events: tuple[Annotated[str, OneOf(EVENTS)], ...] = EVENTS
    """Events to report."""

    @property
    def wanted(self) -> bool:
        return self.url_variable is not None or bool(self.command)


# `[track]` of a job file, a cluster file or the user's configuration: which trackers receive a run's metrics.


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
