"""Frames survive any splitting of the bytes, and anything else is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launcher.remote.frames import LARGEST, Broken, Frame, FrameKind, Reader

FRAMES = st.lists(st.builds(Frame, st.sampled_from(FrameKind), st.binary(max_size=200)), max_size=8)


@given(FRAMES, st.lists(st.integers(1, 40), min_size=1, max_size=40))
def test_frames_arrive_however_the_bytes_are_split(frames: list[Frame], sizes: list[int]) -> None:
    sent = b"".join(frame.packed() for frame in frames)
    reader, found = Reader(), []
    while sent:
        for size in sizes:
            found += reader.fed(sent[:size])
            sent = sent[size:]
    assert found == frames


@pytest.mark.parametrize("received", [b"\xff" * 5, b"<html>", b"O\xff\xff\xff\xffx", b"Z\0\0\0\0", b"Welcome to far\n"])
def test_anything_else_is_refused(received: bytes) -> None:
    with pytest.raises(Broken):
        list(Reader().fed(received))


def test_a_frame_above_the_size_limit_is_refused() -> None:
    head = b"O" + (LARGEST + 1).to_bytes(4, "big")
    with pytest.raises(Broken, match=str(LARGEST + 1)):
        list(Reader().fed(head))
