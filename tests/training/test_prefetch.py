from __future__ import annotations

import threading

import pytest
import torch

from clusterctl.engine.training.loop import prefetched


def test_items_come_in_order_and_are_prepared_in_another_thread() -> None:
    threads = set()

    def prepare(item: int) -> int:
        threads.add(threading.current_thread())
        return item * item

    for count in (0, 1, 2, 7):
        assert list(prefetched(range(count), prepare)) == [(item, item * item) for item in range(count)]
    assert threading.current_thread() not in threads


def test_the_next_item_is_prepared_while_the_first_is_in_use() -> None:
    second = threading.Event()
    pairs = prefetched([1, 2, 3], lambda item: second.set() if item == 2 else None)
    next(pairs)
    assert second.wait(30)
    pairs.close()


def test_an_error_is_raised_at_its_item_and_the_thread_ends() -> None:
    pairs = prefetched([1, 0, 3], lambda item: 1 // item)
    assert next(pairs) == (1, 1)
    with pytest.raises(ZeroDivisionError):
        next(pairs)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def test_the_thread_leaves_the_cores_to_the_step() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert [threads for _, threads in prefetched([1], lambda _: torch.get_num_threads())] == [1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
