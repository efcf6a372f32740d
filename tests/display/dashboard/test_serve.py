"""The dashboard's server, from its first line to its end."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlsplit

from clusterctl.display.dashboard.glances import Glances
from clusterctl.display.dashboard.serve import Addresses, serve
from clusterctl.observe.status import Report


def test_ctrl_c_stops_it_even_while_it_prints_its_address(tmp_path: Path) -> None:
    announced: list[Addresses] = []

    def announce(addresses: Addresses) -> None:
        announced.append(addresses)
        raise KeyboardInterrupt

    serve(Glances(tmp_path, lambda: Report(0.0, (), ())), 0, announce)
    with socket.socket() as again:
        again.bind(("127.0.0.1", urlsplit(announced[0].url).port or 0))
