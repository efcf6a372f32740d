"""Does the watchdog name the stuck rank, only that one and in time, with many ranks and a slow file system?

python benchmarks/scale_watchdog.py [--nodes 64] [--per-node 8] [--trials 20] [--read-ms 5]

Each trial starts new ranks on this machine: small processes without torch that send heartbeats through the writer of
their node and train for a while, during which there must be no alarm. Then one of them is stopped (SIGSTOP) or, in
every second trial, loops in its own part of a step, and the others wait for it. The clock of the second node is an hour
ahead; the first node, that of rank 0, is slow: the others wait for its ranks in each step, and its writer is late. Each
file that a writer opens for reading takes `--read-ms` longer.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from side_by_side import arguments

import clusterctl
from clusterctl.shared.record.files import read_json
from clusterctl.shared.record.heartbeats import all_beats
from clusterctl.shared.record.layout import Attempt, RunDir
from clusterctl.shared.spec import Watchdog

SETTINGS = Watchdog(floor=10, factor=5.0, action="fail")
STEP_SECONDS = 0.5
CALM_SECONDS = 15.0
LATE_SECONDS = 10.0  # beyond the limit: two checks 3.2 s apart, the reads, and delays of a busy machine
SLOW_NODE, AHEAD_NODE = 0, 1

# The first lines of a rank's and a writer's program; `node` is the number of their node.
ODD = f"""
import time
if node == {AHEAD_NODE}:
    real = time.time
    time.time = lambda: real() + 3600
"""
WRITER = f"""
import sys
sys.path.insert(0, sys.argv.pop(1))
node = int(sys.argv[2])
{ODD}
from clusterctl.shared.record import files
from clusterctl.shared.node import node_writer
real_open, real_tick = files._open, node_writer.NodeWriter.tick
def slow_open(*words):
    time.sleep(READ_SECONDS)
    return real_open(*words)
def slow_tick(self):
    time.sleep(0.5)
    real_tick(self)
files._open = slow_open
if node == {SLOW_NODE}:
    node_writer.NodeWriter.tick = slow_tick
node_writer.main()
"""
RANK = f"""
import os, signal, sys
node = int(os.environ["SLURM_NODEID"])
{ODD}
from clusterctl.shared.node import node_link
from clusterctl.shared.node.answers import Answers, register_dump, stacks_text
from clusterctl.shared.node.events import Events
from clusterctl.shared.record.heartbeats import Pulse
from clusterctl.shared.record.layout import current_attempt
from clusterctl.shared.record.place import Place
node_link._PROGRAM = sys.argv[1]
attempt, place = current_attempt(), Place.from_environment()
link = node_link.NodeLink(attempt, place, "task", register_dump())
events = Events(attempt, place.rank, link)
answers = Answers(attempt, place.rank, events, stacks_text)
link.handlers = {{"alarm": answers.take, "leave": answers.leave}}
link.open()
link.introduce(watchdog={asdict(SETTINGS)!r})
heart = events.heart
heart.enter("training")
Pulse(heart, link.beat).start()
def loop(*_):
    heart.go_on()
    while True:
        pass
def wait(*_):
    heart.wait()
    while True:
        time.sleep(600)
signal.signal(signal.SIGUSR1, wait)
signal.signal(signal.SIGUSR2, loop)
step = 0
while True:
    busy = {STEP_SECONDS} if node == {SLOW_NODE} else {STEP_SECONDS} / 5
    time.sleep(busy)
    heart.wait()
    time.sleep({STEP_SECONDS} - busy)
    heart.go_on()
    step += 1
    heart.beat(step)
"""


class Outcome(NamedTuple):
    """The outcome of one trial; `seconds` until the alarm, None if it was not raised in time."""

    false_alarm: bool
    seconds: float | None
    suspects: list[int]
    how: str


def trial(folder: Path, nodes: int, per_node: int, stuck: int, *, stopped: bool, read_seconds: float) -> Outcome:
    attempt = RunDir(folder).attempt(0)
    attempt.path.mkdir(parents=True)
    attempt.secret.write_text(secrets.token_hex(32))
    attempt.secret.chmod(0o600)
    writer = WRITER.replace("READ_SECONDS", str(read_seconds))
    places = [(node, local) for node in range(nodes) for local in range(per_node)]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-S", "-c", RANK, writer],
            env=environment(attempt, rank, place, len(places), nodes),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        for rank, place in enumerate(places)
    ]
    try:
        while True:
            beats = all_beats(attempt)
            if len(beats) == len(ranks) and all(beat.step >= 5 for beat in beats.values()):
                break
            if any(process.poll() is not None for process in ranks):
                return Outcome(raised(attempt), None, [], "a rank has ended")
            time.sleep(1)
        time.sleep(CALM_SECONDS)
        if raised(attempt):
            return Outcome(True, None, [], "")
        began = time.monotonic()
        ranks[stuck].send_signal(signal.SIGSTOP if stopped else signal.SIGUSR2)
        for rank, process in enumerate(ranks):
            if rank != stuck:
                process.send_signal(signal.SIGUSR1)
        while not raised(attempt):
            if time.monotonic() - began > SETTINGS.floor + LATE_SECONDS:
                return Outcome(False, None, [], "")
            time.sleep(0.2)
        seconds = time.monotonic() - began
        time.sleep(0.5)  # the file may be incomplete
        alarm = read_json(attempt.hang_json)
        return Outcome(False, seconds, alarm["suspects"], alarm["how"])
    finally:
        for process in ranks:
            process.kill()
        for process in ranks:
            process.wait()


def raised(attempt: Attempt) -> bool:
    return attempt.hang_json in attempt.path.iterdir()


def environment(attempt: Attempt, rank: int, place: tuple[int, int], ranks: int, nodes: int) -> dict[str, str]:
    return os.environ | {
        "PYTHONPATH": str(Path(clusterctl.__file__).parents[1]),
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(place[1]),
        "SLURM_NODEID": str(place[0]),
        "SLURM_NTASKS": str(ranks),
        "SLURM_STEP_NUM_NODES": str(nodes),
        "CLUSTERCTL_RUN_DIR": str(attempt.path.parents[1]),
        "CLUSTERCTL_ATTEMPT": "0",
    }


def main() -> None:
    words = arguments(__doc__)
    words.add_argument("--nodes", type=int, default=64)
    words.add_argument("--per-node", type=int, default=8)
    words.add_argument("--trials", type=int, default=20)
    words.add_argument("--read-ms", type=float, default=5.0)
    options = words.parse_args()
    choice, good = random.Random(0), 0
    print(f"{'trial':>6}{'stuck':>7}  {'by':<8}{'named after':>12}  suspects")
    for number in range(options.trials):
        stuck, stopped = choice.randrange(options.nodes * options.per_node), number % 2 == 0
        with TemporaryDirectory(prefix="watchdog-", ignore_cleanup_errors=True) as name:
            sizes = options.nodes, options.per_node
            read_seconds = options.read_ms / 1000
            found = trial(Path(name, "run"), *sizes, stuck, stopped=stopped, read_seconds=read_seconds)
        good += found.seconds is not None and found.suspects == [stuck]
        after = "never" if found.seconds is None else f"{found.seconds:.1f} s"
        outcome = f"false alarm {found.how}" if found.false_alarm else f"{found.suspects} {found.how}"
        print(f"{number:>6}{stuck:>7}  {'SIGSTOP' if stopped else 'a loop':<8}{after:>12}  {outcome}", flush=True)
    verdict = "reached" if good == options.trials else "NOT reached"
    limit = f"within {SETTINGS.floor + LATE_SECONDS:.0f} s"
    print(f"only the stuck rank named {limit}, no false alarm: {good} of {options.trials}   aim: all, {verdict}")


if __name__ == "__main__":
    main()
