"""Plain text for terminals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launcher.display.plain import as_shown, duration, plain, share


@pytest.mark.parametrize(
    "hostile",
    [
        "\x1b[2J",
        "\x1b[31;1m",
        "\x1b]0;title\x07",
        "\x1b]8;;http://x\x1b\\",
        "\x9b2J",
        "\x1bc",
        "\x1b(B",
        "\x07",
        "\r",
        "\x00",
    ],
)
def test_escape_sequences_and_control_characters_are_removed(hostile: str) -> None:
    assert plain(f"a{hostile}b") == "ab"


def test_tabs_and_letters_of_any_script_are_kept() -> None:
    assert plain("a\tb é 図 😀") == "a\tb é 図 😀"


@given(st.text())
def test_no_control_character_survives(text: str) -> None:
    shown = plain(text)
    assert all(char == "\t" or char >= " " for char in shown)
    assert not any("\x7f" <= char <= "\x9f" for char in shown)
    shown.encode()


def test_an_overwritten_line_shows_its_final_text() -> None:
    assert as_shown(b"10%\r50%\r100%") == "100%"
    assert as_shown(b"done\r") == "done"
    assert as_shown(b"bad \xff byte") == "bad \N{REPLACEMENT CHARACTER} byte"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (42.9, "42s"), (60, "1m00s"), (185, "3m05s"), (7800, "2h10m"), (356400, "4d03h"), (-3, "0s")],
)
def test_durations_have_two_units_at_most(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_progress_shows_the_total_if_known() -> None:
    assert [share(3, 20), share(3, None), share(None, 20), share(1e6, 2e6)] == ["3/20", "3", "", "1000000/2000000"]
