from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from clusterctl.engine.task import meeting
from clusterctl.shared.errors import TaskError
from clusterctl.shared.record.layout import Attempt, RunDir
from clusterctl.shared.record.place import Place


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    attempt = RunDir(tmp_path / "run").attempt(0)
    attempt.path.mkdir(parents=True)
    return attempt


def test_a_published_address_is_found_by_early_and_late_ranks(attempt: Attempt) -> None:
    found: list[tuple[str, int]] = []
    early = threading.Thread(target=lambda: found.append(meeting.find(attempt, timeout=20)))
    early.start()
    meeting.publish(attempt, "10.0.0.1", 4242)
    early.join()
    assert found == [("10.0.0.1", 4242)] == [meeting.find(attempt)]


def test_a_missing_address_fails_with_rank_0s_log_as_hint(attempt: Attempt) -> None:
    with pytest.raises(TaskError, match="rank 0 published no address within 0 s") as raised:
        meeting.find(attempt, timeout=0.05)
    assert raised.value.hint == "clusterctl logs run --rank 0"


def test_a_single_node_meets_on_the_loopback_address() -> None:
    assert meeting.own_address(Place(nodes=1)) == "127.0.0.1"


def test_an_unresolvable_host_name_falls_back_to_the_loopback_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-host.invalid")
    assert meeting.own_address(Place(nodes=2)) == "127.0.0.1"


def test_a_host_name_of_the_loopback_falls_back_to_the_route_to_srun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostbyname", lambda _: "127.0.1.1")
    monkeypatch.delenv("SLURM_LAUNCH_NODE_IPADDR", raising=False)
    assert meeting.own_address(Place(nodes=2)) == "127.0.0.1"
    monkeypatch.setenv("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.3")
    assert meeting.own_address(Place(nodes=2)) in ("127.0.0.1", "127.0.0.3")
    monkeypatch.setenv("SLURM_LAUNCH_NODE_IPADDR", "no address")
    assert meeting.own_address(Place(nodes=2)) == "127.0.0.1"


def test_an_interface_gives_its_address_or_an_error_listing_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CLUSTERCTL_INTERFACE", "lo")
    assert meeting.own_address(Place(nodes=2)) == "127.0.0.1"
    with pytest.raises(TaskError, match="no IPv4 address on interface ib7") as raised:
        meeting.own_address(Place(nodes=2), "ib7")
    assert "lo" in raised.value.hint


def test_a_reserved_port_stays_reserved_but_a_program_can_listen_on_it() -> None:
    with meeting.reserve_port("127.0.0.1") as holder:
        port = holder.getsockname()[1]
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        with socket.create_server(("", port)) as server, socket.create_connection(("127.0.0.1", port)):
            server.accept()[0].close()


TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 {uid:5}        0 1 1 0 100 0
"""


@pytest.mark.parametrize(
    ("state", "other", "taken"), [("0A", True, True), ("0A", False, False), ("01", True, False), ("07", True, False)]
)
def test_another_users_listener_is_detected(tmp_path: Path, state: str, other: bool, taken: bool) -> None:
    table = tmp_path / "tcp"
    table.write_text(TABLE.format(port=4242, state=state, uid=os.geteuid() + other))
    assert meeting.taken_by_another(4242, [table, tmp_path / "no IPv6"]) is taken
    assert not meeting.taken_by_another(4243, [table])


def test_our_own_listener_on_a_reserved_port_is_accepted() -> None:
    with meeting.reserve_port("127.0.0.1") as holder, socket.create_server(holder.getsockname()):
        assert not meeting.taken_by_another(holder.getsockname()[1])
