"""What another machine prints cannot command this terminal, however it is cut into pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launcher.display.plain import ForeignOutput

HARMLESS = [
    b"text \xc3\xa9\n",
    b"\x1b[1;32mgreen\x1b[0m",
    b"\r\x1b[2K\x1b[1A\x1b[?25l 50 %\x1b[?25h",
    b"a\tb\b",
    b"\xe2\x94\x80",
]
HOSTILE = {
    b"\x1b]52;c;cm0gLXJmIH4K\x07": b"",  # the clipboard
    b"\x1b]0;title\x1b\\ok": b"ok",
    b"\x1bP$q\"p\x1b\\": b"",
    b"\x1b[6n": b"",  # queries
    b"\x1b[c\x1b[>c\x1b[?2026$p": b"",
    b"\x1b[21t": b"",
    b"\x1bZ\x1bc\x05": b"",
    b"\xc2\x9d52;c;eA==\x07": b"52;c;eA==",
    b"\x1b[?1049h\x1b[?1000h": b"",  # another screen, the mouse
    b"\x1b_x\x1b\\\x1b^y\x1b\\": b"",
    b"\x1b(0": b"",
}  # fmt: skip


def passed(pieces: list[bytes]) -> bytes:
    got = bytearray()
    output = ForeignOutput(got.extend)
    for piece in pieces:
        output.take(piece)
    return bytes(got)


@pytest.mark.parametrize("text", HARMLESS)
def test_tables_and_progress_bars_pass_unchanged(text: bytes) -> None:
    assert passed([text]) == text
    assert passed([text[place : place + 1] for place in range(len(text))]) == text


@pytest.mark.parametrize("text", HOSTILE)
def test_commands_for_the_terminal_do_not(text: bytes) -> None:
    assert passed([text, b"."]) == HOSTILE[text] + b"."
    assert passed([*(text[place : place + 1] for place in range(len(text))), b"."]) == HOSTILE[text] + b"."


def test_a_string_without_end_is_not_kept() -> None:
    got = bytearray()
    output = ForeignOutput(got.extend)
    for _ in range(100):
        output.take(b"\x1b]" + b"x" * 1000)
        assert len(output._rest) < 10_000
    output.take(b"\x07end")
    assert got == b"end"


@given(st.lists(st.sampled_from([*HARMLESS, *HOSTILE, b"\x1b", b"[", b"6n", b"\x9d", b"\xc2"]) | st.binary(max_size=4)))
def test_no_query_and_no_string_ever_passes(pieces: list[bytes]) -> None:
    assert passed(pieces) == passed([b"".join(pieces)])
    for sequence in (b"\x1b]", b"\x1bP", b"\x1b[6n", b"\x1b[c", b"\xc2\x9d"):
        assert sequence not in passed(pieces)
