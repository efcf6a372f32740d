"""What a command that was typed on another machine brings along: its files, variables and code.

The files never touch this machine's disk: a cluster file may hold the value of a secret variable.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


@dataclass(frozen=True)
class SentFile:
    """A text file of the other machine, by its absolute path there."""

    path: str
    text: str


@dataclass(frozen=True)
class SentProject:
    """A folder of code of the other machine, and what git says of it; `tree` is its content (`launch.sent_code`)."""

    path: str
    tree: str
    files: int
    bytes: int
    commit: str | None = None
    patch: str | None = None


@dataclass(frozen=True)
class Sent:
    """All of it; paths are the other machine's. `job` is None where the job is one that comes with clusterctl."""

    folder: str
    cluster: SentFile
    user: SentFile | None = None  # the user's configuration
    job: SentFile | None = None
    others: tuple[SentFile, ...] = ()
    uploads: tuple[str, ...] = ()  # files of any size that the command line names
    projects: tuple[SentProject, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Arrival:
    """What was sent, and how to ask the other machine for more: a question, and the pieces of its answer."""

    sent: Sent
    ask: Callable[[Mapping[str, object]], Iterator[bytes]] = field(repr=False)

    def file(self, kind: str) -> Path | None:
        """The job file ("jobs") or the cluster file ("cluster") of the command."""
        sent = self.sent.job if kind == "jobs" else self.sent.cluster
        return Path(sent.path) if sent else None

    def text(self, path: Path) -> str | None:
        """The content of a file that was sent."""
        files = (self.sent.cluster, self.sent.user, self.sent.job, *self.sent.others)
        return next((file.text for file in files if file and file.path == str(path)), None)

    def project(self, path: Path) -> SentProject | None:
        return next((project for project in self.sent.projects if project.path == str(path)), None)
