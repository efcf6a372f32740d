"""Freed memory goes back to the kernel where it grows without being of use, and only there."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

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
            process, now = Heap(), 0
            patch.setattr(heap, "_private_bytes", lambda: sizes[now])
            patch.setattr(heap, "give_back", lambda: found.append(now))
            for now in range(len(sizes)):  # noqa: B007 - read above
                process.look()
        return found

    return looks


@given(base=st.integers(50, 4000), swings=st.lists(st.floats(0.5, 1.05), min_size=4, max_size=60))
def test_a_process_whose_size_swings_keeps_its_memory(
    given_back: Callable[[list[int]], list[int]], base: int, swings: list[float]
) -> None:
    sizes = [base * MIB] * 4 + [round(base * MIB * swing) for swing in swings * 4]
    assert given_back(sizes) == []


@given(base=st.integers(50, 4000), step=st.integers(1, 60))
def test_a_process_that_grows_gives_memory_back_but_rarely(
    given_back: Callable[[list[int]], list[int]], base: int, step: int
) -> None:
    """Growth costs little memory, or little time: the pages that are given back are fetched anew."""
    sizes = [(base + step * number) * MIB for number in range(400)]
    found = given_back(sizes)
    settled = base + 3 * step
    expected = next(place for place, size in enumerate(sizes) if size > (1.06 * settled + 16) * MIB and place >= 32)
    assert found[0] == expected
    assert all(after - before > 32 for before, after in pairwise(found))


def test_the_size_is_that_of_this_process() -> None:
    before = heap._private_bytes()
    held = bytearray(b"x") * (64 * MIB)
    assert heap._private_bytes() - before == pytest.approx(len(held), abs=16 * MIB)
    heap.give_back()
