"""Serves the dashboard on this machine's loopback until Ctrl-C."""

from __future__ import annotations

import logging
import secrets
import socket
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.display.dashboard.application import Application
from clusterctl.errors import UsageError

try:
    import waitress
except ImportError:
    raise UsageError("dashboard needs waitress", "pip install 'clusterctl[dashboard]'") from None

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.display.dashboard.glances import Glances

_LOOPBACK = "127.0.0.1"
_TOKEN_BYTES = 32


class Addresses(NamedTuple):
    """Where a browser on this machine finds the dashboard, and the command that brings the port to another one."""

    url: str
    forward: str


def serve(glances: Glances, port: int, announce: Callable[[Addresses], object]) -> None:
    """Answer requests at `port` (0: a free one) until KeyboardInterrupt; `announce` is told where, first.

    Raises UsageError where the port cannot be had.
    """
    listening = _listening(port)
    port = listening.getsockname()[1]
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # a slow file system is no news at the terminal
    application = Application(glances, token, f"clusterctl-{port}")
    server = waitress.create_server(application, sockets=[listening], ident="clusterctl")
    forward = f"ssh -N -L {port}:{_LOOPBACK}:{port} {socket.gethostname()}"
    try:
        announce(Addresses(f"http://{_LOOPBACK}:{port}/?token={token}", forward))
        server.run()
    except KeyboardInterrupt:  # between what was announced and the server's own handling of it
        server.close()


def _listening(port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of the last server may linger
        listening.bind((_LOOPBACK, port))
        listening.listen()
    except OSError as error:
        listening.close()
        hint = "leave --port out to get a free one"
        raise UsageError(f"cannot listen at port {port}: {error.strerror}", hint) from error
    return listening
