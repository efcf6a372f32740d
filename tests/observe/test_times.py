"""Times at the start of log lines."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launcher.observe.logs import time_of

LOCAL = time.mktime((2026, 1, 2, 3, 4, 5, 0, 0, -1))
UTC = 1_767_323_045.0


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        (b"2026-01-02T03:04:05.678Z x", UTC + 0.678),
        (b"2026-01-02T03:04:05Z", UTC),
        (b"2026-01-02 05:04:05+02:00 x", UTC),
        (b"2026-01-01T21:34:05-0530 x", UTC),
        (b"2026-01-02 03:04:05,250 INFO x", LOCAL + 0.25),  # Python's logging
        (b"[2026-01-02 03:04:05] x", LOCAL),
        (b"[2026/01/02 03:04:05.500] x", LOCAL + 0.5),
        (b"2026-01-02 03:04:05: x", LOCAL),
    ],
)
def test_common_time_formats_are_parsed(line: bytes, seconds: float) -> None:
    assert time_of(line) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "line",
    [b"", b"epoch 1", b"2026-01-02", b"2026-05-40 00:00:00 x", b"12345-67", b"2026-01-02 03:04:05x", b"\xff" * 30],
)
def test_a_line_without_a_time_has_none(line: bytes) -> None:
    assert time_of(line) is None


@given(st.binary(max_size=40), st.text("0123456789-/T :.,Z+[]", max_size=40))
def test_nonsense_never_raises(line: bytes, text: str) -> None:
    time_of(line)
    time_of(text.encode())
