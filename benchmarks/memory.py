"""The memory of more ranks on a node: four compared with one, as the total proportional set size of all processes.

The memory of the programs themselves (torch, numba) is measured with a tiny graph and subtracted. The global batch is
the same, 1,024 seeds. During a step, every rank also holds the intermediate results of its own seeds. The last column
is the cost of a graph in every rank, as in the published examples. The aim applies to the whole graph (--scale 1) on an
idle machine: pages of torch shared with other programs count less.

python benchmarks/memory.py [--scale 0.1]
"""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory

from rank_worker import Measured, Wanted, measure
from side_by_side import arguments

from clusterctl.engine.data.reddit import reddit_like
from clusterctl.engine.graph.storage import save

ROWS = {"float32": ("float32", False), "bfloat16, cached first aggregation": ("bfloat16", True)}
_AIM = 1.15


def main() -> None:
    words = arguments(__doc__)
    words.add_argument("--scale", type=float, default=0.1, help="relative to Reddit's 233 thousand nodes")
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
