"""Counts what a command asks of the file system, and measures its processor time and memory; each has its process."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_EVENTS = {"open": "open", "os.listdir": "list", "os.scandir": "list"}


class Cost(NamedTuple):
    """What one command cost; `read` in bytes, `memory` its peak in bytes."""

    opens: int
    listings: int
    stats: int
    read: int
    cpu_seconds: float
    memory: int

    def __str__(self) -> str:
        operations = f"{self.opens:>9}{self.listings:>10}{self.stats:>8}{self.read / 1e6:>8.1f} MB"
        return f"{operations}{self.cpu_seconds:>7.2f} s{self.memory / 1e6:>7.0f} MB"


HEAD = f"{'opens':>9}{'listings':>10}{'stats':>8}{'read':>11}{'CPU':>9}{'memory':>10}"


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """The operations of this process from then on: `open`, `list`, `stat`. Within it alone."""
    counted: Counter[str] = Counter()
    active = True

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if active and event in _EVENTS and not isinstance(arguments[0], int):  # of a descriptor: it is open already
            counted[_EVENTS[event]] += 1

    def counts(real: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
        def stat(*arguments: Any, **named: Any) -> os.stat_result:
            counted["stat"] += 1
            return real(*arguments, **named)

        return stat

    sys.addaudithook(hook)  # there is no way to take one back
    real = os.stat, os.lstat
    os.stat, os.lstat = map(counts, real)
    try:
        yield counted
    finally:
        active = False
        os.stat, os.lstat = real


def environment_of(folder: Path) -> dict[str, str]:
    """That of commands which find the runs of `folder`."""
    own = {"CLUSTERCTL_RUNS": str(folder), "XDG_STATE_HOME": f"{folder}/.state", "CLUSTERCTL_CLUSTER": "local"}
    return {**os.environ, **own}


def cost_of(argv: list[str], folder: Path) -> Cost:
    """What `clusterctl ARGV` costs, with the start of its interpreter; what it prints is dropped."""
    words = [sys.executable, __file__, *argv]
    run = subprocess.run(
        words, env=environment_of(folder), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True
    )
    return Cost(**json.loads(run.stderr.splitlines()[-1]))


def main() -> None:
    from clusterctl.cli import run

    with counting() as counted:
        code = run(sys.argv[1:])
    used, io = resource.getrusage(resource.RUSAGE_SELF), Path("/proc/self/io").read_text()
    read = int(io.split("rchar: ")[1].split()[0])
    status = Path("/proc/self/status").read_text()  # getrusage's peak is that of the process before exec too
    peak = int(status.split("VmHWM:")[1].split()[0]) * 1024
    operations = counted["open"], counted["list"], counted["stat"]
    cost = Cost(*operations, read, used.ru_utime + used.ru_stime, peak)
    print(json.dumps(cost._asdict()), file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
