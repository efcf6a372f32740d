"""Requests to clusterctl on another machine."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.launcher.api.remote.payload import Payload, text_file
from clusterctl.launcher.config.clusters import user_file
from clusterctl.launcher.config.sent import Sent, SentProject
from clusterctl.launcher.remote.connection import Callbacks as Callbacks
from clusterctl.launcher.remote.connection import Repeat as Repeat
from clusterctl.launcher.remote.connection import Signals as Signals
from clusterctl.launcher.remote.conversation import Conversation as Conversation
from clusterctl.launcher.remote.frames import OF_TERMINALS, RemoteRequest
from clusterctl.launcher.remote.frames import Terminal as Terminal
from clusterctl.launcher.remote.ssh import bring_port as bring_port
from clusterctl.launcher.remote.ssh import leave_port as leave_port
from clusterctl.launcher.remote.values import parsed as parsed
from clusterctl.shared.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.launcher.api.remote.cluster import RemoteCluster


class Printed:
    """The end of what a command prints there."""

    _MOST_BYTES = 2**16

    def __init__(self) -> None:
        self._end = b""

    def take(self, data: bytes) -> None:
        self._end = (self._end + data[-self._MOST_BYTES :])[-self._MOST_BYTES :]

    @property
    def text(self) -> str:
        return self._end.decode(errors="replace")


class Answer:
    """What a command prints there for a program: one JSON value."""

    _MOST_BYTES = 2**27

    def __init__(self) -> None:
        self.content = bytearray()

    def take(self, data: bytes) -> None:
        self.content += data
        if len(self.content) > self._MOST_BYTES:
            most = self._MOST_BYTES // 2**20
            raise HostError(f"the other clusterctl sent an answer of more than {most} MiB", "run the command again")

    def forget(self) -> None:
        self.content.clear()


def request(
    place: RemoteCluster,
    words: Sequence[str],
    payload: Payload | None = None,
    *,
    terminal: Terminal | None = None,
    interactive: bool = False,
    once: bool = False,
) -> RemoteRequest:
    """A request to clusterctl on the machine of `place`."""
    payload = payload or Payload()
    user = user_file()
    projects = [SentProject(str(one.path), one.tree, len(one.files), one.size, *one.git()) for one in payload.projects]
    sent = Sent(
        folder=str(Path.cwd()),
        cluster=text_file(place.file),
        user=text_file(user) if user.is_file() else None,
        job=payload.job,
        others=tuple(payload.others),
        uploads=tuple(map(str, payload.uploads)),
        projects=tuple(projects),
    )
    shown = {name: os.environ[name] for name in sorted(OF_TERMINALS) if name in os.environ}
    return RemoteRequest(
        mark=uuid.uuid4().hex,
        words=tuple(words),
        sent=sent,
        terminal=terminal or Terminal(),
        interactive=interactive,
        environment={**shown, **payload.environment, "CLUSTERCTL_CLUSTER": place.name},
        once=uuid.uuid4().hex if once else "",
    )
