"""The number formats that a job file can name."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Precision(NamedTuple):
    """Weights, gradients and the optimiser's state are `weights`; features and what layers compute are `values`."""

    weights: torch.dtype
    values: torch.dtype

    def autocast(self, device: torch.device) -> torch.autocast:
        """The context in which layers compute."""
        return torch.autocast(device.type, torch.bfloat16, enabled=self.values == torch.bfloat16)


PRECISIONS = {
    "float32": Precision(torch.float32, torch.float32),
    "float64": Precision(torch.float64, torch.float64),
    "bfloat16": Precision(torch.float32, torch.bfloat16),  # not float16: its range ends at sums over large degrees
}
