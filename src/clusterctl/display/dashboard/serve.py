"""Serve the dashboard on the loopback interface until Ctrl-C."""

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
_MOST_HEADER_BYTES = 2**15
_SILENT_SECONDS = 30  # our pages ask again every few seconds


class Addresses(NamedTuple):
    """The dashboard's URL on this machine, and the command that forwards the port to another machine."""

    url: str
    forward: str


def serve(glances: Glances, port: int, announce: Callable[[Addresses], object]) -> None:
    """Answer requests on `port` (0: a free one) until KeyboardInterrupt; `announce` gets the addresses first.

    Raises UsageError if the port is not available.
    """
    listening = _listening(port)
    port = listening.getsockname()[1]
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # do not warn about a slow file system
    application = Application(glances, token, f"clusterctl-{port}")
    # By default, waitress stores up to 1 GiB of a request's body before the application can see whose it is.
    server = waitress.create_server(
        application, sockets=[listening], ident="clusterctl", max_request_body_size=1,
        max_request_header_size=_MOST_HEADER_BYTES, channel_timeout=_SILENT_SECONDS,
    )  # fmt: skip
    forward = f"ssh -N -L {port}:{_LOOPBACK}:{port} {socket.gethostname()}"
    try:
        announce(Addresses(f"http://{_LOOPBACK}:{port}/?token={token}", forward))
        server.run()
    except KeyboardInterrupt:  # before the server handles it
        server.close()


def _listening(port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of the last server may linger
        listening.bind((_LOOPBACK, port))
        listening.listen()
    except OSError as error:
        listening.close()
        hint = "leave out --port to use a free one"
        raise UsageError(f"cannot listen on port {port}: {error.strerror}", hint) from error
    return listening
