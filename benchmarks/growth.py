"""The cost of a graph that grows 1, 4 and 16 times at constant degree: memory of one rank, and time per step.

python benchmarks/growth.py [--scale 0.025] [--threads 2]
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from rank_worker import Wanted, measure
from side_by_side import arguments

from clusterctl.engine.data.reddit import reddit_like
from clusterctl.engine.graph.storage import save


def main() -> None:
    words = arguments(__doc__)
    words.add_argument("--scale", type=float, default=0.025, help="smallest graph relative to Reddit's number of nodes")
    words.add_argument("--threads", type=int, default=2)
    options = words.parse_args()
    print(f"{'nodes':>10}{'edges':>14}{'file':>12}{'peak memory':>14}{'step':>12}{'relative':>14}")
    first = None
    for factor in (1, 4, 16):
        with TemporaryDirectory() as folder:
            path = Path(folder, "graph.pt")
            graph = reddit_like(options.scale * factor)
            save(graph, path)
            nodes, edges, size = graph.num_nodes, graph.indices.numel(), path.stat().st_size
            del graph
            measured = measure(Wanted(str(path)), 1, options.threads)
            step = 1024 / measured.seeds_per_second
            first = first or step
            print(f"{nodes:>10}{edges:>14}{size / 1e6:>9.0f} MB{measured.peak / 1e6:>11.0f} MB", end="")
            print(f"{step * 1000:>9.0f} ms{step / first:>14.2f}", flush=True)


if __name__ == "__main__":
    main()
