from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from clusterctl.engine.graph import convolutions as module
from clusterctl.engine.graph.convolutions import distinct


def table_of(numbers: list[int], dtype: torch.dtype = torch.float64) -> Tensor:
    """A row of three floats for each number; equal numbers have equal rows."""
    rows = torch.randn(8, 3, generator=torch.Generator().manual_seed(0), dtype=dtype)
    return rows[torch.tensor(numbers, dtype=torch.int64)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(numbers=st.lists(st.integers(0, 7), max_size=30))
def test_every_distinct_row_is_stored_once(dtype: torch.dtype, numbers: list[int]) -> None:
    table = distinct(table_of(numbers, dtype))
    assert torch.equal(table.rows[table.of], table_of(numbers, dtype))
    assert len(table.rows) == len(set(numbers))


@given(numbers=st.lists(st.integers(0, 7), min_size=1, max_size=30), data=st.data())
def test_spreading_distinct_rows_matches_computing_all_rows_including_gradients(
    numbers: list[int], data: st.DataObject
) -> None:
    wanted = torch.tensor(data.draw(st.lists(st.integers(0, len(numbers) - 1), max_size=20)), dtype=torch.int64)
    rows, weights = table_of(numbers), torch.randn(len(wanted), 2, dtype=torch.float64)
    factor = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    chosen = distinct(rows).select(wanted)
    assert len(chosen.rows) == len({numbers[number] for number in wanted.tolist()})
    once, each = chosen.spread((chosen.rows @ factor).tanh()), (rows[wanted] @ factor).tanh()
    gradients = [torch.autograd.grad((outputs * weights).sum(), factor) for outputs in (once, each)]
    torch.testing.assert_close(once, each, rtol=0, atol=1e-12)
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)


def test_select_all_keeps_duplicates() -> None:
    chosen = distinct(table_of([3, 1, 3, 5])).select_all(torch.tensor([2, 0, 1]))
    assert torch.equal(chosen.rows, table_of([3, 3, 1]))
    assert chosen.spread(chosen.rows) is chosen.rows


def test_rows_with_colliding_keys_stay_distinct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "draws", lambda _key, counters: torch.zeros_like(counters))
    table = distinct(table_of([3, 1, 3, 5]))
    assert torch.equal(table.rows[table.of], table_of([3, 1, 3, 5]))


def test_large_tables_are_deduplicated_across_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROWS_AT_ONCE", 4)
    numbers = [number % 5 for number in range(30)]
    table = distinct(table_of(numbers))
    assert torch.equal(table.rows[table.of], table_of(numbers))
    assert len(table.rows) == 5
