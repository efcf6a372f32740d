from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from clusterctl.engine.graph.embeddings import ShardedTable
from clusterctl.engine.task.task import Task
from clusterctl.engine.training import learner
from clusterctl.engine.training import learner as adam_step
from clusterctl.engine.training.learner import Adam, TableAdam

KERNEL_IS_KNOWN = adam_step.FUSED


@pytest.fixture(params=["fused", "plain"], autouse=True)
def arithmetic(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every test with torch's fused kernel and with the fallback for versions without it."""
    monkeypatch.setattr(adam_step, "FUSED", request.param == "fused")


def test_torchs_fused_kernel_accepts_our_arguments() -> None:
    """If this fails, training falls back to the plain arithmetic: adapt the call to this torch's kernel."""
    assert KERNEL_IS_KNOWN


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_results_are_bit_identical_for_any_thread_count_and_split(dtype: torch.dtype) -> None:
    """Ranks may have different core counts, and how a table is split depends on the number of ranks."""

    def updated(threads: int, bounds: list[int]) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        values = torch.randn(200_003, generator=generator, dtype=dtype)
        mean, square = torch.zeros_like(values), torch.zeros_like(values)
        torch.set_num_threads(threads)
        for step in range(1, 4):
            gradients = torch.randn(values.numel(), generator=generator, dtype=dtype)
            for first, last in pairwise([0, *bounds, values.numel()]):
                parts = (tensor[first:last] for tensor in (values, gradients, mean, square))
                adam_step.adam_step(*parts, lr=0.01, weight_decay=0.1, steps=step)
        return values

    threads = torch.get_num_threads()
    try:
        whole = updated(1, [])
        assert all(torch.equal(updated(*case), whole) for case in [(2, []), (3, []), (1, [64_000]), (2, [100_000])])
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_updates_match_torchs_adam(weight_decay: float) -> None:
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


def rows_and_steps(rows: int = 5000) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Rows, and for each step the touched rows with their gradients; some rows are never touched."""
    torch.manual_seed(0)
    steps = [torch.randperm(rows - 7)[: 50 + 10 * step] for step in range(12)]
    return torch.randn(rows, 3, dtype=torch.float64), [
        (ids, torch.randn(ids.numel(), 3, dtype=torch.float64)) for ids in steps
    ]


@pytest.mark.parametrize("numbers_at_once", [1000, 1 << 20])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_every_row_of_a_table_is_updated_as_by_torchs_dense_adam(
    lone_task: Task, monkeypatch: pytest.MonkeyPatch, weight_decay: float, numbers_at_once: int
) -> None:
    monkeypatch.setattr(learner, "_NUMBERS_AT_ONCE", numbers_at_once)
    values, steps = rows_and_steps()
    table = ShardedTable(len(values), 3, seed=0, dtype=torch.float64)
    table.rows.copy_(values)
    ours = TableAdam(table, 0.05, weight_decay)
    embedding = torch.nn.Embedding(len(values), 3, _weight=values.clone())
    theirs = torch.optim.Adam(embedding.parameters(), lr=0.05, weight_decay=weight_decay)
    for ids, gradients in steps:
        (table.fetch(table.route(ids)) * gradients).sum().backward()
        ours.collect()
        ours.step()
        theirs.zero_grad()
        (embedding(ids) * gradients).sum().backward()
        theirs.step()
    torch.testing.assert_close(table.rows, embedding.weight.detach(), rtol=0, atol=1e-12)
    assert (table.rows[: len(values) - 7] != values[: len(values) - 7]).any(1).sum() > steps[-1][0].numel()


def test_a_lazy_table_updates_only_touched_rows_like_sparse_adam(lone_task: Task) -> None:
    values, steps = rows_and_steps()
    table = ShardedTable(len(values), 3, seed=0, dtype=torch.float64, lazy=True)
    table.rows.copy_(values)
    ours = TableAdam(table, 0.05, 0.0)
    embedding = torch.nn.Embedding(len(values), 3, sparse=True, _weight=values.clone())
    theirs = torch.optim.SparseAdam(embedding.parameters(), lr=0.05)
    for ids, drawn in steps:
        gradients = drawn.sign() * (1 + drawn.abs())  # far from epsilon, which SparseAdam scales differently
        (table.fetch(table.route(ids)) * gradients).sum().backward()
        ours.collect()
        ours.step()
        theirs.zero_grad()
        (embedding(ids) * gradients).sum().backward()
        theirs.step()
    torch.testing.assert_close(table.rows, embedding.weight.detach(), rtol=0, atol=1e-6)
    assert torch.equal(table.rows[-7:], values[-7:])


def test_a_lazy_table_with_every_row_touched_matches_adam(lone_task: Task) -> None:
    tables = [ShardedTable(9, 3, seed=1, dtype=torch.float64, lazy=lazy) for lazy in (False, True)]
    optimizers = [TableAdam(table, 0.05, 0.1) for table in tables]
    for step in range(5):
        for table, optimizer in zip(tables, optimizers, strict=True):
            (table.fetch(table.route(torch.arange(9))) ** 2 * step).sum().backward()
            optimizer.collect()
            optimizer.step()
    torch.testing.assert_close(tables[1].rows, tables[0].rows, rtol=0, atol=1e-12)


def test_a_table_restored_from_its_state_continues_bit_for_bit(lone_task: Task) -> None:
    def trained(table: ShardedTable, optimizer: TableAdam, steps: range) -> Tensor:
        for step in steps:
            (table.fetch(table.route(torch.arange(step, 9))) ** 2).sum().backward()
            optimizer.collect()
            optimizer.step()
        return table.rows

    def fresh(seed: int) -> tuple[ShardedTable, TableAdam]:
        table = ShardedTable(9, 3, seed, torch.float32)
        return table, TableAdam(table, 0.05, 0.1)

    whole, (table, optimizer), (other, resumed) = trained(*fresh(1), range(6)), fresh(1), fresh(2)
    trained(table, optimizer, range(3))
    state = optimizer.state()
    assert {(name, part.start, part.total) for name, part in state.sharded.items()} == {
        (name, 0, 9) for name in ("rows", "mean", "square")
    }
    resumed.load(state)
    assert torch.equal(trained(other, resumed, range(3, 6)), whole)
