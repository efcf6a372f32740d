"""The gain from `resources.allocator = "tuned"`: the same training step with and without it.

Each side is a separate process, since the variables are read when a process starts; they take turns. Then the peak
memory of each is printed. For our steps, also with three classes of PyG's users (docs/examples/pyg), the variables that
keep the heap of a built-in training steady are compared with the tuned allocator alone, too. A graph of Reddit's size
(--scale 1) needs 12 GB.

python benchmarks/allocator.py [--scale 0.3] [--threads 2] [--runs 10] [--only STEP ...]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from contextlib import ExitStack

from process_memory import memory
from side_by_side import Timed, arguments, compare

from clusterctl.launcher.submission.plan import STEADY_HEAP, TUNED_ALLOCATOR

ALLOCATORS = {"steady": TUNED_ALLOCATOR | STEADY_HEAP, "tuned": TUNED_ALLOCATOR, "system": {}}
USERS = {"ours with a user's SAGE": "sage", "ours with a user's GATv2": "gatv2", "ours with a user's JKNet": "jk"}
STEPS = ("ours", "ours in bfloat16", *USERS, "PyG's example", "PyG by an expert")


def main() -> None:
    words = arguments(__doc__)
    words.add_argument("--scale", type=float, default=0.3, help="relative to Reddit's number of nodes")
    words.add_argument("--threads", type=int, default=2)
    words.add_argument("--runs", type=int, default=10)
    words.add_argument("--only", nargs="+", default=STEPS, choices=STEPS, metavar="STEP")
    words.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    options = words.parse_args()
    if options.step:
        answer(options.step, options.scale, options.threads)
        return
    for step in options.only:
        for pair in (("steady", "tuned"),) * step.startswith("ours") + (("tuned", "system"),):
            with ExitStack() as stack:
                sides = [stack.enter_context(_started(step, options, ALLOCATORS[name])) for name in pair]
                one, other = ((name, _steps(side)) for name, side in zip(pair, sides, strict=True))
                compare(
                    f"{step}, one step of Reddit at scale {options.scale:g}", one, other, bound=1, runs=options.runs
                )
                peaks = ", ".join(f"{name} {_peak(side)} MiB" for name, side in zip(pair, sides, strict=True))
                print(f"  peak memory: {peaks}\n")


def _started(step: str, options: argparse.Namespace, variables: dict[str, str]) -> subprocess.Popen[str]:
    words = [sys.executable, __file__, "--step", step, "--scale", str(options.scale), "--threads", str(options.threads)]
    kept = {name: value for name, value in os.environ.items() if name not in ALLOCATORS["steady"]}
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=kept | variables)


def _steps(side: subprocess.Popen[str]) -> Timed:
    return lambda: float(_request(side, "step"))


def _peak(side: subprocess.Popen[str]) -> str:
    return _request(side, "peak")


def _request(side: subprocess.Popen[str], question: str) -> str:
    assert side.stdin
    assert side.stdout
    print(question, file=side.stdin, flush=True)
    return side.stdout.readline().strip()


def answer(step: str, scale: float, threads: int) -> None:
    """Take a step, or print the peak memory, on each line of stdin. What a training prints goes to stderr."""
    answers, sys.stdout = sys.stdout, sys.stderr
    from dataclasses import replace

    import torch
    from node_steps import expert_step, given_samples, our_step, pyg_step
    from torch import distributed as dist

    from clusterctl.engine.data.reddit import reddit_like
    from clusterctl.shared.spec import RedditTrain

    torch.set_num_threads(threads)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    graph, settings = reddit_like(scale), RedditTrain()
    match step:
        case "ours":
            once = our_step(graph, settings)
        case "ours in bfloat16":
            once = our_step(graph, replace(settings, precision="bfloat16"))
        case _ if step in USERS:
            from any_model import MODELS

            from clusterctl.engine.training.objectives.own_node import OwnNodeClassification

            once = our_step(graph, replace(MODELS[USERS[step]], batch_size=512), OwnNodeClassification)
        case "PyG's example":
            once = pyg_step(graph, settings, given_samples(graph, settings))
        case _:
            once = expert_step(graph, settings)
    for line in sys.stdin:
        print(once() if line.strip() == "step" else memory("status", "VmHWM:") >> 20, file=answers, flush=True)


if __name__ == "__main__":
    main()
