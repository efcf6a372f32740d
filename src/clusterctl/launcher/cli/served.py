"""Run a command line sent from another machine: the entry point of the program that `remote.package` uploads."""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING, NoReturn

from clusterctl.launcher import cli
from clusterctl.launcher.api.served import answer_call, serve, uploaded

if TYPE_CHECKING:
    from clusterctl.launcher.api.served import Asker, RemoteRequest


class _AskedLines(io.TextIOBase):
    """Standard input that requests each line from the client."""

    def __init__(self, asker: Asker, *, terminal: bool) -> None:
        self._asker, self._terminal = asker, terminal

    def readable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._terminal

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]  # noqa: ARG002
        return b"".join(self._asker.ask({"line": True})).decode(errors="surrogateescape")


def main() -> NoReturn:
    """Serve one request."""
    serve(_perform)


def _perform(request: RemoteRequest, asker: Asker) -> int:
    if not request.interactive:
        sys.stdin = _AskedLines(asker, terminal=request.terminal.input)
    cli.prepare_streams()
    if request.operation == "await":
        return cli.rendered(lambda: _await(**json.loads(request.arguments)))
    if request.operation:
        return answer_call(request, asker)
    with uploaded(request, asker) as words:
        return cli.run(words)


def _await(ids: list[str], *, follow: bool, timeout: float | None) -> None:
    """Follow or wait for the runs just submitted, as --follow and --wait do."""
    from clusterctl.launcher.api.find import find
    from clusterctl.launcher.api.sweeps import sweep_meant
    from clusterctl.launcher.cli.options import await_end

    for name in ids:
        if sweep := sweep_meant(name, None):
            sweep.wait(timeout)
        else:
            await_end(find(name), follow, True, timeout)
