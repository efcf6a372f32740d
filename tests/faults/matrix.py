"""Every fault on every workload and shape, several runs at a time: each outcome is compared with the table."""

from __future__ import annotations

import json
import os
import shutil
import traceback
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults.scene import INSIDE, Scene, losses_of
from faults.shapes import PLAIN, Shape
from faults.table import Fault, Outcome
from support.images import ThinImage
from support.sandbox_fixture import RunningSandbox
from support.scenario import Stage, wait_until

from clusterctl.shared.record.files import read_json

OWN_NODES = 11  # of the faults that need nodes of their own, with jobs of two nodes
OWNERS = 4  # such faults


def nodes_for(shape: Shape) -> int:
    """The nodes of a sandbox on which all faults are inflicted on jobs like this: the first ones are shared."""
    return shape.nodes + OWN_NODES + OWNERS * (shape.nodes - PLAIN.nodes)


@dataclass
class Ground:
    """A sandbox (or the emulator), the folders of its runs, and a small disk."""

    sandbox: RunningSandbox | None
    folder: Path
    small_disk: Path
    shape: Shape = PLAIN
    image: ThinImage | None = None
    count: int = 0  # of its nodes
    only: Collection[str] = ()  # the faults to inflict; empty: all
    free_nodes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.count = self.count or nodes_for(self.shape)
        self.free_nodes = [f"node{number}" for number in range(self.shape.nodes + 1, self.count + 1)]

    def stage(self, name: str, runs: Path) -> Stage:
        project = self.folder / name
        project.mkdir(parents=True)
        environment = self.sandbox.environment if self.sandbox else {**os.environ, "XDG_STATE_HOME": str(self.folder)}
        environment = environment | {"CLUSTERCTL_RUNS": str(runs), "NO_COLOR": "1"}
        environment |= {"XDG_CONFIG_HOME": str(self.folder / "config"), "XDG_RUNTIME_DIR": str(self.folder)}
        if not self.sandbox:
            (project / "cluster").mkdir()
            (project / "cluster" / "emulated.toml").write_text(EMULATOR)
        return Stage(self.sandbox.cluster if self.sandbox else "emulated", project, environment)

    def scene(self, fault: Fault | None, workload: str) -> Scene:
        """A run for `fault`, or an undisturbed one."""
        name = fault.name if fault else "calm"
        runs = self.small_disk if fault and fault.full_disk else self.folder / f"runs-{workload}"
        if fault and fault.prepare:
            runs = self.folder / f"runs-{workload}-{name}"
            shutil.copytree(self.folder / f"runs-{workload}" / ".data", runs / ".data")
        names = {f"node{number}" for number in range(1, self.count + 1)}
        nodes = tuple(f"node{number}" for number in range(1, self.shape.nodes + 1))
        if fault and fault.own_nodes:
            own = fault.own_nodes + self.shape.nodes - PLAIN.nodes
            nodes = tuple(self.free_nodes[:own])
            del self.free_nodes[:own]
        settings = dict(self.shape.settings)
        if self.sandbox:  # the emulator does not leave out nodes
            settings["resources.exclude"] = f'"{",".join(sorted(names - set(nodes)))}"'
        if self.shape.in_image:
            assert self.image is not None
            mounts = [*self.image.mounts, f"{INSIDE}:{INSIDE}:ro"]
            settings |= {"container.image": json.dumps(str(self.image.path)), "container.mounts": json.dumps(mounts)}
        settings |= fault.settings if fault else {}
        if fault and fault.outcome in (Outcome.RECOVERS, Outcome.RESUMED):
            # See assert_newest_checkpoint; and a rank that starts late looks for the one that rank 0 resumed from.
            settings["checkpoint.keep"] = "1000"
        return Scene(self.stage(f"{workload}-{name}", runs), workload, nodes, settings, name, self.shape)


EMULATOR = """
kind = "emulator"
polling_floor = "1s"
[emulator]
nodes = 4
gpus_per_node = 4
kill_wait = "15s"
"""


def strike_all(ground: Ground, faults: Iterable[Fault], workload: str, at_once: int) -> dict[str, Any]:
    """Inflict each fault on its own run; return the errors by the name of the fault."""
    faults = [fault for fault in faults if fault.inflict or fault.prepare]
    faults = [fault for fault in faults if workload not in fault.not_for]
    if ground.only:
        faults = [fault for fault in faults if fault.name in ground.only]
        assert faults, f"no fault of these names: {', '.join(ground.only)}"
    calm = ground.scene(None, workload)
    calm.submit()
    calm.go_on()
    failures: dict[str, Any] = {}
    if any(fault.prepare for fault in faults):  # it creates the cache that they damage
        wait_until(calm.run.finished_json.exists, 300, "the undisturbed run")

    def struck(fault: Fault) -> None:
        try:
            strike(ground, fault, calm)
        except Exception as error:  # in a thread: collected and reported by fault
            failures[fault.name] = error
            print(*traceback.format_exception(error), flush=True)
        print(f"{workload}, {fault.name}: {failures.get(fault.name, 'ok')}", flush=True)

    together = [fault for fault in faults if not fault.alone]
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(struck, together))
    for fault in faults:
        if fault.alone:
            struck(fault)
    return failures


def strike(ground: Ground, fault: Fault, calm: Scene) -> None:
    """Inflict `fault` on a run like `calm` and compare the outcome with the table. Raises AssertionError."""
    scene = ground.scene(fault, calm.workload)
    if fault.prepare:
        fault.prepare(scene)
    scene.submit()
    try:
        compare(fault, scene, calm)
    except Exception as error:
        error.add_note(scene.evidence())
        raise


def compare(fault: Fault, scene: Scene, calm: Scene) -> None:
    """Inflict the fault on a run that has been submitted, and compare its end with the table and with `calm`."""
    if fault.inflict:
        fault.inflict(scene)
    if fault.outcome is Outcome.UNHARMED:
        scene.go_on()
    if fault.outcome is Outcome.FAILS:
        wait_for_end(scene)
        assert_cause(fault, scene.why())
        assert not scene.run.finished_json.exists()
    else:
        wait_until(scene.run.finished_json.exists, 300, f"the end of {scene.run.id}")
        wait_until(calm.run.finished_json.exists, 300, "the undisturbed run")
        assert scene.losses() == calm.losses(), "the losses differ from those of an undisturbed run"
        if scene.other:
            wait_until(scene.other.finished_json.exists, 300, f"the end of {scene.other.id}")
            assert losses_of(scene.other) == calm.losses(), "the losses of the run beside it differ"
        found = scene.why()
        assert found["class"] == "finished", found
        for attempt in scene.run.attempts() if scene.workload == "command" else ():
            if (log := attempt.log(0)).exists():
                assert log.read_text().startswith(f"{scene.shape.shown}\n"), log.read_text()
        # Without its slurmd, a training may finish before Slurm notices.
        assert found["history"] or fault.outcome is Outcome.UNHARMED or calm.workload != "command", (
            "the fault had no effect"
        )
        if found["history"]:
            if fault.outcome is Outcome.RECOVERS:
                assert_newest_checkpoint(scene)
            assert found["history"][0]["class"] == fault.cause, found["history"]
            if fault.rank is not None:
                assert found["history"][0]["cause"].startswith(f"rank {fault.rank} on "), found["history"]


def assert_newest_checkpoint(scene: Scene) -> None:
    """The next attempt that began resumed from the last checkpoint of the first; all checkpoints are kept."""
    origins = [read_json(attempt.origin_json) for attempt in scene.run.attempts()[1:]]
    assert next(filter(None, origins))["checkpoint"] == scene.checkpoints()[-1].name


def wait_for_end(scene: Scene) -> None:
    """Wait until the run has ended, and Slurm has noticed."""
    wait_until(lambda: scene.ended(0), 300, f"the end of {scene.run.id}")
    scene.stage.wait_for_state(scene.run, "failed", "timed-out", "cancelled", seconds=60)


def assert_cause(fault: Fault, found: dict[str, Any]) -> None:
    assert (found["class"], found["rank"]) == (fault.cause, fault.rank), found
    assert (found["node"] is not None) or fault.rank is None, found
