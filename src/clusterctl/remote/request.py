"""The request that one machine sends to clusterctl on another."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from typing import Any

from clusterctl.config.sent import Sent  # noqa: TC001 - read by `from_record`
from clusterctl.spec import to_record
from clusterctl.spec.records import from_record

OF_TERMINALS = frozenset({"TERM", "COLORTERM", "NO_COLOR", "FORCE_COLOR", "TZ"})
_PUBLIC_KEYS = {
    "account", "cluster", "gpu_request", "host", "images", "interface", "kind", "local_scratch", "name", "partition",
    "polling_floor", "python", "qos", "remote_python", "runs", "secrets",
}  # fmt: skip


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
        """Whether other users may see it, here and on the login node, as everything in a command line.

        True only if nothing in it can be a secret: no job, none of the user's variables, no text typed for a setting
        or a program, and in the files of cluster and user nothing but plain values of these keys.
        """
        files = (self.sent.cluster, *((self.sent.user,) if self.sent.user else ()))
        others = (self.once, self.sent.job, self.sent.others, self.sent.uploads, self.sent.projects)
        typed = (*self.words, self.arguments)
        return not (
            any(others)
            or self.environment.keys() - OF_TERMINALS - {"CLUSTERCTL_CLUSTER"}
            or any("=" in word or word == "--" for word in typed)
            or not all(_is_public(file.text) for file in files)
        )

    def packed(self) -> bytes:
        return json.dumps(to_record(self)).encode()

    @classmethod
    def unpacked(cls, packed: bytes) -> RemoteRequest:
        """Parse a packed request. Raises ConfigError if it is invalid."""
        record: Any = json.loads(packed)
        return from_record(cls, record)


def _is_public(text: str) -> bool:
    """Whether a file contains only known keys with plain values; a comment may contain anything."""
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError):
        return False
    return (
        "#" not in text and values.keys() <= _PUBLIC_KEYS and not any(isinstance(one, dict) for one in values.values())
    )
