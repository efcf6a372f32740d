"""The rival of `taobao_step.py`, in an interpreter of its own: PyG's example on Taobao, a step for every line of input.

Loader, model and optimiser are those of the example. Where neither torch-sparse nor pyg-lib is installed its loader
gets our sampler, which keeps PyG's rule.

PYTHONPATH=src python benchmarks/taobao_rival.py EDGES.pt THREADS
"""

from __future__ import annotations

import sys
import time
from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import HeteroData
from torch_geometric.loader import LinkLoader, LinkNeighborLoader
from torch_geometric.nn import SAGEConv

CHANNELS, BATCH, FAN_OUT, LR = 64, 2048, [8, 4], 1e-3
TO, REV_TO, TOGETHER = ("user", "to", "item"), ("item", "rev_to", "user"), ("item", "to", "item")


class Example(nn.Module):
    """The example's encoders and decoder, its sizes given instead of lazy."""

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
        told, loader = "its own LinkNeighborLoader", LinkNeighborLoader(data, FAN_OUT, **settings)
    else:
        from clusterctl.graph.pyg_sampler import PygNeighborSampler

        told, loader = (
            "LinkLoader with our sampler (no torch-sparse, no pyg-lib)",
            LinkLoader(data, PygNeighborSampler(data, FAN_OUT), **settings),
        )
    model = Example(stored["users"], stored["items"])
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    batches = (batch for _ in iter(int, 1) for batch in loader)
    print(told, flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        batch = next(batches)
        sampled = time.perf_counter()
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(model(batch), batch[TO].edge_label)
        loss.backward()
        optimizer.step()
        print(time.perf_counter() - began, sampled - began, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
