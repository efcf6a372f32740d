"""A project folder and an environment in which to run commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.mistake import Desk


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Desk:
    return Desk(tmp_path, monkeypatch, capfdbinary)
