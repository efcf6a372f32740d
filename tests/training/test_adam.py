from __future__ import annotations

import pytest
import torch
from torch import Tensor

from clusterctl.graph.sharded_table import ShardedTable
from clusterctl.task.task import Task
from clusterctl.training.adam import Adam, TableAdam


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


def rows_and_steps(rows: int = 5000) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Rows, and for each step the touched ones with their gradients; some rows are never touched."""
    torch.manual_seed(0)
    steps = [torch.randperm(rows - 7)[: 50 + 10 * step] for step in range(12)]
    return torch.randn(rows, 3, dtype=torch.float64), [
        (ids, torch.randn(ids.numel(), 3, dtype=torch.float64)) for ids in steps
    ]


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_every_row_of_a_table_moves_as_in_torchs_dense_adam(lone_task: Task, weight_decay: float) -> None:
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


def test_a_lazy_table_moves_touched_rows_alone_as_torchs_sparse_adam_does_but_for_its_epsilon(lone_task: Task) -> None:
    values, steps = rows_and_steps()
    table = ShardedTable(len(values), 3, seed=0, dtype=torch.float64, lazy=True)
    table.rows.copy_(values)
    ours = TableAdam(table, 0.05, 0.0)
    embedding = torch.nn.Embedding(len(values), 3, sparse=True, _weight=values.clone())
    theirs = torch.optim.SparseAdam(embedding.parameters(), lr=0.05)
    for ids, drawn in steps:
        gradients = drawn.sign() * (1 + drawn.abs())  # far from epsilon, which SparseAdam scales otherwise
        (table.fetch(table.route(ids)) * gradients).sum().backward()
        ours.collect()
        ours.step()
        theirs.zero_grad()
        (embedding(ids) * gradients).sum().backward()
        theirs.step()
    torch.testing.assert_close(table.rows, embedding.weight.detach(), rtol=0, atol=1e-6)
    assert torch.equal(table.rows[-7:], values[-7:])


def test_a_lazy_table_of_which_every_row_is_touched_is_moved_by_adam(lone_task: Task) -> None:
    tables = [ShardedTable(9, 3, seed=1, dtype=torch.float64, lazy=lazy) for lazy in (False, True)]
    optimizers = [TableAdam(table, 0.05, 0.1) for table in tables]
    for step in range(5):
        for table, optimizer in zip(tables, optimizers, strict=True):
            (table.fetch(table.route(torch.arange(9))) ** 2 * step).sum().backward()
            optimizer.collect()
            optimizer.step()
    torch.testing.assert_close(tables[1].rows, tables[0].rows, rtol=0, atol=1e-12)


def test_a_table_goes_on_from_its_state_with_the_same_bits(lone_task: Task) -> None:
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
