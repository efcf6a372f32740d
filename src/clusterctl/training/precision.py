"""The names of number formats in job files."""

from __future__ import annotations

import torch

DTYPES = {"float32": torch.float32, "float64": torch.float64}  # of the weights
