"""Naming and opening output files."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from clusterctl.launcher.emulator.output import expand, open_output


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
def test_symbols_are_replaced_as_documented_in_sbatch_1(pattern, name):
    assert expand(pattern, {"j": "12", "t": "3", "x": "co ra"}) == name


def test_opening_an_output_is_retried_after_a_brief_file_system_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def fail_once(path: str, *arguments: int) -> int:
        calls.append(path)
        if len(calls) == 1:
            raise OSError(errno.ESTALE, "Stale file handle")
        return original(path, *arguments)

    original = os.open
    monkeypatch.setattr(os, "open", fail_once)
    os.close(open_output(str(tmp_path / "out"), append=False))
    assert len(calls) == 2
