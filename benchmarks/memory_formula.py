"""The memory that the formula of `submit --dry-run` gives, divided by the peak of runs of built-in workloads.

Each workload trains on a small and on a larger generated data set, with one, two and four ranks on a node. The first
run of a data set prepares it, the others train only. On the emulator, the peak is the sum of the processes'
proportional sets; on a cluster with cgroups (`--cluster NAME`), it is the one that the kernel counted. Aim: within
15 %. With `--large`, the data sets are four times as large.

python benchmarks/memory_formula.py [--cluster NAME] [--only NAME ...] [--ranks 1 2 4] [--large]
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from side_by_side import arguments

import clusterctl
from clusterctl.launcher.api.usage import usage_of

MIB, AIM = 2**20, 0.15
ROOT = Path(__file__).resolve().parents[1]
CLUSTER = 'kind = "emulator"\n[emulator]\nnodes = 2\ncpus_per_node = 16\n'


class Row(NamedTuple):
    """A job with a small data set and a larger one: settings, or the name and the scales of one to generate."""

    job: str
    sizes: tuple[str, ...]
    data_set: str = ""
    more: tuple[str, ...] = ()
    nodes: int = 1


ON_CPUS = ("resources.gpus_per_node=0", "resources.memory=8G")
ON_DISK = ("resources.memory=8G", "data.cache=8M")
ROWS = {
    "synthetic": Row("synthetic", ("train.avg_num_nodes=10000", "train.avg_num_nodes=100000")),
    "synthetic-sage": Row("synthetic-sage", ("train.avg_num_nodes=10000", "train.avg_num_nodes=100000")),
    "reddit": Row("reddit", ("0.005", "0.05"), "reddit", ON_CPUS),
    "reddit-on-disk": Row("reddit", ("0.005", "0.05"), "reddit", (*ON_CPUS, "data.cache=8M")),
    "deep-sage": Row("deep-sage", ("0.005", "0.05"), "reddit", ON_CPUS),
    "gat": Row("gat-cora", ("0.005", "0.02"), "reddit", ("train.global_batch_size=128", "resources.memory=8G")),
    "rgat": Row("igbh-generated", ("train.generated=1e-5", "train.generated=5e-5")),
    "gat-on-disk": Row("gat-cora", ("0.005", "0.02"), "reddit", (*ON_DISK, "train.global_batch_size=128")),
    "rgat-on-disk": Row("igbh-generated", ("train.generated=1e-5", "train.generated=5e-5"), more=("data.cache=8M",)),
    "split": Row("reddit", ("0.005", "0.05"), "reddit", (*ON_CPUS, "data.placement=split"), nodes=2),
    "taobao": Row("taobao-generated", ("train.generated=0.001", "train.generated=0.004")),
    "graph-classification": Row("imdb-gin", ("train.folds=1",)),
    "compiled-steps": Row("imdb-gin", ("train.epochs=300",), more=("train.folds=1",)),
}


def main() -> None:
    words = arguments(__doc__)
    words.add_argument("--cluster", help="a cluster file; by default emulated nodes")
    words.add_argument("--only", nargs="+", default=[*ROWS], choices=[*ROWS], metavar="NAME")
    words.add_argument("--ranks", nargs="+", type=int, default=[1, 2, 4])
    words.add_argument("--large", action="store_true")
    options = words.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["CLUSTERCTL_DATA_CACHE"] = f"{folder}/cache"
        if not options.cluster:
            os.environ |= {"XDG_STATE_HOME": f"{folder}/state", "CLUSTERCTL_RUNS": f"{folder}/runs"}
            (folder / "one.toml").write_text(CLUSTER)
        cluster = options.cluster or str(folder / "one.toml")
        print(f"{'':<22}{'':<28}{'ranks':>6}{'formula':>12}{'peak':>12}{'ratio':>8}", flush=True)
        ratios = []
        for label in options.only:
            for size in ROWS[label].sizes:
                settings = settings_of(ROWS[label], size, folder, large=options.large)
                for count, preparing in [(1, True), *((ranks, False) for ranks in options.ranks)]:
                    formula, peak = measured(ROWS[label].job, settings, count, cluster, preparing=preparing)
                    ratio = formula / peak
                    shown = f"{count}, prepares" if preparing else count
                    print(
                        f"{label:<22}{size:<28}{shown:>6}{formula / MIB:>8.0f} MiB{peak / MIB:>8.0f} MiB{ratio:>8.2f}",
                        flush=True,
                    )
                    ratios += [] if preparing else [ratio]
        within = sum(abs(ratio - 1) <= AIM for ratio in ratios)
        verdict = "reached" if within == len(ratios) else "NOT reached"
        print(f"{within} of {len(ratios)} within {AIM:.0%} when training: {verdict}")


def settings_of(row: Row, size: str, folder: Path, *, large: bool) -> list[str]:
    """The settings of a job with this data set, which is generated first if it has a name."""
    key, _, number = size.rpartition("=")
    factor = 4 if large and key != "train.folds" else 1
    value = f"{float(number) * factor:g}" if "." in number or "e" in number else str(int(number) * factor)
    settings = [*row.more, "train.epochs=2", f"resources.nodes={row.nodes}"]
    if not row.data_set:
        return [*settings, f"{key}={value}"]
    root = folder / f"{row.data_set}-{value}"
    if not root.exists():
        from clusterctl.engine.data.data_sets import generate

        generate(row.data_set, float(value), 0, root)
    return [*settings, f"data.root={root}"]


def measured(job: str, settings: list[str], ranks: int, cluster: str, *, preparing: bool) -> tuple[int, float]:
    """The bytes that the formula gives for the node, and the most that the run needed."""
    changes = [*settings, f"resources.tasks_per_node={ranks}", "resources.cpus_per_task=1"]
    formula = clusterctl.plan(ROOT / "jobs" / f"{job}.toml", cluster, overrides=changes).memory
    if formula is None:
        raise SystemExit(f"no formula for {job} with {' '.join(changes)}")
    run = clusterctl.submit(ROOT / "jobs" / f"{job}.toml", cluster, overrides=changes)
    run.wait(timeout=7200)
    peak = usage_of(run.id, cluster).needs.memory.used
    if peak is None:
        raise SystemExit(f"no telemetry of {run.id}")
    return max(formula.training, formula.preparing) if preparing else formula.training, peak


if __name__ == "__main__":
    sys.exit(main())
