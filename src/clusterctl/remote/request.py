"""What one machine asks the clusterctl of another to do."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from clusterctl.config.sent import Sent  # noqa: TC001 - read by `from_record`
from clusterctl.spec import to_record
from clusterctl.spec.records import from_record


@dataclass(frozen=True, kw_only=True)
class Terminal:
    """Which of the three streams are a terminal where the command was typed, and how large it is."""

    input: bool = False
    output: bool = False
    errors: bool = False
    columns: int = 80
    lines: int = 24


@dataclass(frozen=True, kw_only=True)
class RemoteRequest:
    """A command line to carry out, or an operation of the Python API.

    `mark` is printed before anything else: what a login shell prints before it is none of ours. `once` identifies what
    must not be done twice, even if the connection breaks.
    """

    mark: str
    words: tuple[str, ...] = ()
    operation: str = ""
    arguments: str = "{}"  # of the operation, encoded (`remote.values`)
    sent: Sent
    terminal: Terminal
    interactive: bool = False  # whether the command has the terminal, or the input, to itself
    environment: dict[str, str]
    once: str = ""

    @property
    def is_public(self) -> bool:
        """Whether it holds no value that other users must not see: neither a job nor a table of variables."""
        files = (self.sent.cluster, *((self.sent.user,) if self.sent.user else ()))
        return not (self.once or self.sent.job or any("env" in file.text for file in files))

    def packed(self) -> bytes:
        return json.dumps(to_record(self)).encode()

    @classmethod
    def unpacked(cls, packed: bytes) -> RemoteRequest:
        """Raises ConfigError for anything else."""
        record: Any = json.loads(packed)
        return from_record(cls, record)
