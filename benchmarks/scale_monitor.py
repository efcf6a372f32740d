"""The cost of an open monitor beside one run in training, by the number of ranks: CPU, memory, read calls.

The run is generated, with eight ranks per node. Each second it writes a step, every rank's heartbeat, and the telemetry
of a fifth of its nodes, like a real one. There is no rival; the aim is 5 % of a core.

python benchmarks/scale_monitor.py [--ranks 4 64 1024 4096]
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path

from command_cost import environment_of
from monitor import AIM_SHARE, CLUSTERCTL, cpu_seconds, in_terminal, resident
from side_by_side import arguments
from support.made_runs import Case, go_on, write_many_ranks

SIZES = (4, 64, 1024, 4096)
SETTLES_SECONDS, SECONDS = 15.0, 60.0


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=SIZES)
    sizes = parser.parse_args().ranks
    print(f"{'an open monitor':<24}{'of a core':>12}{'memory':>12}{'reads':>12}   aim: {AIM_SHARE:.0%} of a core")
    for ranks in sizes:
        with tempfile.TemporaryDirectory(prefix="monitor-") as name:
            share, memory, reads = beside(Path(name), ranks)
        verdict = "reached" if share <= AIM_SHARE else "NOT reached"
        print(f"{ranks:>11,} ranks       {share:>11.1%}{memory:>9.0f} MB{reads:>10.0f}/s   {verdict}", flush=True)


def beside(runs: Path, ranks: int) -> tuple[float, float, float]:
    """The share of a core, megabytes at the end, and read calls per second of a monitor on one run."""
    run, over = write_many_ranks(runs, ranks, Case.RUNNING, time.time()), threading.Event()

    def write() -> None:
        second = 0
        while not over.wait(max(0.0, 1.0 - time.time() % 1.0)):
            second += 1
            go_on(run, ranks, second, time.time())

    writer = threading.Thread(target=write)
    environment = {name: value for name, value in environment_of(runs).items() if name not in ("COLUMNS", "LINES")}
    process, terminal = in_terminal([CLUSTERCTL, "monitor", run.id], environment | {"TERM": "xterm-256color"})
    writer.start()
    try:
        time.sleep(SETTLES_SECONDS)  # the first refresh reads everything
        began, before, reads = time.monotonic(), cpu_seconds(process.pid), _reads(process.pid)
        time.sleep(SECONDS)
        passed = time.monotonic() - began
        used = (cpu_seconds(process.pid) - before) / passed
        return used, resident(process.pid), (_reads(process.pid) - reads) / passed
    finally:
        process.terminate()
        process.wait()
        os.close(terminal)
        over.set()
        writer.join()


def _reads(pid: int) -> int:
    return int(Path(f"/proc/{pid}/io").read_text().split("syscr: ")[1].split()[0])


if __name__ == "__main__":
    main()
