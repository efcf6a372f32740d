"""The desk on which every mistake is made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.mistake import Desk


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Iterator[Desk]:
    desk = Desk(tmp_path, monkeypatch, capfdbinary)
    yield desk
    if desk.submitted():  # do not train a job that was accepted by mistake
        desk.type(["cancel", "--yes", "--cluster", "local", *(run.name for run in desk.run_directories())])
