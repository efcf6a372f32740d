"""How `make test` spreads over pytest-xdist's workers: what shares the sandbox on one of them, else file by file."""

from __future__ import annotations

from typing import Any

import pytest

# What takes longest begins first.
_LONGEST = (
    "faults/",
    "end_to_end/test_in_a_built_image",
    "test_style",
    "training/test_rank_counts",
    "end_to_end/",
    "training/",
    "workloads/",
    "sandbox/",
    "emulator/",
    "graph/",
    "containers/",
)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_rank)
    for item in items:
        if _uses_sandbox(item):
            item.add_marker(pytest.mark.xdist_group("sandbox"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    from xdist.scheduler import LoadGroupScheduling

    class Groups(LoadGroupScheduling):  # type: ignore[misc] # xdist is untyped
        def _split_scope(self, nodeid: str) -> str:
            return str(super()._split_scope(nodeid)).partition("::")[0]

    config.option.loadscopereorder = False  # the order is that of `_LONGEST`
    return Groups(config, log)


def _uses_sandbox(item: pytest.Item) -> bool:
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return "sandbox" in getattr(item, "fixturenames", ()) or parameters.get("back_end") == "sandbox"


def _rank(item: pytest.Item) -> int:
    if _uses_sandbox(item):
        return -1
    path = item.nodeid.removeprefix("tests/")
    return next((rank for rank, start in enumerate(_LONGEST) if path.startswith(start)), len(_LONGEST))
