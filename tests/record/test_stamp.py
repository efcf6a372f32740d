"""The timestamp at the start of every line that a task prints."""

from __future__ import annotations

import io
import sys

import pytest

from clusterctl.launcher.observe.logs import is_stamped, time_of, without_stamp
from clusterctl.shared.record.stamp import LENGTH, Stamped, stamp, stamped_output

NOW = 1_767_323_045.678


def test_each_line_starts_with_its_time_however_it_is_written() -> None:
    stream = io.StringIO()
    times = iter([10.0, 11.0, 12.0, 13.5, 14.0])
    out = Stamped(stream, lambda: next(times))
    print("a", "b", file=out)  # print() makes several writes
    assert stream.getvalue().startswith("1970-01-01T00:00:10.000Z a b\n")
    out.write("two\nlines\n")
    assert [line[17:] for line in stream.getvalue().splitlines()[1:]] == ["14.000Z two", "14.000Z lines"]


def test_a_progress_bar_stays_one_line() -> None:
    stream = io.StringIO()
    out = Stamped(stream, lambda: NOW)
    for part in ("10%", "\r50%", "", "\r100%\n", "\n"):
        assert out.write(part) == len(part)
    assert stream.getvalue() == stamp(NOW) + "10%\r50%\r100%\n" + stamp(NOW) + "\n"


def test_the_original_streams_are_restored(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout
    with stamped_output():
        assert sys.stdout.encoding == before.encoding
        print("x")
        print("y", file=sys.stderr, flush=True)
    assert sys.stdout is before
    out, err = capsys.readouterr()
    assert (out[LENGTH:], err[LENGTH:]) == ("x\n", "y\n")


def test_readers_recognize_the_stamp() -> None:
    line = (stamp(NOW) + "text").encode()
    assert line == b"2026-01-02T03:04:05.678Z text"
    assert is_stamped(line)
    assert (without_stamp(line), time_of(line)) == (b"text", NOW)
    assert without_stamp(b"2026-01-02T03:04:05Z text") == b"2026-01-02T03:04:05Z text"  # a timestamp of the program
