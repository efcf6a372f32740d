from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.ranks import CORA

from clusterctl.engine.data.reddit import raw_identity, read_raw
from clusterctl.shared.errors import Cause, TaskError


def test_the_identity_of_the_data_changes_with_its_files(tmp_path: Path) -> None:
    root = shutil.copytree(CORA, tmp_path / "data")
    before = raw_identity(str(root))
    assert raw_identity(f"{root}/../data") == before
    os.utime(root / "raw" / "reddit_graph.npz", (1, 1))
    assert raw_identity(str(root)) != before


@pytest.mark.parametrize("content", [b"", b"no archive"])
def test_unreadable_raw_files_are_a_user_error(tmp_path: Path, content: bytes) -> None:
    root = shutil.copytree(CORA, tmp_path / "data")
    (root / "raw" / "reddit_data.npz").write_bytes(content)
    (tmp_path / "scratch").mkdir()
    with pytest.raises(TaskError, match="cannot read .*/data as a Reddit data set"):
        read_raw(root, tmp_path / "scratch")


@pytest.mark.parametrize("name", ["feature", "label", "node_types"])
@pytest.mark.parametrize("change", [lambda array: array[:-1], lambda array: array[..., None], lambda array: array[:0]])
def test_arrays_of_the_wrong_shape_are_a_data_error(
    tmp_path: Path, name: str, change: Callable[[np.ndarray], np.ndarray]
) -> None:
    root = shutil.copytree(CORA, tmp_path / "data")
    (tmp_path / "scratch").mkdir()
    with np.load(root / "raw" / "reddit_data.npz") as file:
        arrays = dict(file)
    arrays[name] = change(arrays[name])
    np.savez(root / "raw" / "reddit_data.npz", **arrays)
    with pytest.raises(TaskError, match="cannot read .*/data as a Reddit data set") as raised:
        read_raw(root, tmp_path / "scratch")
    assert raised.value.cause is Cause.DATA


def test_a_node_without_a_label_in_a_split_is_rejected(tmp_path: Path) -> None:
    """It would become the class -9223372036854775808, or any other: published code converts NaN to an integer."""
    root = shutil.copytree(CORA, tmp_path / "data")
    (tmp_path / "scratch").mkdir()
    with np.load(root / "raw" / "reddit_data.npz") as file:
        arrays = dict(file)
    arrays["label"] = arrays["label"].astype(np.float32)
    arrays["label"][np.flatnonzero(arrays["node_types"] == 2)[0]] = np.nan
    np.savez(root / "raw" / "reddit_data.npz", **arrays)
    with np.errstate(invalid="ignore"), pytest.raises(TaskError, match="a node in a split has no label"):
        read_raw(root, tmp_path / "scratch")


def test_a_job_without_a_data_root_fails() -> None:
    with pytest.raises(TaskError, match="data.root is not set"):
        raw_identity(None)
