"""Models as users write them."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch_geometric import seed_everything
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GATv2Conv, GCNConv, GINConv, GINEConv, GraphConv, SAGEConv, global_add_pool
from torch_geometric.transforms import RandomLinkSplit, ToUndirected

from clusterctl.engine.graph.hops import Hop, TypedHop
from clusterctl.engine.graph.storage import Graph
from clusterctl.pyg import Dropout, dropout


class Gat(nn.Module):
    """Two layers of attention with dropout by node: the same on any number of ranks."""

    def __init__(self, features: int, classes: int, heads: int = 2) -> None:
        super().__init__()
        self.first = GATv2Conv(features, 4, heads, add_self_loops=False)
        self.last = GATv2Conv(4 * heads, classes, add_self_loops=False)

    def layer(self, i: int, hop: Hop, x: Tensor) -> Tensor:
        x = hop.dropout(x, 0.5)
        convolution = self.first if i == 0 else self.last
        x = convolution((x, x[: hop.targets]), hop.edge_index)
        return x.relu() if i == 0 else x


class Gcn(nn.Module):
    """The recipe of docs/guides/your-own-model.md."""

    def __init__(self, features: int, classes: int, hidden: int = 16) -> None:
        super().__init__()
        self.first = GCNConv(features, hidden, add_self_loops=False, normalize=False)
        self.last = GCNConv(hidden, classes, add_self_loops=False, normalize=False)

    def layer(self, i: int, hop: Hop, x: Tensor) -> Tensor:
        source, target = hop.edge_index
        sampled = torch.bincount(target, minlength=hop.targets)
        scale = (hop.row_degree + 1).to(x.dtype).rsqrt()
        weight = scale[source] * scale[target] * (hop.degree / sampled).to(x.dtype)[target]
        loops = torch.arange(hop.targets, device=x.device)
        edges = torch.cat([hop.edge_index, torch.stack([loops, loops])], 1)
        weight = torch.cat([weight, scale[: hop.targets].square()])
        x = (self.first if i == 0 else self.last)(x, edges, weight)[: hop.targets]
        return x.relu() if i == 0 else x


class Noisy(nn.Module):
    """A model with batch norm and torch's own dropout."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.first, self.last = SAGEConv(features, 8), SAGEConv(8, classes)
        self.norm = nn.BatchNorm1d(8)

    def layer(self, i: int, hop: Hop, x: Tensor) -> Tensor:
        if i == 0:
            x = self.norm(self.first((x, x[: hop.targets]), hop.edge_index)).relu()
            return torch.nn.functional.dropout(x, 0.5, self.training)
        out: Tensor = self.last((x, x[: hop.targets]), hop.edge_index)
        return out


class Plain(nn.Module):
    """As in PyG's examples, which know nothing of clusterctl."""

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList([SAGEConv(in_channels, hidden_channels), SAGEConv(hidden_channels, out_channels)])
        self.norm = nn.BatchNorm1d(hidden_channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.norm(self.convs[0](x, edge_index)).relu_()
        x = nn.functional.dropout(x, 0.5, self.training)
        out: Tensor = self.convs[1](x, edge_index)
        return out


class Keyed(nn.Module):
    """The same with dropout by node and without batch norm, on weighted edges: the same on any number of ranks."""

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList([GraphConv(in_channels, hidden_channels), GraphConv(hidden_channels, out_channels)])
        self.drop = Dropout(0.5)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        x = dropout(x, 0.3, self.training)
        x = self.drop(self.convs[0](x, edge_index, edge_weight).relu())
        out: Tensor = self.convs[1](x, edge_index, edge_weight)
        return out


class LayeredSampler:
    """So many neighbours of each row in each hop, as DGL's MultiLayerNeighborSampler; by node, epoch and step."""

    def __init__(self, graph: Graph, fan_out: tuple[int, ...]) -> None:
        self.graph, self.fan_out = graph, fan_out

    def sample(self, seeds: Tensor, epoch: int, step: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        frontier, above = seeds, 0
        nodes, edge_index, edges = [seeds], [], []
        for hop, count in enumerate(self.fan_out):
            start = self.graph.indptr[frontier]
            degree = self.graph.indptr[frontier + 1] - start
            turn = (frontier * 31 + epoch * 7 + step * 3 + seed + hop)[:, None] + torch.arange(count)
            row, number = (torch.arange(count) < degree[:, None]).nonzero(as_tuple=True)
            places = start[row] + turn[row, number] % degree[row]
            targets, above = row + above, above + len(frontier)
            frontier = self.graph.indices[places].long()
            edge_index.append(torch.stack([torch.arange(above, above + len(frontier)), targets]))
            nodes.append(frontier)
            edges.append(places)
        return torch.cat(nodes), torch.cat(edge_index, 1), torch.cat(edges)


class GraphNet(nn.Module):
    """A graph classifier, as in PyG's examples."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.convolution = GINConv(nn.Linear(features, 8))
        self.out = nn.Linear(8, classes)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        out: Tensor = self.out(global_add_pool(self.convolution(x, edge_index).relu(), batch))
        return out


class Encoder(nn.Module):
    """Node embeddings whose dot products predict edges."""

    def __init__(self, features: int, width: int = 4) -> None:
        super().__init__()
        self.first, self.last = SAGEConv(features, 8), SAGEConv(8, width)

    def layer(self, i: int, hop: Hop, x: Tensor) -> Tensor:
        x = (self.first if i == 0 else self.last)((x, x[: hop.targets]), hop.edge_index)
        return x.relu() if i == 0 else x


def in_groups(parameters: list[tuple[str, nn.Parameter]], lr: float = 0.05) -> torch.optim.Optimizer:
    """Weights that decay, and biases that do not, at twice the rate."""
    biases = [parameter for name, parameter in parameters if "bias" in name]
    weights = [parameter for name, parameter in parameters if "bias" not in name]
    groups = [{"params": weights, "weight_decay": 0.01}, {"params": biases, "lr": 2 * lr}]
    return torch.optim.RAdam(groups, lr=lr)


def squares(scores: Tensor, y: Tensor) -> Tensor:
    """A loss for each example, in which missing numbers have no part."""
    known = ~y.isnan()
    return torch.where(known, scores - torch.where(known, y, 0.0), 0.0).square().sum(1)


def largest_error(predictions: Tensor, y: Tensor) -> float:
    return float((predictions - y)[~y.isnan()].abs().max())


def targets_of(x: Tensor) -> Tensor:
    """Two numbers for each node, of which a third is missing."""
    y = torch.stack([x.double().sum(1) / 20 - 1, x[:, :700].double().sum(1) / 10 - 1], 1)
    y[::3, 1] = torch.nan
    y[1::7] = torch.nan
    return y


def some_links(_: Path | None = None) -> Data:
    """Nodes of two kinds, with more edges within a kind than between them; half of the edges have their reverse."""
    generator = torch.Generator().manual_seed(3)
    kind = torch.arange(60) % 2
    ends = torch.randint(60, (2, 500), generator=generator)
    kept = (kind[ends[0]] == kind[ends[1]]) | (torch.rand(500, generator=generator) < 0.1)
    edges = ends[:, kept]
    edges = torch.cat([edges, edges[:, : edges.size(1) // 2].flip(0)], 1)
    return Data(x=nn.functional.one_hot(kind, 2) + torch.randn(60, 2, generator=generator) / 2, edge_index=edges)


class LinkNet(nn.Module):
    """An encoder and a decoder, as in PyG's examples of link prediction."""

    def __init__(self, in_channels: int, hidden: int = 8) -> None:
        super().__init__()
        self.first, self.last = SAGEConv(in_channels, hidden), SAGEConv(hidden, hidden)
        self.out = nn.Linear(hidden, 1)

    def encode(self, x: Tensor, edge_index: Tensor) -> Tensor:
        rows: Tensor = self.last(self.first(x, edge_index).relu(), edge_index)
        return rows

    def decode(self, z: Tensor, edge_label_index: Tensor) -> Tensor:
        scores: Tensor = self.out(z[edge_label_index[0]] * z[edge_label_index[1]])
        return scores


def split_links(_: Path | None = None) -> tuple[Data, Data, Data]:
    """`some_links` with splits and negatives as PyG makes them."""
    seed_everything(1)  # negatives are drawn by NumPy and Python, too
    parts: tuple[Data, Data, Data] = RandomLinkSplit(num_val=0.1, num_test=0.2, neg_sampling_ratio=0.5)(some_links())
    return parts


class MoleculeNet(nn.Module):
    """A number for each graph, from kinds of atoms and bonds."""

    def __init__(self, num_features: int, hidden: int = 8) -> None:
        super().__init__()
        self.atoms, self.bonds = nn.Embedding(9, hidden), nn.Embedding(4, hidden)
        self.conv, self.out = GINEConv(nn.Linear(hidden, hidden)), nn.Linear(hidden, 2)

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor, num_graphs: int | None = None
    ) -> Tensor:
        rows = self.conv(self.atoms(x.squeeze(1)), edge_index, self.bonds(edge_attr)).relu()
        scores: Tensor = self.out(global_add_pool(rows, batch, num_graphs))  # else it waits for a GPU to count them
        return scores


def molecules(_: Path | None = None) -> dict[str, list[Data]]:
    """Three splits of graphs with two targets each, of which every fourth is unknown."""
    made = torch.Generator().manual_seed(1)

    def molecule(number: int) -> Data:
        nodes = 3 + number % 4
        x, edges = torch.randint(9, (nodes, 1), generator=made), torch.randint(nodes, (2, 7), generator=made)
        bonds = torch.randint(4, (7,), generator=made)
        y = torch.stack([x.sum(), bonds.sum()]).view(1, 2) / 10.0
        y[0, number % 2] = torch.nan if number % 4 == 0 else y[0, number % 2]
        return Data(x=x, edge_index=edges, edge_attr=bonds, y=y)

    sizes = {"train": 50, "val": 13, "test": 14}
    return {split: [molecule(number) for number in range(size)] for split, size in sizes.items()}


class Typed(nn.Module):
    """Means over each relation, with dropout of all types by node."""

    def __init__(self, metadata: tuple[list[str], list[tuple[str, str, str]]], out_channels: int) -> None:
        super().__init__()
        kinds, relations = metadata
        self.encode = nn.ModuleDict({kind: nn.LazyLinear(6) for kind in kinds})
        self.convs = nn.ModuleList(
            nn.ModuleDict({"__".join(relation): SAGEConv(6, 6) for relation in relations}) for _ in range(2)
        )
        self.head = nn.Linear(6, out_channels)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[tuple[str, str, str], Tensor]) -> Tensor:
        rows = {kind: self.encode[kind](x) for kind, x in dropout(x_dict, 0.3, self.training).items()}
        for conv in self.convs:
            found = dict(rows)
            for relation, edges in edge_index_dict.items():
                source, _, target = relation
                found[target] = found[target] + conv["__".join(relation)]((rows[source], rows[target]), edges)
            rows = {kind: x.relu() for kind, x in found.items()}
        return self.head(rows["paper"])  # type: ignore[no-any-return]


class SizedTyped(Typed):
    """The same without lazy layers."""

    def __init__(
        self, in_channels: dict[str, int], metadata: tuple[list[str], list[tuple[str, str, str]]], out_channels: int
    ) -> None:
        super().__init__(metadata, out_channels)
        self.encode = nn.ModuleDict({kind: nn.Linear(width, 6) for kind, width in in_channels.items()})


class NumberedTyped(SizedTyped):
    """The same with a number of each edge, which is added to the rows of papers."""

    def forward(  # type: ignore[override]
        self,
        x_dict: dict[str, Tensor],
        edge_index_dict: dict[tuple[str, str, str], Tensor],
        edge_attr_dict: dict[tuple[str, str, str], Tensor],
    ) -> Tensor:
        rows = super().forward(x_dict, edge_index_dict)
        for relation, values in edge_attr_dict.items():
            if relation[2] == "paper":
                rows = rows.index_add(0, edge_index_dict[relation][1], values[:, None].expand(-1, rows.size(1)))
        return rows


class TypedLayers(nn.Module):
    """Means over each relation, layer by layer, with dropout of all types by node."""

    def __init__(self, in_channels: dict[str, int], edge_types: list[tuple[str, str, str]], out_channels: int) -> None:
        super().__init__()
        self.encode = nn.ModuleDict({kind: nn.Linear(width, 6) for kind, width in in_channels.items()})
        self.convs = nn.ModuleList(
            nn.ModuleDict({"__".join(relation): SAGEConv(6, 6) for relation in edge_types}) for _ in range(2)
        )
        self.head = nn.Linear(6, out_channels)

    def layer(self, i: int, hop: TypedHop, x: dict[str, Tensor]) -> dict[str, Tensor]:
        if i == 0:
            x = {kind: self.encode[kind](rows) for kind, rows in hop.dropout(x, 0.3).items()}
        found = {kind: x[kind][:count] for kind, count in hop.targets.items() if kind in x}
        for (source, name, target), edges in hop.edge_index_dict.items():
            if edges.size(1):
                conv = self.convs[i]["__".join((source, name, target))]
                found[target] = found[target] + conv((x[source], x[target][: hop.targets[target]]), edges)
        found = {kind: rows.relu() for kind, rows in found.items()}
        return {"paper": self.head(found["paper"])} if i else found


BUYS, SOLD_TO = ("user", "buys", "item"), ("item", "rev_buys", "user")


def shop() -> HeteroData:
    """Users who buy items of their kind, tags of items, which have no features, and users who know each other."""
    made = torch.Generator().manual_seed(4)
    counts = {"user": 40, "item": 30, "tag": 6}
    kind = {name: torch.arange(count) % 2 for name, count in counts.items()}
    data = HeteroData()
    for name, width in (("user", 3), ("item", 2)):
        own = nn.functional.one_hot(kind[name], width)
        data[name].x = own + torch.randn(counts[name], width, generator=made) / 2
    data["tag"].num_nodes = counts["tag"]
    for source, name, target, edges in (
        ("user", "buys", "item", 400),
        ("item", "has", "tag", 60),
        ("user", "knows", "user", 90),
    ):
        ends = torch.stack([torch.randint(counts[end], (edges,), generator=made) for end in (source, target)])
        alike = kind[source][ends[0]] == kind[target][ends[1]]
        kept = alike | (torch.rand(edges, generator=made) < 0.1)
        data[source, name, target].edge_index = torch.unique(ends[:, kept], dim=1)
    return ToUndirected()(data)  # type: ignore[no-any-return]


def split_shop(_: Path | None = None, **options: object) -> tuple[HeteroData, HeteroData, HeteroData]:
    """The shop, split as PyG does."""
    seed_everything(1)
    chosen = {"num_val": 0.1, "num_test": 0.2, "add_negative_train_samples": False, "edge_types": [BUYS]} | options
    chosen.setdefault("rev_edge_types", [SOLD_TO])
    parts: tuple[HeteroData, HeteroData, HeteroData] = RandomLinkSplit(**chosen)(shop())
    return parts


class ShopNet(nn.Module):
    """Encodes all types, with dropout by node, and scores pairs by a layer of its own."""

    def __init__(self, metadata: tuple[list[str], list[tuple[str, str, str]]], hidden: int = 6, p: float = 0.0) -> None:
        super().__init__()
        kinds, relations = metadata
        self.p = p
        self.encoders = nn.ModuleDict({kind: nn.LazyLinear(hidden) for kind in kinds})
        self.convs = nn.ModuleList(
            nn.ModuleDict({"__".join(relation): SAGEConv(hidden, hidden) for relation in relations}) for _ in range(2)
        )
        self.out = nn.Linear(2 * hidden, 1)

    def encode(
        self, x_dict: dict[str, Tensor], edge_index_dict: dict[tuple[str, str, str], Tensor]
    ) -> dict[str, Tensor]:
        rows = {kind: self.encoders[kind](x) for kind, x in dropout(x_dict, self.p, self.training).items()}
        for conv in self.convs:
            found = dict(rows)
            for relation, edges in edge_index_dict.items():
                source, _, target = relation
                found[target] = found[target] + conv["__".join(relation)]((rows[source], rows[target]), edges)
            rows = {kind: x.relu() for kind, x in found.items()}
        return rows

    def decode(self, z_dict: dict[str, Tensor], edge_label_index: Tensor) -> Tensor:
        users, items = z_dict["user"][edge_label_index[0]], z_dict["item"][edge_label_index[1]]
        scores: Tensor = self.out(torch.cat([users * items, users - items], 1))
        return scores


class SizedShopNet(ShopNet):
    """The same without lazy layers."""

    def __init__(
        self, in_channels: dict[str, int], metadata: tuple[list[str], list[tuple[str, str, str]]], hidden: int = 6
    ) -> None:
        super().__init__(metadata, hidden)
        self.encoders = nn.ModuleDict({kind: nn.Linear(width, hidden) for kind, width in in_channels.items()})
