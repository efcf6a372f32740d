"""Run a command line sent from another machine: the entry point of the program that `remote.package` uploads."""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, NoReturn

from clusterctl.launcher import cli
from clusterctl.launcher.api.remote.served import OPERATION, carried_out, serve, uploaded
from clusterctl.launcher.cli.options import AWAIT, follow_or_wait

if TYPE_CHECKING:
    from clusterctl.launcher.api.remote.served import Asker, RemoteRequest


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
    """Run the command, or one of the two that only another clusterctl types."""
    if not request.interactive:
        sys.stdin = _AskedLines(asker, terminal=request.terminal.input)
    cli.prepare_streams()
    with uploaded(request, asker) as words:
        if words[0] == OPERATION:
            return cli.rendered(_operation, *words[1:])
        if words[0] == AWAIT:
            return cli.rendered(_await, **json.loads(words[1]))
        return cli.run(words)


def _operation(name: str, arguments: str) -> None:
    """Print the result or exception of an operation of the Python API."""
    with redirect_stdout(sys.stderr):
        answer = carried_out(name, arguments)
    sys.stdout.write(answer)


def _await(ids: list[str], *, follow: bool, timeout: float | None) -> None:
    """Follow or wait for the runs just submitted, as --follow and --wait do."""
    from clusterctl.launcher.api.find import find
    from clusterctl.launcher.api.sweeps import sweep_meant

    follow_or_wait([sweep_meant(name, None) or find(name) for name in ids], follow=follow, timeout=timeout)
