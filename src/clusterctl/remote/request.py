"""The request that one machine sends to clusterctl on another."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from clusterctl.config.sent import Sent  # noqa: TC001 - read by `from_record`
from clusterctl.spec import to_record
from clusterctl.spec.records import from_record


@dataclass(frozen=True, kw_only=True)
class Terminal:
    """Which of the three streams are a terminal on the user's machine, and its size."""

    input: bool = False
    output: bool = False
    errors: bool = False
    columns: int = 80
    lines: int = 24


@dataclass(frozen=True, kw_only=True)
class RemoteRequest:
    """A command line to execute, or an operation of the Python API.

    `mark` is printed first: output before it comes from the login shell. `once` identifies a request that must not be
    executed twice, even if the connection breaks.
    """

    mark: str
    words: tuple[str, ...] = ()
    operation: str = ""
    arguments: str = "{}"  # of the operation, encoded (`remote.values`)
    sent: Sent
    terminal: Terminal
    interactive: bool = False  # whether the command controls the terminal or the input
    environment: dict[str, str]
    once: str = ""

    @property
    def is_public(self) -> bool:
        """Whether other users may see it: it contains neither a job nor variables."""
        files = (self.sent.cluster, *((self.sent.user,) if self.sent.user else ()))
        return not (self.once or self.sent.job or any("env" in file.text for file in files))

    def packed(self) -> bytes:
        return json.dumps(to_record(self)).encode()

    @classmethod
    def unpacked(cls, packed: bytes) -> RemoteRequest:
        """Parse a packed request. Raises ConfigError if it is invalid."""
        record: Any = json.loads(packed)
        return from_record(cls, record)
