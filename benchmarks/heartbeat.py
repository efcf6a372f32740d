"""The cost of a heartbeat per training step, compared with a program that writes each step to a file.

python benchmarks/heartbeat.py

The rival does what watchdogs based on a file's age require: it writes the time and the step once per step. Ours sets
attributes; a thread, which runs during the measurement, writes the file once per second. Each step includes the calls
of the training loop: one beat, and the start and end of one wait for other ranks.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path

from side_by_side import arguments, compare

from clusterctl.shared.record.heartbeats import Heart, Pulse, write_beats

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
    arguments(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        heart = Heart()
        pulse = Pulse(heart, lambda beat: write_beats(Path(folder, "node0"), {0: (0, beat)}))
        pulse.start()
        descriptor = os.open(Path(folder, "rival"), os.O_WRONLY | os.O_CREAT)
        compare(
            "Heartbeats, a million steps (1 ms is 1 ns per step)",
            ("a beat and a wait, written once per second", lambda: ours(heart)),
            ("time and step written in each step", lambda: rival(descriptor)),
            bound=0.5,
        )
        os.close(descriptor)
        pulse.end()


if __name__ == "__main__":
    main()
