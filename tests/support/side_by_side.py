"""How `make test` spreads over pytest-xdist's workers: what shares the sandbox on one of them, else file by file."""

from __future__ import annotations

from typing import Any

import pytest

# All of whose tests share the sandbox; of the other files only those with "sandbox" for a back end.
_ON_THE_SANDBOX = (
    "end_to_end/test_guide.py",
    "end_to_end/test_on_slurm.py",
    "end_to_end/test_polite.py",
    "end_to_end/test_pyxis.py",
    "end_to_end/test_waiting.py",
    "sandbox/test_jobs.py",
)
_SANDBOX = "the sandbox"
# What takes longest begins first.
_LONGEST = (
    _SANDBOX,
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _rank(_group(item.nodeid)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    from xdist.scheduler import LoadFileScheduling

    class Groups(LoadFileScheduling):  # type: ignore[misc] # xdist is untyped
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid)

    config.option.loadscopereorder = False  # the order is that of `_LONGEST`
    return Groups(config, log)


def _group(nodeid: str) -> str:
    """Tests of one group run on one worker, one after the other."""
    path = nodeid.partition("::")[0].removeprefix("tests/")
    return _SANDBOX if path in _ON_THE_SANDBOX or "[sandbox" in nodeid else path


def _rank(group: str) -> int:
    return next((rank for rank, start in enumerate(_LONGEST) if group.startswith(start)), len(_LONGEST))
