"""Guessing the layout of a data set from its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.shared.spec.train import NODE_LAYOUTS, OGB_ARCHIVES, OGB_RELATIONS, OGB_TABLES, likeliest


def write(root: Path, patterns: tuple[str, ...]) -> None:
    for pattern in patterns:
        path = root / pattern.replace("*", "any")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


@pytest.mark.parametrize("layout", NODE_LAYOUTS)
def test_a_layout_is_recognised_even_if_a_file_is_missing(tmp_path: Path, layout: tuple[str, ...]) -> None:
    write(tmp_path, layout)
    assert likeliest(NODE_LAYOUTS, tmp_path) == layout
    for part in layout if layout in (OGB_TABLES, OGB_ARCHIVES, OGB_RELATIONS) else ():
        (tmp_path / part.replace("*", "any")).rename(tmp_path / "aside")
        assert likeliest(NODE_LAYOUTS, tmp_path) == layout
        (tmp_path / "aside").rename(tmp_path / part.replace("*", "any"))


def test_an_empty_folder_has_the_usual_layout(tmp_path: Path) -> None:
    assert likeliest(NODE_LAYOUTS, tmp_path) == NODE_LAYOUTS[0]
