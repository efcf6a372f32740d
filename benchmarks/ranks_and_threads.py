"""Is a core as useful for a rank as for a thread? Two ranks with one thread compared with one rank with two.

Seeds per second when training GraphSAGE on a generated graph with Reddit's statistics, sampling ahead as `fit` does.

python benchmarks/ranks_and_threads.py [--scale 0.1] [--runs 5]
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from rank_worker import Wanted, measure
from side_by_side import Timed, arguments, compare

from clusterctl.engine.data.reddit import reddit_like
from clusterctl.engine.graph.storage import save


def main() -> None:
    words = arguments(__doc__)
    words.add_argument("--scale", type=float, default=0.1, help="relative to Reddit's 233 thousand nodes")
    words.add_argument("--runs", type=int, default=5)
    options = words.parse_args()
    with TemporaryDirectory() as folder:
        path = Path(folder, "graph.pt")
        save(reddit_like(options.scale), path)
        compare(
            "Training 1,024 seeds",
            ("two ranks of one thread", thousand_seeds(path, 2, 1)),
            ("one rank of two threads", thousand_seeds(path, 1, 2)),
            bound=1 / 0.9,
            runs=options.runs,
        )


def thousand_seeds(path: Path, ranks: int, threads: int) -> Timed:
    return lambda: 1024 / measure(Wanted(str(path)), ranks, threads).seeds_per_second


if __name__ == "__main__":
    main()
