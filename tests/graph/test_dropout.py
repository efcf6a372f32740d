from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from clusterctl.engine.graph.masks import keyed_dropout


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_dropout_drops_the_share_and_preserves_the_mean(share: float) -> None:
    dropped = keyed_dropout(torch.ones(2000, 101, dtype=torch.float64), torch.arange(2000), share, key=3)
    deviation = (share * (1 - share) / dropped.numel()) ** 0.5
    assert abs(float((dropped == 0).double().mean()) - share) < 5 * deviation
    assert abs(float(dropped.mean()) - 1) < 5 * deviation / (1 - share)
    assert dropped.unique().numel() == 2


def test_a_dropout_mask_depends_only_on_node_and_key() -> None:
    nodes = torch.randperm(3000, generator=torch.Generator().manual_seed(0))
    together = keyed_dropout(torch.ones(3000, 10), nodes, 0.5, key=3)
    alone = torch.cat([keyed_dropout(torch.ones(1, 10), node[None], 0.5, key=3) for node in nodes[:50]])
    assert torch.equal(together[:50], alone)
    assert not torch.equal(together, keyed_dropout(torch.ones(3000, 10), nodes, 0.5, key=4))
    assert together.unique(dim=0).size(0) > 900  # of 2**10 patterns


def test_dropout_of_nothing_is_the_identity_and_of_nearly_everything_is_finite() -> None:
    values = torch.randn(5, 6)
    assert keyed_dropout(values, torch.arange(5), 0.0, key=1) is values
    assert keyed_dropout(values, torch.arange(5), 0.9999999, key=1).isfinite().all()


def test_dropout_masks_gradients_like_values() -> None:
    values = torch.ones(40, 8, requires_grad=True)
    kept = keyed_dropout(values, torch.arange(40), 0.5, key=1)
    kept.sum().backward()  # type: ignore[no-untyped-call]
    assert values.grad is not None
    assert torch.equal(values.grad, kept.detach())


def test_dropout_alone_compiles_nothing_even_if_numba_is_there() -> None:
    pytest.importorskip("numba")
    program = """
import sys, numba, torch
from clusterctl.engine.graph.masks import WORTH_COMPILING, keyed_dropout
keyed_dropout(torch.ones(WORTH_COMPILING, 2), torch.arange(WORTH_COMPILING), 0.5, key=1)
assert "clusterctl.engine.graph.compiled" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
