"""Correctness and speed on GPUs, as one table.

In order: the device of each rank and of its threads, copies from pinned memory, TF32, losses of batches that are
prepared on a stream of their own compared with the CPU's (eager, as CUDA graphs, with edges and features on the host,
and with features on disk), steps that wait for the GPU, Reddit's epoch, its memory bandwidth compared with the maximum,
the most expensive kernels, PyG's own example and an expert's version on the same card, and with 1 to n GPUs over NCCL
the losses and the collectives for buffers. The exit code is 1 if a result is wrong.

make gpu-check      or      python benchmarks/gpu_check.py [--scale 1] [--steps 20] [--device cuda]

`--device cpu` only tests the programs; its times are meaningless.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import gpu_correctness
import gpu_speed
import torch
from gpu_rows import Row, table
from side_by_side import arguments
from torch import distributed as dist

from clusterctl.engine.data.reddit import reddit_like
from clusterctl.shared.errors import ClusterctlError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.engine.graph.storage import Graph


def main() -> None:
    words = arguments(__doc__)
    words.add_argument("--scale", type=float, default=1.0, help="relative to Reddit's 233 thousand nodes")
    words.add_argument("--steps", type=int, default=20, help="number of steps whose losses are compared")
    words.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = words.parse_args()
    try:
        rows = check(chosen(options.device, torch.cuda.device_count()), options.scale, options.steps)
    except ClusterctlError as error:
        print(error.text, file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    print(table(rows))
    raise SystemExit(any(row.is_right is False for row in rows))


def chosen(name: str, gpus: int) -> torch.device:
    """The device to check. Raises ConfigError if there is none."""
    if name == "cuda" and gpus == 0:
        hint = "check `nvidia-smi` and that torch is a CUDA build, or test the programs with --device cpu"
        raise ConfigError("torch sees no GPU on this machine", hint)
    return torch.device("cuda", 0) if name == "cuda" else torch.device("cpu")


def check(device: torch.device, scale: float, steps: int) -> list[Row]:
    """All rows of the table. They are also printed to stderr as they are finished: the last ones take a while."""
    rows = []
    for row in _measured(device, scale, steps):
        print(f"{row.what}: {row.value}", file=sys.stderr, flush=True)
        rows.append(row)
    return rows


def _measured(device: torch.device, scale: float, steps: int) -> Iterator[Row]:
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    yield from gpu_correctness.devices(gpus)
    yield from gpu_correctness.threads(gpus)
    yield from gpu_speed.copies(device)
    yield from gpu_correctness.tf32(device)
    if gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpus else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield from gpu_correctness.losses(device, steps)
    yield from gpu_correctness.waiting(device, steps)
    graph = _graph(scale)
    yield from gpu_speed.epochs(graph, device)
    yield from gpu_speed.rivals(graph, device)
    dist.destroy_process_group()
    yield from gpu_correctness.ranks(gpus, steps)


def _graph(scale: float) -> Graph:
    print(f"generating a graph with Reddit's statistics, scale {scale:g}", file=sys.stderr, flush=True)
    return reddit_like(scale)


if __name__ == "__main__":
    main()
