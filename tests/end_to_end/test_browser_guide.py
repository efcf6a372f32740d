"""The guide to the dashboard, typed line by line on this machine; and how the real command starts and stops."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.guide import follow_here
from support.scenario import Stage

CLUSTERCTL = Path(sys.executable).with_name("clusterctl")
# Sends Ctrl-C once the dashboard has printed its last message.
READER = f"""#!{sys.executable}
import signal, subprocess, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
argv = ["{CLUSTERCTL}", *sys.argv[1:]]
if sys.argv[1] != "dashboard":
    sys.exit(subprocess.call(argv))
with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as dashboard:
    for line in dashboard.stderr:
        print(line, end="", file=sys.stderr)
        if "Ctrl-C" in line:
            dashboard.send_signal(signal.SIGINT)
sys.exit(dashboard.returncode)
"""


@pytest.fixture
def back_end() -> str:
    return "emulator"


def test_every_command_in_the_guide_works(tmp_path: Path, update_golden: bool) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "clusterctl").write_text(READER)
    (tmp_path / "bin" / "clusterctl").chmod(0o700)
    path = f"{tmp_path / 'bin'}:{CLUSTERCTL.parent}:{os.environ['PATH']}"
    assert follow_here("in-a-browser", tmp_path, update=update_golden, PATH=path) == 3


def test_the_printed_address_opens_and_ctrl_c_stops_the_server(stage: Stage) -> None:
    dashboard = stage.begin("dashboard")
    assert dashboard.stdout
    assert dashboard.stderr
    address = urlsplit(dashboard.stdout.readline().strip())
    assert (address.hostname, address.path) == ("127.0.0.1", "/")
    forward, ctrl_c = dashboard.stderr.readline(), dashboard.stderr.readline()
    assert forward.rstrip().endswith(f":127.0.0.1:{address.port} {socket.gethostname()}")
    assert ctrl_c == "press Ctrl-C to stop\n"
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", address.port or 0, timeout=120)) as connection:
        connection.request("GET", f"/?{address.query}")
        reply = connection.getresponse()
        cookie = reply.headers["Set-Cookie"].partition(";")[0]
        assert (reply.status, reply.read()) == (303, b"")
        connection.request("GET", "/", headers={"Cookie": cookie})
        assert b"no runs yet" in connection.getresponse().read()
    dashboard.send_signal(signal.SIGINT)
    out, err = dashboard.communicate(timeout=120)
    assert (dashboard.returncode, out, err) == (0, "", "")


def test_the_port_is_not_open_to_other_machines(stage: Stage) -> None:
    dashboard = stage.begin("dashboard")
    assert dashboard.stdout
    port = urlsplit(dashboard.stdout.readline().strip()).port
    listening = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    local = {words[1] for words in listening if words[3] == "0A" and words[1].endswith(f":{port:04X}")}
    assert local == {f"0100007F:{port:04X}"}
