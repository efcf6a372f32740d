"""`monitor --once` with 1,000 runs on disk, and the memory and CPU time of an open monitor beside a busy run.

There is no rival. The aims are 1 s for a frame, and per hour at most 20 MB of growth and 5 % of a core. The run is
unusually busy: ten steps per second, four nodes with eight GPUs, 32 ranks, one log line per second. Growth is the slope
of the resident memory over the second half of the time, scaled to an hour: over a few minutes, it is an overestimate,
since the curves are still filling up, and is reported as extrapolated. So all refreshes of an hour are also done in a
row, each after two seconds' worth of lines, without the pauses: this growth is measured.

python benchmarks/monitor.py [--minutes 3]      60 measures a whole hour
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import platform
import pty
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from pathlib import Path
from typing import Any

from side_by_side import arguments, timed

from clusterctl.shared.errors import SlurmError
from clusterctl.shared.record.files import Lines, write_json
from clusterctl.shared.record.layout import Attempt, RunDir
from clusterctl.shared.spec import Cluster, Job, RedditTrain, Resources, to_record

CLUSTERCTL = str(Path(sys.executable).with_name("clusterctl"))
RUNS, ROUNDS = 1000, 7
LOOKS = 1800  # refreshes per hour, one every two seconds
NODES, GPUS = 4, 8
LINES, COLUMNS = 60, 200
AIM_SECONDS, AIM_MEGABYTES, AIM_SHARE = 1.0, 20.0, 0.05


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--minutes", type=float, default=3.0)
    minutes = parser.parse_args().minutes
    with tempfile.TemporaryDirectory(prefix="monitor-", dir="/tmp") as name:
        folder = Path(name)
        write_ended_runs(folder / "runs")
        environment = {**os.environ, "CLUSTERCTL_RUNS": str(folder / "runs"), "XDG_STATE_HOME": f"{name}/state"}
        environment |= {"CLUSTERCTL_CLUSTER": "local", "COLUMNS": str(COLUMNS)}
        words = [CLUSTERCTL, "monitor", "--once", "-n", str(RUNS)]
        once = timed(lambda: subprocess.run(words, env=environment, capture_output=True, check=True))
        times = [once() for _ in range(ROUNDS + 1)][1:]
        print(f"monitor   ({platform.machine()}, {os.cpu_count()} cores)")
        report(
            f"monitor --once, {RUNS} runs", f"{statistics.median(times):.2f} s", statistics.median(times) / AIM_SECONDS
        )
        watch_busy_run(folder / "runs", environment, 60 * minutes)
        asyncio.run(refresh_for_an_hour(folder / "hour"))


def watch_busy_run(runs: Path, environment: dict[str, str], seconds: float) -> None:
    attempt = begin_busy_run(runs)
    stop = threading.Event()
    writer = threading.Thread(target=write_on, args=(attempt, stop))
    writer.start()
    environment = {name: value for name, value in environment.items() if name != "COLUMNS"}
    process, terminal = in_terminal([CLUSTERCTL, "monitor"], environment | {"TERM": "xterm-256color"})
    try:
        sizes, used = follow(process, seconds)
    finally:
        process.terminate()
        process.wait()
        os.close(terminal)
        stop.set()
        writer.join()
    later = sizes[len(sizes) // 2 :]
    slope = statistics.linear_regression([at for at, _ in later], [size for _, size in later]).slope
    how = "measured" if seconds >= 3600 else f"extrapolated from {seconds / 60:g} minutes"
    growth = max(0.0, slope * 3600)
    first, last = sizes[len(sizes) // 2][1], sizes[-1][1]
    report(f"growth per hour, {how}", f"{growth:.1f} MB", growth / AIM_MEGABYTES)
    print(f"  {'resident memory halfway, and at the end':<52} {first:.1f} MB, {last:.1f} MB")
    report("CPU, of one core", f"{used:.1%}", used / AIM_SHARE)


async def refresh_for_an_hour(runs: Path) -> None:
    """All refreshes of an hour in a row, in this process and without a screen."""
    from clusterctl.launcher.display.monitor.app import Actions, Monitor
    from clusterctl.launcher.observe.overview import Overview

    class Silent:
        def snapshot(self) -> None:
            raise SlurmError("not asked")

    runs.mkdir()
    attempt, now = begin_busy_run(runs), time.time()
    writer = Writer(attempt)
    app = Monitor(Overview(runs, slurm_of=lambda _: Silent(), clock=lambda: now), Actions(), 1e9)
    sizes = []
    async with app.run_test(size=(COLUMNS, LINES)) as pilot:
        for _ in range(LOOKS):
            for _ in range(20):
                now += 0.1
                writer.write(now)
            app.look()
            await app.workers.wait_for_complete()
            await pilot.pause()
            sizes.append(resident(os.getpid()))
    first = sizes[LOOKS // 36]  # 100 seconds after the start
    growth = max(sizes) - first
    report(f"growth over an hour's {LOOKS} refreshes, measured", f"{growth:.1f} MB", growth / AIM_MEGABYTES)


def report(what: str, value: str, ratio: float) -> None:
    verdict = "reached" if ratio <= 1 else "NOT reached"
    print(f"  {what:<52} {value:>10}   ratio to the aim {ratio:.2f}, {verdict}", flush=True)


def follow(process: subprocess.Popen[bytes], seconds: float) -> tuple[list[tuple[float, float]], float]:
    """Resident megabytes over time, and the share of a core after start-up."""
    time.sleep(5)  # start-up: the first refresh reads everything
    began, before = time.monotonic(), cpu_seconds(process.pid)
    sizes = []
    while (passed := time.monotonic() - began) < seconds:
        sizes.append((passed, resident(process.pid)))
        time.sleep(1)
    return sizes, (cpu_seconds(process.pid) - before) / passed


def resident(pid: int) -> float:
    """Megabytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def in_terminal(words: list[str], environment: dict[str, str]) -> tuple[subprocess.Popen[bytes], int]:
    """Start a program in its own terminal, whose output is discarded."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    process = subprocess.Popen(words, env=environment, stdin=its, stdout=its, stderr=its, start_new_session=True)
    os.close(its)
    threading.Thread(target=drain, args=(ours,), daemon=True).start()
    return process, ours


def drain(terminal: int) -> None:
    try:
        while os.read(terminal, 65536):
            pass
    except OSError:
        pass  # the terminal was closed


def write_ended_runs(runs: Path) -> None:
    """A thousand ended runs, each with metrics, events and logs."""
    runs.mkdir(mode=0o700, parents=True)
    first = RunDir(runs / "cora-20260101-000000-0000")
    attempt = write_run(first, created=1.7e9)
    metrics, events = Lines(attempt.metrics), Lines(attempt.events(0))
    for step in range(1, 81):
        metrics.append(
            {"time": 1.7e9 + step, "step": step, "steps": 80, "epoch": step // 4, "epochs": 20, "loss": 1 / step}
        )
    for stage in ("importing", "loading", "training"):
        events.append({"time": 1.7e9, "event": "stage", "stage": stage})
    ended = {
        "attempt": 0,
        "job_id": "1",
        "nodes": "node1",
        "start": 1.7e9,
        "end": 1.7e9 + 99,
        "exit_code": 0,
        "signal": "",
    }
    write_json(attempt.host_json, ended)
    write_json(first.finished_json, {"time": 1.7e9 + 99})
    for number in range(1, RUNS):
        shutil.copytree(first.path, runs / f"cora-{20260101 + number // 40}-{number:06}-0000")


def begin_busy_run(runs: Path) -> Attempt:
    attempt = write_run(RunDir(runs / "busy-20991231-000000-0000"), created=time.time())
    host = {"attempt": 0, "job_id": "1", "nodes": "node[0-3]", "start": time.time(), "end": None, "exit_code": None}
    write_json(attempt.host_json, host)
    events = Lines(attempt.events(0))
    events.append({"time": time.time(), "event": "stage", "stage": "training", "epoch": 1})
    return attempt


def write_run(run: RunDir, created: float) -> Attempt:
    run.path.mkdir(mode=0o700)
    resources = Resources(nodes=NODES, tasks_per_node=GPUS, gpus_per_node=GPUS)
    job = Job(name=run.id.partition("-")[0], workload="reddit", resources=resources, train=RedditTrain())
    cluster = Cluster(name="local", kind="emulator")
    record: dict[str, Any] = {"schema_version": 1, "id": run.id, "created": created}
    write_json(run.run_json, record | {"job": to_record(job), "cluster": to_record(cluster)})
    write_json(run.submission_json, {"job_id": "1"})
    attempt = run.attempt(0)
    for folder in ("telemetry", "logs", "events"):
        (attempt.path / folder).mkdir(parents=True, exist_ok=True)
    return attempt


def write_on(attempt: Attempt, stop: threading.Event) -> None:
    """Write as a busy run does, until `stop`."""
    writer = Writer(attempt)
    while not stop.wait(0.1):
        writer.write(time.time())


class Writer:
    """A busy run, step by step."""

    def __init__(self, attempt: Attempt) -> None:
        self._metrics, self._log = Lines(attempt.metrics), attempt.log(0)
        self._nodes = [Lines(attempt.telemetry(f"node{number}")) for number in range(NODES)]
        self._step = 0

    def write(self, now: float) -> None:
        self._step += 1
        step = self._step
        split = {"seconds": 0.1, "sampling": 0.03, "gathering": 0.02, "compute": 0.04, "communication": 0.01}
        line = {"step": step, "steps": 10**6, "epoch": 1 + step // 100, "epochs": 10**4, "loss": 1 / step}
        self._metrics.append({"time": now, **line, **split, "nodes_per_second": 1e5 + step % 97})
        if step % 10 == 0:
            with self._log.open("a") as log:
                log.write(f"epoch {step // 100}  loss {1 / step:.4f}\n")
        if step % 50 == 0:
            for number, node in enumerate(self._nodes):
                node.append(sample(number, step, now))


def sample(node: int, step: int, now: float) -> dict[str, Any]:
    gpus = [{"index": gpu, "utilisation": (13 * gpu + 7 * node + step) % 100, "memory": 3e10} for gpu in range(GPUS)]
    ranks = {
        str(node * GPUS + gpu): {"step": step, "phase": "training", "step_seconds": 0.1, "busy_seconds": 0.08}
        for gpu in range(GPUS)
    }
    return {"time": now, "cpu": 12.5, "cpus": 64, "memory": 9e10, "memory_limit": 5e11, "gpus": gpus, "ranks": ranks}


if __name__ == "__main__":
    main()
