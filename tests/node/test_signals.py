"""How a task exits on a signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

PROGRAM = """
import os, signal, sys, time
from clusterctl.shared.node.signals import StopRequest
stop = StopRequest()
stop.install(on_terminate=lambda: os.write(1, b"terminated\\n"), grace={grace})
print("ready", flush=True)
{body}
"""


def start(body: str, grace: float = 0.2) -> subprocess.Popen[str]:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(body=body, grace=grace)], stdout=subprocess.PIPE, text=True
    )
    assert program.stdout
    # Byte by byte, because communicate() would not return what the stream has read ahead.
    assert b"".join(os.read(program.stdout.fileno(), 1) for _ in "ready\n") == b"ready\n"
    return program


def test_the_warning_signal_sets_a_flag_and_the_program_continues() -> None:
    program = start("while not stop.warned: time.sleep(0.01)\nprint('saved')")
    program.send_signal(signal.SIGUSR2)
    output, _ = program.communicate(timeout=60)
    assert (output, program.returncode) == ("saved\n", 0)


def test_sigterm_leaves_a_program_time_to_exit_by_itself() -> None:
    program = start("while not stop.terminated: time.sleep(0.01)\nsys.exit(7)", grace=30)
    program.send_signal(signal.SIGTERM)
    output, _ = program.communicate(timeout=60)
    assert (output, program.returncode) == ("terminated\n", 7)


def test_a_program_is_ended_after_the_grace_time_even_if_blocked_in_native_code() -> None:
    # An endless select(2) in C, where no Python handler can run, as in a collective whose peer has died.
    program = start("import ctypes\nwhile True: ctypes.CDLL(None).select(0, None, None, None, None)")
    began = time.monotonic()
    program.send_signal(signal.SIGTERM)
    program.communicate(timeout=60)
    assert program.returncode == 143
    assert time.monotonic() - began < 5


def test_a_forked_child_ignores_the_warning_and_dies_of_sigterm() -> None:
    body = """
child = os.fork()
if child == 0:
    print("child", flush=True)
    time.sleep(60)
    os._exit(0)
os.kill(child, signal.SIGUSR2)
time.sleep(0.1)
assert os.waitpid(child, os.WNOHANG) == (0, 0)
os.kill(child, signal.SIGTERM)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
assert not stop.warned and not stop.terminated
"""
    program = start(body)
    output, _ = program.communicate(timeout=60)
    assert (output, program.returncode) == ("child\n", 0)
