"""The data sent with a command from another machine: its files, variables and code.

The files are never written to this machine's disk, since a cluster file may contain a secret.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


@dataclass(frozen=True)
class SentFile:
    """A text file of the other machine, with its absolute path there."""

    path: str
    text: str


@dataclass(frozen=True)
class SentProject:
    """A code folder of the other machine and its git state; `tree` is its content's digest (`sent_code.py`)."""

    path: str
    tree: str
    files: int
    bytes: int
    commit: str | None = None
    patch: str | None = None


@dataclass(frozen=True)
class Sent:
    """All data; paths are the other machine's. `job` is None if the job is shipped with clusterctl."""

    folder: str
    cluster: SentFile
    user: SentFile | None = None  # the user's configuration
    job: SentFile | None = None
    others: tuple[SentFile, ...] = ()
    uploads: tuple[str, ...] = ()  # files of any size named on the command line
    typed: str = ""  # the cluster's name, unless it is the default there
    host: str = ""  # this machine, as it is called there
    projects: tuple[SentProject, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientData:
    """The received data, and a function that asks the other machine for more: a question -> pieces of the answer."""

    sent: Sent
    ask: Callable[[Mapping[str, object]], Iterator[bytes]] = field(repr=False)

    def file(self, kind: str) -> Path | None:
        """The command's job file ("jobs") or cluster file ("cluster")."""
        sent = self.sent.job if kind == "jobs" else self.sent.cluster
        return Path(sent.path) if sent else None

    def text(self, path: Path) -> str | None:
        """The content of a file that was sent."""
        files = (self.sent.cluster, self.sent.user, self.sent.job, *self.sent.others)
        return next((file.text for file in files if file and file.path == str(path)), None)

    def project(self, path: Path) -> SentProject | None:
        return next((project for project in self.sent.projects if project.path == str(path)), None)
