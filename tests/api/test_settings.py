"""Overrides of a program are read back as the values that they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.api.settings import settings
from clusterctl.errors import UsageError
from clusterctl.spec.overrides import parse_override

TEXT = st.text(st.characters(codec="utf-8"))
PLAIN = TEXT | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False)


@given(TEXT)
def test_text_comes_back_whatever_is_in_it(text: str) -> None:
    for key in ("resources.partition", "argv", "env.A", "resources.time"):
        (setting,) = settings({key: text})
        assert parse_override(setting, "command") == (tuple(key.split(".")), text)


@given(PLAIN | st.lists(PLAIN) | st.dictionaries(TEXT.filter(bool), PLAIN, min_size=1))
def test_numbers_lists_and_tables_come_back(value: Any) -> None:
    (setting,) = settings({"train.any": value})
    assert parse_override(setting, "command") == (("train", "any"), value)


def test_what_was_typed_stays_as_it_is() -> None:
    assert settings(["train.lr=3e-3", "nodes = 4"]) == ["train.lr=3e-3", "nodes = 4"]
    assert settings({"data.root": Path("/a b")}) == ['data.root="/a b"']
    assert settings({"train.schedule": ("cosine", 3)}) == ['train.schedule=["cosine", 3]']


@pytest.mark.parametrize("overrides", [{"train.lr": None}, {"train.lr": object()}, "train.lr=1"])
def test_what_has_no_form_in_a_job_file_is_refused_with_a_hint(overrides: Any) -> None:
    with pytest.raises(UsageError, match="overrides: ") as caught:
        settings(overrides)
    assert caught.value.hint
