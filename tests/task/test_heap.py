"""Freed memory goes back to the kernel where it grows without being of use, and only there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.engine.task import heap
from clusterctl.engine.task.heap import Heap

MIB = 1 << 20


@pytest.fixture(scope="module")
def given_back() -> Callable[[list[int]], list[int]]:
    """The numbers of the looks after which a process of these sizes has given memory back."""

    def looks(sizes: list[int]) -> list[int]:
        found: list[int] = []
        with pytest.MonkeyPatch.context() as patch:
            left = iter(enumerate(sizes))
            now = 0

            def size() -> int:
                nonlocal now
                now, bytes_ = next(left)
                return bytes_

            patch.setattr(heap, "_private_bytes", size)
            patch.setattr(heap, "give_back", lambda: found.append(now))
            process = Heap()
            for _ in sizes:
                process.look()
        return found

    return looks


@given(base=st.integers(50, 4000), swings=st.lists(st.floats(0.8, 1.2), min_size=4, max_size=60))
def test_a_process_whose_size_swings_by_a_fifth_keeps_its_memory(
    given_back: Callable[[list[int]], list[int]], base: int, swings: list[float]
) -> None:
    sizes = [round(base * MIB * 1.2)] * 4 + [round(base * MIB * swing) for swing in swings]
    assert given_back(sizes) == []


@given(base=st.integers(50, 4000), step=st.integers(1, 60))
def test_a_process_that_grows_with_every_step_gives_memory_back_before_it_has_half_more(
    given_back: Callable[[list[int]], list[int]], base: int, step: int
) -> None:
    sizes = [(base + step * number) * MIB for number in range(4000 // step)]
    found = given_back(sizes)
    settled = base + 3 * step
    expected = next(
        (place for place, size in enumerate(sizes) if size > (1.25 * settled + 32) * MIB and place > 3), None
    )
    assert (found[0] if found else None) == expected


def test_the_size_is_that_of_this_process() -> None:
    before = heap._private_bytes()
    held = bytearray(b"x") * (64 * MIB)
    assert heap._private_bytes() - before == pytest.approx(len(held), abs=16 * MIB)
    heap.give_back()
