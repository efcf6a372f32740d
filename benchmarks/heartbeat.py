"""What a heartbeat costs a training step, against a program that writes its step into a file each time.

python benchmarks/heartbeat.py

The rival does what watchdogs that go by a file's age ask of a program: the time and the step, written once a step. Ours
sets attributes; a thread writes the file once a second, and runs while this is measured. Per step are counted what the
loop does: one beat, and one waiting for other ranks begun and ended.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path

from side_by_side import compare

from clusterctl.runs.heartbeats import Heart, Pulse

STEPS = 20_000


def ours(heart: Heart) -> float:
    """Seconds for a million steps."""
    began = time.perf_counter()
    for step in range(STEPS):
        heart.wait()
        heart.go_on()
        heart.beat(step)
    return (time.perf_counter() - began) / STEPS * 1e6


def rival(descriptor: int) -> float:
    began = time.perf_counter()
    for step in range(STEPS):
        os.pwrite(descriptor, json.dumps({"time": time.time(), "step": step}).encode(), 0)
    return (time.perf_counter() - began) / STEPS * 1e6


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        heart = Heart()
        pulse = Pulse(heart, Path(folder, "rank_00000"))
        pulse.start()
        descriptor = os.open(Path(folder, "rival"), os.O_WRONLY | os.O_CREAT)
        compare(
            "Heartbeats, a million steps (1 ms is 1 ns a step)",
            ("a beat and a wait, written once a second", lambda: ours(heart)),
            ("time and step written at each step", lambda: rival(descriptor)),
            bound=0.5,
        )
        os.close(descriptor)
        pulse.end()


if __name__ == "__main__":
    main()
