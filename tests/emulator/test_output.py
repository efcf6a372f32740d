"""Names of output files, and how they are opened."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from clusterctl.emulator.output import expand, open_output


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("rank_%5t.out", "rank_00003.out"),
        ("%j_%t_%x", "12_3_co ra"),
        ("%%t%%%t", "%t%3"),
        ("%3x", "co ra"),
        ("%q%", "%q%"),
        ("\\%t", "%t"),
    ],
)
def test_symbols_are_replaced_as_sbatch_1_says(pattern, name):
    assert expand(pattern, {"j": "12", "t": "3", "x": "co ra"}) == name


def test_an_output_is_opened_again_where_the_file_system_failed_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def sometimes(path: str, *arguments: int) -> int:
        calls.append(path)
        if len(calls) == 1:
            raise OSError(errno.ESTALE, "Stale file handle")
        return opened(path, *arguments)

    opened = os.open
    monkeypatch.setattr(os, "open", sometimes)
    os.close(open_output(str(tmp_path / "out"), append=False))
    assert len(calls) == 2
