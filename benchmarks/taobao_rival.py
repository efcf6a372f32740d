"""The rivals of `taobao_step.py`, in a separate interpreter: each line of input names one, which trains a step.

example   PyG's example on Taobao: its loader, model and optimiser. If neither torch-sparse nor pyg-lib is installed,
          the loader uses our sampler, which follows PyG's rule
float32   the same model as an expert uses it: each layer computes only the rows that the next one reads, Adam is fused,
          and sampling is not timed
bfloat16  the same under autocast

PYTHONPATH=src python benchmarks/taobao_rival.py EDGES.pt THREADS
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import HeteroData
from torch_geometric.loader import LinkLoader, LinkNeighborLoader
from torch_geometric.nn import SAGEConv

from clusterctl.engine.graph.pyg.sampler import PygNeighborSampler

Step = Callable[[], tuple[float, float]]
"""Trains a step; returns its seconds, and how many of them were spent on sampling."""

CHANNELS, BATCH, FAN_OUT, LR = 64, 2048, [8, 4], 1e-3
TO, REV_TO, TOGETHER = ("user", "to", "item"), ("item", "rev_to", "user"), ("item", "to", "item")


class Example(nn.Module):
    """The example's encoders and decoder, with given sizes instead of lazy ones."""

    def __init__(self, users: int, items: int) -> None:
        super().__init__()
        self.user_rows, self.item_rows = nn.Embedding(users, CHANNELS), nn.Embedding(items, CHANNELS)
        self.item_1, self.item_2 = SAGEConv(CHANNELS, CHANNELS), SAGEConv(CHANNELS, CHANNELS)
        self.user_1 = SAGEConv(CHANNELS, CHANNELS)
        self.user_2, self.user_3 = (SAGEConv((CHANNELS, CHANNELS), CHANNELS) for _ in range(2))
        self.item_out, self.user_out = nn.Linear(CHANNELS, CHANNELS), nn.Linear(CHANNELS, CHANNELS)
        self.hidden, self.score = nn.Linear(2 * CHANNELS, CHANNELS), nn.Linear(CHANNELS, 1)

    def forward(self, batch: HeteroData) -> Tensor:
        users, items = self.user_rows(batch["user"].n_id), self.item_rows(batch["item"].n_id)
        together, taken = batch[TOGETHER].edge_index, batch[REV_TO].edge_index
        of_items = self.item_out(self.item_2(self.item_1(items, together).relu(), together).relu())
        through = self.user_1(items, together).relu()
        of_users = self.user_2((items, users), taken).relu()
        of_users = self.user_out(self.user_3((through, of_users), taken).relu())
        return self.scores(batch, of_users, of_items)

    def trimmed(self, batch: HeteroData) -> Tensor:
        """The same scores, computed from only the nodes of the first hops and the edges to them."""
        users, items = self.user_rows(batch["user"].n_id), self.item_rows(batch["item"].n_id)
        together = batch[TOGETHER].edge_index
        first_together, first_taken = (
            batch[kind].edge_index[:, : batch[kind].num_sampled_edges[0]] for kind in (TOGETHER, REV_TO)
        )
        user_seeds, item_seeds = (batch[kind].num_sampled_nodes[0] for kind in ("user", "item"))
        near = items, items[: sum(batch["item"].num_sampled_nodes[:2])]
        hidden = self.item_1(near, together).relu()
        of_items = self.item_out(self.item_2((hidden, hidden[:item_seeds]), first_together).relu())
        through = self.user_1(near, together).relu()
        of_users = self.user_2((items, users[:user_seeds]), first_taken).relu()
        of_users = self.user_out(self.user_3((through, of_users), first_taken).relu())
        return self.scores(batch, of_users, of_items)

    def scores(self, batch: HeteroData, of_users: Tensor, of_items: Tensor) -> Tensor:
        row, col = batch[TO].edge_label_index
        both = torch.cat([of_users[row], of_items[col]], dim=-1)
        return self.score(self.hidden(both).relu()).view(-1)


def serve(edges: str, threads: int) -> None:
    torch.set_num_threads(threads)
    stored = torch.load(edges)
    data = HeteroData()
    data["user"].num_nodes, data["item"].num_nodes = stored["users"], stored["items"]
    data[TO].edge_index, data[REV_TO].edge_index = stored["taken"], stored["taken"].flip(0)
    data[TOGETHER].edge_index = stored["together"]
    settings = {
        "edge_label_index": (TO, stored["taken"]),
        "neg_sampling": "binary",
        "batch_size": BATCH,
        "shuffle": True,
    }
    if find_spec("torch_sparse") or find_spec("pyg_lib"):
        name, loader = "its own LinkNeighborLoader", LinkNeighborLoader(data, FAN_OUT, **settings)
    else:
        name = "LinkLoader with our sampler (no torch-sparse, no pyg-lib)"
        loader = LinkLoader(data, PygNeighborSampler(data, FAN_OUT), **settings)
    sampled_before = LinkLoader(data, PygNeighborSampler(data, FAN_OUT), **settings)
    model = Example(stored["users"], stored["items"])
    rivals = {
        "example": example(model, loader),
        "float32": expert(model, sampled_before, is_narrow=False),
        "bfloat16": expert(model, sampled_before, is_narrow=True),
    }
    print(name, flush=True)
    for line in sys.stdin:
        print(*rivals[line.strip()](), flush=True)


def example(model: Example, loader: LinkLoader) -> Step:
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    batches = forever(loader)

    def step() -> tuple[float, float]:
        began = time.perf_counter()
        batch = next(batches)
        sampled = time.perf_counter()
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(model(batch), batch[TO].edge_label)
        loss.backward()
        optimizer.step()
        return time.perf_counter() - began, sampled - began

    return step


def expert(model: Example, loader: LinkLoader, *, is_narrow: bool) -> Step:
    optimizer = torch.optim.Adam(model.parameters(), lr=LR, fused=True)
    batches = forever(loader)

    def step() -> tuple[float, float]:
        batch = next(batches)
        began = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=is_narrow):
            scores = model.trimmed(batch)
        F.binary_cross_entropy_with_logits(scores.float(), batch[TO].edge_label).backward()
        optimizer.step()
        return time.perf_counter() - began, 0.0

    return step


def forever(loader: LinkLoader) -> Iterator[HeteroData]:
    while True:
        yield from loader


if __name__ == "__main__":
    if sys.argv[1:] in ([], ["--help"]):
        print(__doc__)
    else:
        serve(sys.argv[1], int(sys.argv[2]))
