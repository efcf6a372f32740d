"""Data and a model for tables with times: which customers will come back? The rows are made, and so is the truth.

Three tables, linked by keys: customers, products, and purchases, which have a time. An example is a row (customer,
time, answer). Its answer follows from the kinds of the last three products that the customer bought up to that time,
and one answer in ten is wrong, so no model gets more than 90 % right - unless it looks at what comes later.
"""

import torch
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv, SAGEConv

CUSTOMERS, PRODUCTS, PURCHASES, ROWS = 400, 60, 12000, 3000
LAST, WRONG = 3, 0.1
BEST = 1 - WRONG
START, DAY = 1_700_000_000, 86_400


def load(root=None):  # noqa: ARG001 - of data.root, for data in files
    torch.manual_seed(0)
    kind = torch.randint(2, (PRODUCTS,)) * 2 - 1
    customer, product = torch.randint(CUSTOMERS, (PURCHASES,)), torch.randint(PRODUCTS, (PURCHASES,))
    time = START + torch.randint(1000 * DAY, (PURCHASES,))
    row_customer, row_time = torch.randint(CUSTOMERS, (ROWS,)), START + torch.randint(200 * DAY, 1000 * DAY, (ROWS,))
    seen = (customer[None] == row_customer[:, None]) & (time[None] <= row_time[:, None])
    last = torch.where(seen, time[None], -1).topk(LAST, 1)
    known = (last.values >= 0).all(1)  # rows of customers with fewer purchases have no answer
    y = (kind[product[last.indices]].sum(1) > 0).long()
    y = torch.where(torch.rand(ROWS) < WRONG, 1 - y, y)
    row_customer, row_time, y = row_customer[known], row_time[known], y[known]
    order = row_time.argsort()
    train, val, test = torch.zeros(3, len(y), dtype=torch.bool)  # the earliest rows train, the latest test
    for mask, rows in zip((train, val, test), order.tensor_split([len(y) * 6 // 10, len(y) * 8 // 10]), strict=True):
        mask[rows] = True

    data = HeteroData()
    data["customer"].num_nodes = CUSTOMERS
    data["customer"].x = torch.ones(CUSTOMERS, 1)
    data["product"].x = kind[:, None] + torch.randn(PRODUCTS, 2) * 0.3
    data["purchase"].x = torch.ones(PURCHASES, 1)
    data["purchase"].time = time
    purchase = torch.arange(PURCHASES)
    for key, table in (("customer", customer), ("product", product)):
        data["purchase", f"of_{key}", key].edge_index = torch.stack([purchase, table])
        data[key, f"rev_of_{key}", "purchase"].edge_index = torch.stack([table, purchase])
    data["customer"].seed_index = row_customer
    data["customer"].seed_time = row_time
    data["customer"].y = y
    data["customer"].train_mask, data["customer"].val_mask, data["customer"].test_mask = train, val, test
    return data


class Net(torch.nn.Module):
    """Mean of the neighbours in each relation, as in the baselines of RelBench."""

    def __init__(self, metadata, out_channels, hidden_channels=32, num_layers=2):
        super().__init__()
        node_types, edge_types = metadata
        self.encode = torch.nn.ModuleDict({kind: torch.nn.LazyLinear(hidden_channels) for kind in node_types})
        self.convs = torch.nn.ModuleList(
            HeteroConv({relation: SAGEConv(hidden_channels, hidden_channels) for relation in edge_types})
            for _ in range(num_layers)
        )
        self.head = torch.nn.Linear(hidden_channels, out_channels)

    def forward(self, x_dict, edge_index_dict):
        x_dict = {kind: self.encode[kind](x) for kind, x in x_dict.items()}
        for conv in self.convs:
            x_dict = {kind: x.relu() for kind, x in conv(x_dict, edge_index_dict).items()}
        return self.head(x_dict["customer"])
