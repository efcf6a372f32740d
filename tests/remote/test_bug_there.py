"""A bug on the other machine: what the user sees of it."""

from __future__ import annotations

import base64
import subprocess
import sys

from clusterctl.launcher.config.sent import Sent, SentFile
from clusterctl.launcher.remote.frames import FrameKind, Reader, RemoteRequest, Terminal

PROGRAM = """
from clusterctl.launcher.remote.agent import serve

def perform(request, asker):
    print("before", flush=True)
    return len(request.words) / 0

serve(perform)
"""


def test_an_unexpected_error_there_shows_its_traceback_here() -> None:
    sent = Sent(folder="/", cluster=SentFile("/far.toml", ""))
    request = RemoteRequest(mark="begins", words=("doctor",), sent=sent, terminal=Terminal(), environment={})
    command = [sys.executable, "-c", PROGRAM, base64.b64encode(request.packed()).decode()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as serving:
        assert serving.stdout
        output = serving.stdout.read()
        assert serving.wait(timeout=60) == 70
    frames = [*Reader().fed(output.removeprefix(b"begins"))]
    shown = {kind: b"".join(one.payload for one in frames if one.kind is kind).decode() for kind in FrameKind}
    assert (shown[FrameKind.OUTPUT], shown[FrameKind.EXIT]) == ("before\n", "70")
    assert shown[FrameKind.ERRORS].startswith("Traceback")
    assert shown[FrameKind.ERRORS].rstrip().endswith("ZeroDivisionError: division by zero")
