"""The number formats that a job file can name."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch


class Precision(NamedTuple):
    """Weights, gradients and the optimiser's state are `weights`; features and what layers compute are `values`."""

    weights: torch.dtype
    values: torch.dtype

    def autocast(self, device: torch.device) -> AbstractContextManager[None]:
        """The context in which layers compute."""
        lowers = self.values == torch.bfloat16
        return torch.autocast(device.type, torch.bfloat16) if lowers else nullcontext()  # it costs 15 us to do nothing


PRECISIONS = {
    "float32": Precision(torch.float32, torch.float32),
    "float64": Precision(torch.float64, torch.float64),
    "bfloat16": Precision(torch.float32, torch.bfloat16),  # not float16: its range ends at sums over large degrees
}
