"""Serves requests of another machine: command lines with their files."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.launcher.api.remote.operations import OPERATION as OPERATION
from clusterctl.launcher.api.remote.operations import carried_out as carried_out
from clusterctl.launcher.config import cache_folder, current_folder
from clusterctl.launcher.remote.agent import Asker as Asker  # noqa: TC001 - for others too
from clusterctl.launcher.remote.agent import serve as serve
from clusterctl.shared.record.ownership import make_private

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.launcher.remote.frames import RemoteRequest as RemoteRequest


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
