"""What PyG's tests of loaders need of torch-sparse's SparseTensor, if torch-sparse is not installed."""

from __future__ import annotations

from typing import Any

import torch
import torch_geometric.typing
from torch import Tensor


class Storage:
    """Sorted by row and column."""

    def __init__(self, row: Tensor, col: Tensor, value: Tensor | None) -> None:
        self.parts = row, col, value

    def row(self) -> Tensor:
        return self.parts[0]

    def col(self) -> Tensor:
        return self.parts[1]

    def value(self) -> Tensor | None:
        return self.parts[2]


class SparseTensor:
    """A sparse matrix."""

    def __init__(
        self,
        row: Tensor | None = None,
        rowptr: Tensor | None = None,
        col: Tensor | None = None,
        value: Tensor | None = None,
        sparse_sizes: tuple[int, int] | None = None,
        **_: Any,
    ) -> None:
        assert col is not None
        if row is None:
            assert rowptr is not None
            row = torch.arange(rowptr.numel() - 1).repeat_interleave(rowptr.diff())
        self.sizes = sparse_sizes or (int(row.max()) + 1, int(col.max()) + 1)
        order = (row * self.sizes[1] + col).argsort(stable=True)
        self.storage = Storage(row[order], col[order], None if value is None else value[order])

    @classmethod
    def from_edge_index(cls, edge_index: Tensor, sparse_sizes: tuple[int, int]) -> SparseTensor:
        return cls(row=edge_index[0], col=edge_index[1], sparse_sizes=sparse_sizes)

    def t(self) -> SparseTensor:
        row, col, value = self.coo()
        return SparseTensor(row=col, col=row, value=value, sparse_sizes=self.sizes[::-1])

    def coo(self) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.storage.parts

    def csr(self) -> tuple[Tensor, Tensor, Tensor | None]:
        row, col, value = self.coo()
        return torch.searchsorted(row, torch.arange(self.sizes[0] + 1)), col, value

    def cpu(self) -> SparseTensor:
        return self

    def nnz(self) -> int:
        return self.storage.row().numel()

    def size(self, dimension: int) -> int:
        return self.sizes[dimension]

    def __getitem__(self, chosen: tuple[Tensor, Tensor]) -> SparseTensor:
        place = [torch.full((size,), -1) for size in self.sizes]
        for places, nodes in zip(place, chosen, strict=True):
            places[nodes] = torch.arange(nodes.numel())
        row, col, value = self.coo()
        row, col = place[0][row], place[1][col]
        kept = (row >= 0) & (col >= 0)
        sizes = (chosen[0].numel(), chosen[1].numel())
        return SparseTensor(
            row=row[kept], col=col[kept], value=None if value is None else value[kept], sparse_sizes=sizes
        )


if not torch_geometric.typing.WITH_TORCH_SPARSE:
    torch_geometric.typing.SparseTensor = SparseTensor
