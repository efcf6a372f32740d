"""Shared by all tests: golden files, fabricated run directories."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from clusterctl.shared.record.layout import RUN_FORMAT, RunDir
from clusterctl.shared.spec import Cluster, Job, RedditTrain, Resources, to_record

pytest_plugins = [
    "support.side_by_side",
    "support.images",  # before sandbox_fixture, which imports it
    "support.sandbox_fixture",
    "support.late_fixture",
    "support.far",
]

# The tests' workers fill the cores. Threads of OpenMP that wait for each other would spin there.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# The tests start thousands of Python processes, and each would compile the whole package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# `make test` tries the same few examples every time, `make test-long` many random ones
# (--hypothesis-profile=thorough).
hypothesis.settings.register_profile("brief", deadline=None, derandomize=True, max_examples=30)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=200)  # the machine may be busy
hypothesis.settings.load_profile("brief")

RUN_ID = "cora-20260102-030405-00a1"
CREATED = 1_000_000.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing with them")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(autouse=True)
def runtime_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What processes share about Slurm is in a folder of the tests."""
    folder = tmp_path_factory.getbasetemp() / "runtime"
    folder.mkdir(mode=0o700, exist_ok=True)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output for a terminal has colours, wherever the tests run."""
    monkeypatch.setenv("TERM", "xterm-256color")


Fabricate = Callable[..., RunDir]


@pytest.fixture
def fabricate(tmp_path: Path) -> Fabricate:
    """Writes a run directory like that of a real run: `fabricate(id, {"attempts/0/host.json": {...}, ...})`.

    Dicts become JSON, lists JSON lines, strings text. run.json is added unless it is among the files.
    """

    def write(run_id: str = RUN_ID, files: Mapping[str, Any] | None = None, created: float = CREATED) -> RunDir:
        run = RunDir(tmp_path / "runs" / run_id)
        resources = Resources(nodes=2, tasks_per_node=2, time=1200)
        job = Job(name=run_id.rsplit("-", 3)[0], workload="reddit", resources=resources, train=RedditTrain())
        cluster = Cluster(name="site", runs=str(run.path.parent))
        record = {
            "schema_version": RUN_FORMAT,
            "id": run_id,
            "created": created,
            "job": to_record(job),
            "cluster": to_record(cluster),
        }
        for name, content in {"run.json": record, **(files or {})}.items():
            path = run.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, list):
                content = "".join(json.dumps(line) + "\n" for line in content)
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        return run

    return write
