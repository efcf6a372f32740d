"""Time two programs alternately, A B A B ..., and print the ratio of the pairs: a drift of the machine affects both.

With PROFILE=1 in the environment, the operators in which each side spends its time are printed too.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable

from clusterctl.launcher.submission.plan import BRIEF_SPINS, STEADY_HEAP, TUNED_ALLOCATOR

Timed = Callable[[], float]
"""Does the work once; returns the seconds to report."""


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The parser of a benchmark, whose `--help` is its docstring. Sizes are options, and several follow one name."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


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


def with_environment_of_a_run(threads: int) -> None:
    """Restart this program with the allocator and threads of a run, unless they are set already, for both sides."""
    of_a_run = TUNED_ALLOCATOR | STEADY_HEAP | BRIEF_SPINS | {"OMP_NUM_THREADS": str(threads)}  # numpy's products too
    if any(os.environ.get(name) != value for name, value in of_a_run.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **of_a_run})


def compare(
    title: str,
    ours: tuple[str, Timed],
    rival: tuple[str, Timed],
    *,
    bound: float | None,
    runs: int = 15,
    warm_up: int = 1,
) -> None:
    """Print both times and their ratio: median and spread of `runs` pairs after the `warm_up`. `bound` is the aim."""
    pairs = [(ours[1](), rival[1]()) for _ in range(warm_up + runs)][warm_up:]
    ratios = [a / b for a, b in pairs]
    print(f"{title}   ({platform.processor() or platform.machine()}, {os.cpu_count()} cores, {runs} pairs)")
    for name, column in ((ours[0], 0), (rival[0], 1)):
        times = [pair[column] for pair in pairs]
        low, middle, high = min(times), statistics.median(times), max(times)
        print(f"  {name:<46} {middle * 1000:9.1f} ms   ({low * 1000:.1f} .. {high * 1000:.1f})")
    low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
    verdict = f"   aim: at most {bound:.3g}, {'reached' if middle <= bound else 'NOT reached'}" if bound else ""
    print(f"  ratio{'':<41} {middle:9.3f}     ({low:.3f} .. {high:.3f}){verdict}\n")
    if os.environ.get("PROFILE"):
        for name, work in (ours, rival):
            print(f"  {name}: {operators(work)}\n", flush=True)


def operators(work: Timed, times: int = 5, most: int = 12) -> str:
    """The `most` expensive operators of torch in this process, in ms per call of `work`, without what they call."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as found:
        for _ in range(times):
            work()
    own = sorted(((event.self_cpu_time_total, event.key) for event in found.key_averages()), reverse=True)
    total = sum(microseconds for microseconds, _ in own)
    shares = [f"{name} {microseconds / times / 1000:.1f}" for microseconds, name in own[:most]]
    return f"{total / times / 1000:.1f} ms in operators of all threads: {', '.join(shares)}"
