"""Data that a user function loads: prepared once, and again when the function's file or the data change."""

from __future__ import annotations

import hashlib
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from clusterctl.graph.storage import Recipe
from clusterctl.training.own_model import found

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.graph.storage import Stored
    from clusterctl.spec import Data

T = TypeVar("T", bound="Stored")


def own_recipe(data: Data, made: Callable[[Any, str], T]) -> Recipe[T]:
    """How to prepare the data set that `data.load` loads: `made` converts its result. Raises TaskError."""
    assert data.load is not None
    name = data.load
    load = found(name, "data.load")
    source = inspect.getsourcefile(load)
    identity: dict[str, Any] = {"load": name, "root": data.root and str(Path(data.root).resolve())}
    identity["code"] = hashlib.sha256(Path(source).read_bytes()).hexdigest() if source else ""
    if data.root:
        identity["files"] = sorted(
            [path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in Path(data.root).iterdir()
        )
    return Recipe("own", identity, lambda _: made(load(data.root and Path(data.root)), name))
