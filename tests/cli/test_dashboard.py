"""`clusterctl dashboard` when it cannot start."""

from __future__ import annotations

import socket
import sys

import pytest
from support.mistake import Desk


def test_a_port_in_use_is_an_error_with_a_way_out(desk: Desk) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, out, err = desk.type(f"dashboard --port {port}")
    assert (code, out) == (2, "")
    assert (
        err
        == f"error: cannot listen on port {port}: Address already in use\nhint: leave out --port to use a free one\n"
    )


def test_without_its_server_library_it_prints_what_to_install(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "waitress", None)
    monkeypatch.delitem(sys.modules, "clusterctl.launcher.display.dashboard.application", raising=False)
    code, out, err = desk.type("dashboard")
    assert (code, out) == (2, "")
    assert err == f"error: dashboard needs waitress\nhint: {sys.executable} -m pip install waitress\n"
