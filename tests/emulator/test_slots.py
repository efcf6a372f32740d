"""Which nodes and GPUs a job gets."""

from __future__ import annotations
