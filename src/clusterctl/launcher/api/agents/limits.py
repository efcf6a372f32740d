"""How many node-hours agents may submit: counted in a file, so that a restart of the server does not start again at 0.

What counts is the most that a submission can use: its nodes, for its time limit, at each start that the queue may give
it. The file has one JSON object per line, which also records what agents did.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterctl.launcher.config import state_folder
from clusterctl.shared.errors import ConfigError, NotFoundError, UsageError, reason
from clusterctl.shared.record.files import append, parse_record, read_whole
from clusterctl.shared.record.once import LeaseTaken, leased

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PERIOD_SECONDS = 86400
_NAME = "agents.jsonl"
_TRIES = 20


@dataclass(frozen=True)
class Limits:
    """At most `nodes` in one submission, and `node_hours` in 24 hours, of all servers of this user on this machine."""

    nodes: int
    node_hours: float
    folder: Path | None = None  # the state folder by default
    clock: Callable[[], float] = time.time

    @property
    def file(self) -> Path:
        return (self.folder or state_folder()) / _NAME

    def used(self) -> float:
        """The node-hours of the last 24 hours. Raises ConfigError for a damaged file, which might hide some."""
        try:
            content = read_whole(self.file)
        except FileNotFoundError:
            return 0.0
        except OSError as error:
            raise self._unreadable(reason(error)) from error
        except ValueError as error:  # it is too large
            raise self._unreadable(str(error)) from error
        since, total = self.clock() - PERIOD_SECONDS, 0.0
        for line in content.splitlines():
            record = parse_record(line)
            hours, moment = (record or {}).get("node_hours"), (record or {}).get("time")
            if isinstance(hours, bool) or not isinstance(hours, int | float) or not isinstance(moment, int | float):
                raise self._unreadable("damaged")
            total += hours if moment > since else 0
        return max(0.0, total)

    def check(self, nodes: int, node_hours: float) -> None:
        """Raise UsageError for a submission that is not within the limits. Without nodes, nothing is submitted."""
        if not nodes:
            return
        if nodes > self.nodes:
            hint = f"request fewer nodes; the user can start the server with --max-nodes {nodes}"
            raise UsageError(f"{nodes} nodes are more than the {self.nodes} that an agent may request", hint)
        left = self.node_hours - self.used()
        if node_hours > left + 1e-9:
            raise UsageError(
                f"up to {node_hours:,.4g} node-hours, but agents may submit only {max(0.0, left):,.4g} more until "
                f"tomorrow (of {self.node_hours:,.4g} in 24 hours)",
                "set a shorter resources.time, fewer nodes, or restart.limit to 0; "
                "the user can start the server with a larger --max-node-hours",
            )

    @contextmanager
    def counted(self, action: str, nodes: int, node_hours: float) -> Iterator[dict[str, Any]]:
        """Count a submission before it is made, and take it back if it is refused before Slurm has been asked.

        What the caller puts into the dict is recorded with it. After any other failure it stays counted: Slurm may have
        accepted the job.
        """
        with self._alone():
            self.check(nodes, node_hours)
            self._add(action=action, nodes=nodes, node_hours=node_hours)
        done: dict[str, Any] = {}
        try:
            yield done
        except (UsageError, ConfigError, NotFoundError) as error:
            with self._alone():
                self._add(action=f"{action}: refused", error=error.message[:200], node_hours=-node_hours)
            raise
        with self._alone():
            self._add(action=f"{action}: done", node_hours=0, **done)

    def _add(self, **record: Any) -> None:
        try:
            content = read_whole(self.file)
        except FileNotFoundError:
            content = b""
        torn = b"\n" if content and not content.endswith(b"\n") else b""
        line = torn + json.dumps({"time": self.clock(), **record}).encode() + b"\n"
        if append(self.file, line) < len(line):
            raise self._unreadable("the disk is full")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Several servers may count at the same time."""
        lease = self.file.with_name(f".{_NAME}.lease")
        for left in reversed(range(_TRIES)):
            try:
                with leased(lease):
                    yield
                return
            except LeaseTaken:
                if not left:
                    raise self._unreadable("in use by another process") from None
                time.sleep(0.05 + os.getpid() % 7 / 100)
            except OSError as error:
                raise self._unreadable(reason(error)) from error

    def _unreadable(self, why: str) -> ConfigError:
        return ConfigError(
            f"cannot count node-hours in {self.file}: {why}", "look at the file; the user can remove it to start again"
        )
