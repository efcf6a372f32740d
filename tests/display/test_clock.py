"""Times as people read them: this machine's clock, with its zone."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from clusterctl.launcher.display.logs import local_stamp
from clusterctl.launcher.display.plain import clock
from clusterctl.launcher.observe.logs import time_of

WINTER, SUMMER = 1767225600.25, 1782864000.5  # the beginnings of 2026-01-01 and 2026-07-01 in UTC, and a little more


@pytest.fixture(autouse=True)
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as there:
        there.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
        time.tzset()
        yield
    time.tzset()


def test_a_time_says_its_zone() -> None:
    assert (clock(WINTER), clock(SUMMER, date=True)) == ("01:00:00 CET", "2026-07-01 02:00:00 CEST")


@pytest.mark.parametrize(
    ("moment", "text"),
    [(WINTER, "2026-01-01T01:00:00.250+0100 "), (SUMMER, "2026-07-01T02:00:00.500+0200 ")],
)
def test_a_line_of_a_log_has_the_local_time_which_since_understands(moment: float, text: str) -> None:
    assert local_stamp(moment) == text
    assert time_of(text.strip().encode()) == moment
