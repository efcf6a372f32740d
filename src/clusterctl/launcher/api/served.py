"""Serves requests of another machine: a command line with its files, or an operation of the Python API."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.launcher.api.calls import carried_out
from clusterctl.launcher.config import cache_folder, current_folder
from clusterctl.launcher.config.delivery import delivered as delivered
from clusterctl.launcher.remote.agent import Asker as Asker  # noqa: TC001 - for others too
from clusterctl.launcher.remote.agent import serve as serve
from clusterctl.launcher.remote.frames import CHUNK, Frame, FrameKind
from clusterctl.launcher.remote.frames import RemoteRequest as RemoteRequest
from clusterctl.shared.record.ownership import make_private

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def uploaded(request: RemoteRequest, asker: Asker) -> Iterator[list[str]]:
    """The words of the command, with the other machine's files replaced by their uploaded copies."""
    if not request.sent.uploads:
        yield [*request.words]
        return
    with tempfile.TemporaryDirectory(dir=make_private(cache_folder() / "uploads")) as folder:
        places: dict[str, str] = {}
        for path in request.sent.uploads:
            here = Path(folder, os.path.basename(path))  # noqa: PTH119 - a path on the other machine
            with here.open("wb") as file:
                for piece in asker.ask({"upload": path}):
                    file.write(piece)
            places[path] = str(here)
        yield [places.get(str(current_folder() / word), word) for word in request.words]


def answer_call(request: RemoteRequest, asker: Asker) -> int:
    """Call an operation of the Python API, and send back its result or exception."""
    answer = carried_out(request.operation, request.arguments).encode()
    for start in range(0, len(answer), CHUNK):
        asker.send(Frame(FrameKind.VALUE, answer[start : start + CHUNK]))
    return 0
