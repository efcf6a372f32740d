"""Which pane goes where."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launcher.display.monitor.panes import PAGES, Pane, arrange

SIZES = st.tuples(st.integers(40, 300), st.integers(15, 120))


@given(SIZES, st.sampled_from([None, *PAGES]))
def test_panes_fill_the_screen_between_title_and_keys_without_overlap(size, page) -> None:
    width, height = size
    taken = [
        (x, y)
        for region in arrange(width, height, page)
        for x in range(region.x, region.x + region.width)
        for y in range(region.y, region.y + region.height)
    ]
    assert len(taken) == len(set(taken)) == width * (height - 2)
    assert {y for _, y in taken} == set(range(1, height - 1))


def test_a_large_terminal_shows_every_pane_and_a_small_one_the_runs_and_a_page() -> None:
    assert {region.pane for region in arrange(200, 60)} == set(Pane)
    assert [region.pane for region in arrange(80, 24)] == [Pane.RUNS, Pane.TRAINING]
    assert [region.pane for region in arrange(80, 24, Pane.LOG)] == [Pane.RUNS, Pane.LOG]


@pytest.mark.parametrize("page", PAGES)
def test_any_page_can_be_shown_with_the_runs(page: Pane) -> None:
    assert [region.pane for region in arrange(200, 60, page)] == [Pane.RUNS, page]
