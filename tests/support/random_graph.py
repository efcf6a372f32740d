"""Small graphs: import the fixture in a conftest.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from clusterctl.engine.graph.storage import Graph, compressed


@pytest.fixture(scope="session")
def random_graph() -> Callable[..., Graph]:
    """Makes graphs with isolated nodes, repeated edges left out, and no self loops."""

    def make(nodes: int = 60, edges: int = 500, features: int = 7, classes: int = 3, seed: int = 0) -> Graph:
        generator = torch.Generator().manual_seed(seed)
        pairs = torch.randint(0, nodes, (2, edges), generator=generator)
        pairs = pairs[:, (pairs[0] != pairs[1]) & (pairs[1] % 10 != 0)].unique(dim=1)  # every tenth has no neighbour
        order = torch.randperm(nodes, generator=generator)
        train, val, test = (part.sort().values for part in order.tensor_split([nodes // 2, nodes * 3 // 4]))
        return Graph(
            *compressed(pairs, nodes),
            x=torch.randn(nodes, features, generator=generator, dtype=torch.float64),
            y=torch.randint(0, classes, (nodes,), generator=generator),
            train=train,
            val=val,
            test=test,
            num_classes=classes,
        )

    return make
