"""Time two programs alternately, A B A B ..., and print the ratio of the pairs: a drift of the machine affects both."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable

from clusterctl.launch.plan import TUNED_ALLOCATOR

Timed = Callable[[], float]
"""Does the work once; returns the seconds to report."""


def timed(work: Callable[[], object]) -> Timed:
    """The wall time of `work`."""

    def once() -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    return once


def in_a_row(work: Timed, times: int) -> Timed:
    """The mean time of `times` calls in a row, with warm caches: after other work, they are cold."""

    def once() -> float:
        return sum(work() for _ in range(times)) / times

    return once


def with_tuned_allocator() -> None:
    """Restart this program with the allocator of a run, unless it is set already: it applies to both sides."""
    if any(os.environ.get(name) != value for name, value in TUNED_ALLOCATOR.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **TUNED_ALLOCATOR})


def compare(
    title: str, ours: tuple[str, Timed], rival: tuple[str, Timed], *, bound: float | None, runs: int = 15
) -> None:
    """Print both times and their ratio: median and spread of `runs` pairs after one warm-up. `bound` is the aim."""
    pairs = [(ours[1](), rival[1]()) for _ in range(runs + 1)][1:]
    ratios = [a / b for a, b in pairs]
    print(f"{title}   ({platform.processor() or platform.machine()}, {os.cpu_count()} cores, {runs} pairs)")
    for name, column in ((ours[0], 0), (rival[0], 1)):
        times = [pair[column] for pair in pairs]
        low, middle, high = min(times), statistics.median(times), max(times)
        print(f"  {name:<46} {middle * 1000:9.1f} ms   ({low * 1000:.1f} .. {high * 1000:.1f})")
    low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
    verdict = f"   aim: at most {bound:.3g}, {'reached' if middle <= bound else 'NOT reached'}" if bound else ""
    print(f"  ratio{'':<41} {middle:9.3f}     ({low:.3f} .. {high:.3f}){verdict}\n")
