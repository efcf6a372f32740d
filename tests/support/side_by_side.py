"""How `make test` is spread over pytest-xdist's workers: tests that share a sandbox together, others by file."""

from __future__ import annotations

import re
from typing import Any

import pytest

# In these files all tests need the sandbox; in others, only those with the back end "sandbox". Each group has its own.
_ON_THE_SANDBOX = (
    "end_to_end/test_guide.py",
    "end_to_end/test_on_slurm.py",
    "end_to_end/test_polite.py",
    "end_to_end/test_pyxis.py",
    "end_to_end/test_waiting.py",
    "sandbox/test_jobs.py",
)
# Each of these tests starts a sandbox for itself.
_EACH_ITS_OWN = ("faults/test_matrix.py",)
# These read the parsed modules of support/sources.py.
_ON_SOURCES = ("test_files_of_strangers.py", "test_layers.py")
_SANDBOX = "the sandbox"
_BACK_END = "the sandbox as a back end"
_SECOND = "another sandbox as a back end"  # for half of the time that these tests take in `make test-long`
_ON_THE_SECOND = tuple(f"end_to_end/test_{name}" for name in ("batch_scripts", "compared_scripts", "roles"))
_SANDBOX_ID = re.compile(r"(\[|-)sandbox(-|\])")
_SOURCES = "the sources"
# The longest groups start first.
_LONGEST = (
    "test_style",
    _SANDBOX,
    _BACK_END,
    _SECOND,
    "faults/",
    "misuse/",
    "end_to_end/test_in_a_built_image",
    "training/test_rank_counts",
    "end_to_end/",
    "training/",
    "workloads/",
    "data/",
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
    """The tests of a group run on one worker, one after the other."""
    path, _, test = nodeid.removeprefix("tests/").partition("::")
    if path in _ON_THE_SANDBOX:
        return _SANDBOX
    if path in _EACH_ITS_OWN:
        return f"{path}::{test}"
    if path in _ON_SOURCES:
        return _SOURCES
    if path.startswith("end_to_end/") and _SANDBOX_ID.search(test):
        return _SECOND if path.startswith(_ON_THE_SECOND) else _BACK_END
    return path


def _rank(group: str) -> int:
    return next((rank for rank, start in enumerate(_LONGEST) if group.startswith(start)), len(_LONGEST))
