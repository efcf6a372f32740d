"""Overrides from Python are read back as the same values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launcher.api.settings import settings
from clusterctl.shared.errors import UsageError
from clusterctl.shared.spec.keys import parse_override

TEXT = st.text(st.characters(codec="utf-8"))
PLAIN = TEXT | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False)


@given(TEXT)
def test_any_text_is_read_back(text: str) -> None:
    for key in ("resources.partition", "argv", "env.A", "resources.time"):
        (setting,) = settings({key: text})
        assert parse_override(setting, "command") == (tuple(key.split(".")), text)


@given(PLAIN | st.lists(PLAIN) | st.dictionaries(TEXT.filter(bool), PLAIN, min_size=1))
def test_numbers_lists_and_tables_are_read_back(value: Any) -> None:
    (setting,) = settings({"train.any": value})
    assert parse_override(setting, "command") == (("train", "any"), value)


def test_typed_overrides_are_unchanged() -> None:
    assert settings(["train.lr=3e-3", "nodes = 4"]) == ["train.lr=3e-3", "nodes = 4"]
    assert settings({"data.root": Path("/a b")}) == ['data.root="/a b"']
    assert settings({"train.schedule": ("cosine", 3)}) == ['train.schedule=["cosine", 3]']


@pytest.mark.parametrize("overrides", [{"train.lr": None}, {"train.lr": object()}, "train.lr=1"])
def test_values_without_a_toml_form_are_refused_with_a_hint(overrides: Any) -> None:
    with pytest.raises(UsageError, match="overrides: ") as caught:
        settings(overrides)
    assert caught.value.hint
