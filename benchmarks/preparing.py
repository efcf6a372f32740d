"""Preparing a graph with the shape of ogbn-papers100M: time per edge, and memory relative to the edge index.

The raw files are generated as OGB ships them, at growing scales. Each preparation is a process of its own; its memory
is what it holds beyond its start: anonymous and shared, without the pages of mapped files, which the kernel takes back.
The edge index is PyG's, int64 [2, edges] as in the raw file: 16 bytes per edge. The rival reads the edges of the same
files with numpy and adds the reverse ones with PyG's ToUndirected, as a PyG program begins; it leaves out the features.

python benchmarks/preparing.py [--scales 0.005 0.01 0.02] [--folder DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from process_memory import memory
from side_by_side import arguments

NAME, ARCHIVE = "ogbn-papers100M", Path("raw/data.npz")
AIM = 2.0  # times the edge index


def main() -> None:
    words = arguments(__doc__)
    words.add_argument(
        "--scales", type=float, nargs="+", default=[0.005, 0.01, 0.02], help="relative to the real number of nodes"
    )
    words.add_argument("--folder", type=Path, help="for the files, which are removed")
    words.add_argument("--worker", nargs=3, metavar=("SIDE", "RAW", "TO"), help=argparse.SUPPRESS)
    options = words.parse_args()
    if options.worker:
        side, raw, to = options.worker
        print(json.dumps(SIDES[side](Path(raw), Path(to))), flush=True)
        return
    print(f"| edges | side | time | per edge | memory | of the edge index (aim {AIM:.0f}) |")
    print("| --- | --- | --- | --- | --- | --- |")
    for scale in options.scales:
        with TemporaryDirectory(dir=options.folder) as folder:
            raw = Path(folder, "data")
            generate(raw, scale)
            for side in SIDES:
                print_row(side, raw, Path(folder, side))


def generate(raw: Path, scale: float) -> None:
    """Write the raw files, in a process of their own."""
    raw.mkdir()
    words = "from pathlib import Path; from clusterctl.engine.data import ogb_like; "
    words += f"ogb_like.write({NAME!r}, Path({str(raw)!r}), {scale}, 0)"
    subprocess.run([sys.executable, "-c", words], check=True)


def print_row(side: str, raw: Path, to: Path) -> None:
    """Run one side, and print its row."""
    words = [sys.executable, __file__, "--worker", side, str(raw), str(to)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as worker:
        peak = 0
        while worker.poll() is None:
            peak = max(peak, held(worker.pid))
            time.sleep(0.01)
        assert worker.stdout is not None
        found = json.loads(worker.stdout.readlines()[-1])
    index = 16 * found["edges"]
    taken, spent = peak - found["start"], found["seconds"]
    print(
        f"| {found['edges'] / 1e6:.1f} million | {side} | {spent:.1f} s | {1e6 * spent / found['edges']:.2f} µs "
        f"| {taken / 1e6:.0f} MB | {taken / index:.2f} |",
        flush=True,
    )


def held(pid: int) -> int:
    """The bytes of memory that a process holds, without pages of files."""
    return memory("status", "RssAnon:", "RssShmem:", pid=pid)


def prepared(raw: Path, to: Path) -> dict[str, float]:
    """As a run does it: the whole prepared file, features included."""
    import torch

    from clusterctl.engine.data.ogb import recipe

    torch.set_num_threads(2)
    to.mkdir()
    start, began = held(os.getpid()), time.perf_counter()
    recipe(raw, undirected=True).prepare(to)
    return {"seconds": time.perf_counter() - began, "start": start, "edges": edge_count(raw)}


def by_pyg(raw: Path, to: Path) -> dict[str, float]:  # noqa: ARG001 - it writes nothing
    """PyG's Data in memory, without its features."""
    import torch
    from torch_geometric.data import Data
    from torch_geometric.transforms import ToUndirected

    start, began = held(os.getpid()), time.perf_counter()
    with np.load(raw / ARCHIVE) as arrays:
        edges = torch.from_numpy(arrays["edge_index"])
    ToUndirected()(Data(edge_index=edges))
    return {"seconds": time.perf_counter() - began, "start": start, "edges": edge_count(raw)}


def edge_count(raw: Path) -> int:
    with np.load(raw / ARCHIVE) as arrays:
        return int(arrays["num_edges_list"][0])


SIDES = {"ours": prepared, "PyG's ToUndirected": by_pyg}

if __name__ == "__main__":
    main()
