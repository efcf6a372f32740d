"""What further ranks on a node cost in memory: four against one, the proportional set size of all processes together.

What the programs themselves need (torch, numba) is measured with a graph of almost nothing, and taken off. The global
batch is the same, 1,024 seeds. In a step, every rank also holds what it computes from its own seeds. The last column is
what a graph in every rank costs, as in the published examples. The aim is that of the whole graph (--scale 1), on a
machine that runs nothing else: pages of torch that other programs share count less.

python benchmarks/memory.py [--scale 0.1]
"""

from __future__ import annotations

import argparse
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory

from rank_worker import Measured, Wanted, measure

from clusterctl.graph.storage import save
from clusterctl.workloads.generated.reddit_like import reddit_like

ROWS = {"float32": ("float32", False), "bfloat16, cached first aggregation": ("bfloat16", True)}
_AIM = 1.15


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--scale", type=float, default=0.1, help="of Reddit's number of nodes; 1: all 233 thousand")
    options = words.parse_args()
    with TemporaryDirectory() as folder:
        paths = {"graph": Path(folder, "graph.pt"), "empty": Path(folder, "empty.pt")}
        save(reddit_like(options.scale), paths["graph"])
        save(reddit_like(100 / 232_965), paths["empty"])
        print(f"{'':<48}{'1 rank':>10}{'4 ranks':>10}{'ratio':>8}   four copies")
        for name, (precision, cached) in ROWS.items():

            def measured(graph: str, ranks: int, precision: str = precision, cached: bool = cached) -> Measured:
                return measure(Wanted(str(paths[graph]), 5, 1024 // ranks, precision, cached, evaluate=True), ranks, 1)

            pairs = [(measured("graph", ranks), measured("empty", ranks)) for ranks in (1, 4)]
            for when, of in (("at rest", attrgetter("at_rest")), ("in a step", attrgetter("in_step"))):
                one, four = (of(graph) - of(empty) for graph, empty in pairs)
                verdict = "reached" if four <= _AIM * one else "NOT reached"
                print(
                    f"{f'{name}, {when}':<48}{one / 1e6:>7.0f} MB{four / 1e6:>7.0f} MB{four / one:>8.2f}"
                    f"{4 * one / 1e6:>11.0f} MB   aim: at most {_AIM}, {verdict}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
