"""Each scenario runs on every back end available on this machine; in `make test`, mostly on just one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.far import made, staged
from support.sandbox_fixture import RunningSandbox, sandbox_in_a_folder_of_its_own
from support.scenario import BACK_ENDS, FAR, NamedJobs, Stage, ending

from clusterctl.launcher.sandbox import lifecycle
from clusterctl.launcher.sandbox.description import SandboxRequest
from clusterctl.shared.errors import UsageError


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    chosen = any("back_end" in str(mark.args[:1]) for mark in metafunc.definition.iter_markers("parametrize"))
    if "back_end" in metafunc.fixturenames and not chosen and not hasattr(metafunc.module, "back_end"):
        is_here = metafunc.definition.get_closest_marker("here")
        far = [FAR] if hasattr(metafunc.module, "THROUGH_A_HOST") and not is_here else []
        metafunc.parametrize("back_end", [*BACK_ENDS, *far], indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A long scenario runs on a real Slurm in `make test-long`, and in other ways only in `make test-matrix`.

    Except in modules with `ON_ALL_BACK_ENDS`.
    """
    ways = {item: _way(item) for item in items}
    on_slurm = {scenario for scenario, back_end in ways.values() if back_end == "sandbox"}
    for item, (scenario, back_end) in ways.items():
        if hasattr(getattr(item, "module", None), "ON_ALL_BACK_ENDS"):
            continue
        if back_end in ("emulator", "far") and scenario in on_slurm and item.get_closest_marker("long"):
            item.add_marker(pytest.mark.matrix)


def _way(item: pytest.Item) -> tuple[str, str]:
    """The scenario with its other parameters, and its back end, if it has one."""
    name, _, parameters = item.nodeid.partition("[")
    parts = parameters.rstrip("]").split("-")
    back_end = next((part for part in parts if part in ("emulator", "sandbox", "far")), "")
    return f"{name} {[part for part in parts if part != back_end]}", back_end


@pytest.fixture
def back_end(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def stage(back_end: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    if back_end == "far":
        with made(request.getfixturevalue("far_shared")) as far, staged(far, tmp_path) as stage:
            yield stage
        return
    project = tmp_path / "project"
    project.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CLUSTERCTL_", "SLURM_"))}
    environment |= {"XDG_STATE_HOME": str(tmp_path / "state")}
    if back_end in ("sandbox", "contained", "patient"):
        environment |= request.getfixturevalue(back_end).environment
    environment |= {
        "CLUSTERCTL_RUNS": str(tmp_path / "runs"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "NO_COLOR": "1",
    }
    with ending(Stage("local" if back_end == "emulator" else "sandbox", project, environment)) as stage:
        yield stage


@pytest.fixture(scope="module")
def contained() -> Iterator[RunningSandbox]:
    """A Slurm that tracks processes by cgroup, where the session's own one has proctrack/linuxproc."""
    try:
        lifecycle.check_cgroups()
    except UsageError as error:
        pytest.skip(error.message)
    with sandbox_in_a_folder_of_its_own() as room:
        lifecycle.up(room.folder, SandboxRequest(nodes=2, kill_wait=5, cgroups=True))
        yield room


@pytest.fixture(scope="module")
def patient() -> Iterator[RunningSandbox]:
    """A Slurm that waits for a silent node for five minutes, as by default; the session's own one for ten seconds."""
    with sandbox_in_a_folder_of_its_own() as room:
        lifecycle.up(room.folder, SandboxRequest(nodes=4, kill_wait=5))
        conf = room.folder / "etc" / "slurm.conf"
        conf.write_text(conf.read_text().replace("SlurmdTimeout=10\n", "SlurmdTimeout=300\n"))
        room.call("scontrol", "reconfigure")
        assert "= 300 sec" in room.call("scontrol", "show", "config").partition("SlurmdTimeout")[2].splitlines()[0]
        yield room


@pytest.fixture
def queue(stage: Stage) -> NamedJobs:
    return NamedJobs(stage)
