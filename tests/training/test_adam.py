from __future__ import annotations

import pytest
import torch

from clusterctl.training.adam import Adam


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_it_is_torchs_adam(weight_decay: float) -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(50, generator=generator, dtype=torch.float64)
    theirs = values.clone().requires_grad_()
    reference = torch.optim.Adam([theirs], lr=0.01, weight_decay=weight_decay)
    gradients = torch.zeros_like(values)
    optimizer = Adam(values, gradients, lr=0.01, weight_decay=weight_decay)
    for _ in range(20):
        gradients.copy_(torch.randn(50, generator=generator, dtype=torch.float64))
        theirs.grad = gradients.clone()
        optimizer.step()
        reference.step()
    torch.testing.assert_close(values, theirs.detach(), rtol=0, atol=1e-13)
