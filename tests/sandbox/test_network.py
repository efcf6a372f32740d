"""Choosing an unused network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterctl.launcher.sandbox import nodes
from clusterctl.shared.errors import SlurmError


def with_routes(monkeypatch: pytest.MonkeyPatch, *destinations: str) -> None:
    monkeypatch.setattr(nodes, "_ip", lambda *words: json.dumps([{"dst": dst} for dst in destinations]))


def test_the_network_is_unused_and_always_the_same_for_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    with_routes(monkeypatch, "default", "192.168.1.0/24")
    first = nodes.free_network(Path("/a"))
    assert first.startswith("10.")
    assert nodes.free_network(Path("/a")) == first != nodes.free_network(Path("/b"))


def test_a_network_that_has_a_route_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with_routes(monkeypatch)
    first = nodes.free_network(Path("/a"))
    for route in (f"{first}.0/24", f"{first}.7", f"{first.rpartition('.')[0]}.0.0/16"):
        with_routes(monkeypatch, "default", route)
        second = nodes.free_network(Path("/a"))
        assert second != first
        if route.endswith("/16"):
            assert second.split(".")[1] != first.split(".")[1]


def test_a_host_whose_routes_cover_everything_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with_routes(monkeypatch, "10.0.0.0/8")
    with pytest.raises(SlurmError, match="no free network"):
        nodes.free_network(Path("/a"))


def test_ports_are_all_different() -> None:
    assert len(set(nodes.free_ports(20))) == 20
