"""The faults: how each is inflicted on a run, and the expected outcome. docs/faults.md is written from this table."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from faults.scene import WORKLOADS, Scene
from support.recorded import beat_of, begun
from support.scenario import wait_until, writers

from clusterctl.launcher.sandbox import marked_processes
from clusterctl.launcher.sandbox.description import current
from clusterctl.shared.errors import Cause
from clusterctl.shared.record.files import read_json, write_json


class Outcome(StrEnum):
    """What happens to a run, in the words of the docs."""

    RECOVERS = "restarts from its newest checkpoint, and ends with the same losses"
    ELSEWHERE = "restarts without that node"
    RESUMED = "continues with `clusterctl resume` from the newest complete checkpoint, and ends with the same losses"
    UNHARMED = "is not disturbed"
    FAILS = "fails"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """`cause` is the class that `why -o json` reports for the attempt that the fault ended, `rank` the rank.

    `settings` go into the job; `own_nodes` are nodes that the fault takes down or occupies, so no other run uses them.
    A fault that affects all of Slurm runs `alone`. `tests` cover it in `make test`; without them, test_once does.
    `seconds` from the fault to the cause in `why`, on a sandbox, were measured by benchmarks/time_to_cause.py.
    """

    name: str
    words: str
    inflict: Callable[[Scene], None] | None = None
    outcome: Outcome = Outcome.RECOVERS
    cause: Cause | None = None
    rank: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    own_nodes: int = 0
    prepare: Callable[[Scene], None] | None = None
    alone: bool = False
    slow: bool = False  # takes half a minute or more: only in `make test-long`
    full_disk: bool = False
    not_for: tuple[str, ...] = ()
    tests: str = ""
    seconds: str = ""


# Ranks


def kill_first(scene: Scene) -> None:
    scene.wait_for_checkpoints()
    scene.kill(0)


def kill_another(scene: Scene) -> None:
    scene.wait_for_checkpoints()
    scene.kill(2)


def kill_program(scene: Scene) -> None:
    scene.wait_for_checkpoints()
    scene.send(2, signal.SIGKILL)


def stop(scene: Scene) -> None:
    scene.wait_for_checkpoints()
    wait_until(
        lambda: (beat := beat_of(scene.run.attempt(0), 2)) and beat.slow_seconds,
        60,
        "its step time to be known",
    )
    scene.send(2, signal.SIGSTOP)


def raise_error(scene: Scene) -> None:
    scene.wait_for_checkpoints()
    scene.send(2, signal.SIGURG)


def eat_memory(scene: Scene) -> None:
    scene.wait_for_checkpoints()
    scene.send(2, signal.SIGWINCH)


def kill_writers(scene: Scene) -> None:
    """On both nodes; their ranks start new ones."""
    scene.wait_for_checkpoints()
    attempt = scene.run.attempt(0)
    first = set(writers(attempt))
    assert len(first) == len(attempt.beat_files()) == 2
    for pid in first:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: len(set(writers(attempt)) - first) >= 2, 60, "other writers")


# Nodes


def switch_off(scene: Scene) -> None:
    scene.wait_for_checkpoints()
    scene.node("off", scene.nodes_of()[1])


def cut_and_join(scene: Scene) -> None:
    """Cut off the node of rank 0 and the batch script, which continue without knowing of the second attempt."""
    scene.wait_for_checkpoints()
    name = scene.nodes_of()[0]
    scene.node("cut", name)
    wait_until(lambda: begun(scene.run.attempt(1)), 90, "the second attempt")
    scene.node("join", name)


def kill_slurmd(scene: Scene) -> None:
    scene.wait_for_checkpoints()
    name = scene.nodes_of()[1]
    _end_daemon(scene, name, "slurmd")


# Slurm


def restart_controller(scene: Scene) -> None:
    _without_controller(scene, lambda _: time.sleep(3))


def kill_without_controller(scene: Scene) -> None:
    """The batch script requests the requeue while slurmctld is down."""

    def kill(scene: Scene) -> None:
        scene.send(2, signal.SIGKILL)
        # srun gives up on ending the peers after two minutes, and then does not start them again in the same job.
        wait_until(
            lambda: any((read_json(attempt.host_json) or {}).get("requeuing") for attempt in scene.run.attempts()),
            240,
            "the batch script to ask for a requeue",
        )
        time.sleep(5)

    _without_controller(scene, kill)


def _without_controller(scene: Scene, meanwhile: Callable[[Scene], None]) -> None:
    scene.wait_for_checkpoints()
    sandbox = current(Path(scene.stage.environment["XDG_STATE_HOME"]) / "clusterctl" / "sandbox")
    assert sandbox is not None
    state = sandbox.path / "state" / "job_state"  # slurmctld forgets what it has not saved
    changed = time.time()
    scene.slurm("scontrol", "update", f"JobId={scene.job_id}", "Comment=saved")

    def saved() -> bool:
        with suppress(FileNotFoundError):  # it is being replaced
            return state.stat().st_mtime > changed
        return False

    wait_until(saved, 30, "slurmctld to save its state")
    _end_daemon(scene, "slurmctld", "slurmctld")
    meanwhile(scene)
    address = (sandbox.address, sandbox.port_of("slurmctld"))
    marked_processes.serve(sandbox.path, "slurmctld", ["slurmctld", "-D"], sandbox.log("slurmctld"), address)


def _end_daemon(scene: Scene, part: str, command: str) -> None:
    folder = Path(scene.stage.environment["XDG_STATE_HOME"]) / "clusterctl" / "sandbox"
    found = [process for process in marked_processes.find(folder) if (process.part, process.command) == (part, command)]
    assert found
    marked_processes.end(found)


def kill_script(scene: Scene) -> None:
    scene.wait_for_checkpoints()
    scene.kill_script()


def preempt(scene: Scene) -> None:
    scene.wait_for_checkpoints()
    words = ["--partition=urgent", "--exclusive", f"--nodelist={','.join(scene.nodes)}", f"--nodes={len(scene.nodes)}"]
    scene.slurm("sbatch", *words, "--output=/dev/null", "--wrap", "sleep 1")


def warn(scene: Scene) -> None:
    scene.wait_for_checkpoints()
    scene.slurm("scancel", "--signal=USR2", scene.job_id)


def run_out_of_time(scene: Scene) -> None:
    scene.wait_for_checkpoints()
    scene.slurm("scontrol", "update", f"JobId={scene.job_id}", "TimeLimit=1")


def cancel(scene: Scene) -> None:
    scene.wait_for_checkpoints()
    scene.slurm("scancel", scene.job_id)


def requeue(scene: Scene) -> None:
    scene.wait_for_checkpoints()
    scene.slurm("scontrol", "requeue", scene.job_id)


# Files


def fill_and_free(scene: Scene) -> None:
    """Fill the disk of the runs folder for three seconds."""
    scene.wait_for_checkpoints()
    ballast = scene.stage.runs / ".ballast"
    subprocess.run(["dd", "if=/dev/zero", f"of={ballast}", "bs=4k"], capture_output=True, check=False)
    assert shutil.disk_usage(scene.stage.runs).free == 0
    time.sleep(3)
    ballast.unlink()


def truncate(scene: Scene) -> None:
    def damage(folder: Path) -> None:
        path = _largest(folder)
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 2)

    _damage_newest(scene, damage)


def flip_a_bit(scene: Scene) -> None:
    _damage_newest(scene, lambda folder: flip_bit(_largest(folder)))


def make_foreign(scene: Scene) -> None:
    def damage(folder: Path) -> None:
        manifest = read_json(folder / "manifest.json")
        manifest["fingerprint"]["seed"] += 1
        write_json(folder / "manifest.json", manifest)

    _damage_newest(scene, damage)


def _damage_newest(scene: Scene, damage: Callable[[Path], None]) -> None:
    """Cancel the run, damage its newest checkpoint and resume it: it takes the checkpoint before."""
    scene.wait_for_checkpoints(2)
    cancel(scene)
    wait_until(lambda: scene.ended(0), 60, "the end of the first attempt")
    scene.stage.wait_for_state(scene.run, "cancelled", seconds=30)
    *_, before, newest = scene.wait_for_checkpoints(2)
    damage(newest)
    done = scene.stage.call("resume", scene.run.id, "--cluster", scene.stage.cluster)
    assert done.returncode == 0, done.stderr
    wait_until(lambda: read_json(scene.run.attempt(1).origin_json), 60, "the choice of a checkpoint")
    assert read_json(scene.run.attempt(1).origin_json)["checkpoint"] == before.name
    assert f"checkpoint {newest.name} is passed over" in scene.stage.log(scene.run, 0, attempt=1)


def damage_cache(scene: Scene) -> None:
    """Damage the prepared data set, which another run in the same folder has made."""
    (cached,) = scene.stage.runs.glob(".data/*/graph.pt")
    flip_bit(cached)


def flip_bit(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        (byte,) = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))


def _largest(folder: Path) -> Path:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json"]
    return max(files, key=lambda path: path.stat().st_size)


TRAININGS = tuple(workload for workload in WORKLOADS if workload != "command")
_WHY = "tests/end_to_end/test_why.py"
_SPARE_NODES = "tests/end_to_end/test_spare_nodes.py"
_NODE_CHECK = "tests/end_to_end/test_node_check.py"
_LEFT = "tests/end_to_end/test_left_processes.py"
FAULTS = (
    Fault(name="kill-0", words="SIGKILL of rank 0", inflict=kill_first, cause=Cause.KILLED, rank=0),
    Fault(
        name="kill-2",
        words="SIGKILL of another rank",
        inflict=kill_another,
        cause=Cause.KILLED,
        rank=2,
        seconds="0.8",
    ),
    Fault(
        name="kill-program",
        words="SIGKILL of your own program",
        inflict=kill_program,
        cause=Cause.KILLED,
        rank=2,
        not_for=TRAININGS,
        tests="tests/workloads/test_command.py",
    ),
    Fault(
        name="worker",
        words="SIGKILL of a worker of torchrun or accelerate",
        cause=Cause.KILLED,
        tests="tests/end_to_end/test_launchers.py",
    ),
    Fault(name="stop", words="SIGSTOP of a rank", inflict=stop, cause=Cause.HANG, rank=2, seconds="21"),
    Fault(
        name="deadlock",
        words='a deadlock in a program that logs no steps, with `watchdog.action = "restart"`',
        cause=Cause.HANG,
        tests=_WHY,
    ),
    Fault(
        name="raise",
        words="an exception in one rank",
        inflict=raise_error,
        outcome=Outcome.FAILS,
        cause=Cause.USER,
        rank=2,
        tests=_WHY,
        seconds="0.9",
    ),
    Fault(
        name="memory",
        words="out of memory in one rank",
        inflict=eat_memory,
        cause=Cause.HOST_MEMORY,
        rank=2,
        settings={"watchdog.floor": "90"},  # the kernel spends long on reclaiming memory before it kills
    ),
    Fault(
        name="writers",
        words="SIGKILL of the writers of all nodes (docs/decisions/the-run-directory.md)",
        inflict=kill_writers,
        outcome=Outcome.UNHARMED,
        tests="tests/node/test_node_writer.py",
    ),
    Fault(name="off", words="a node powered off", inflict=switch_off, cause=Cause.NODE, own_nodes=3),
    Fault(
        name="cut",
        words="a node disconnected and reconnected, while both attempts are running",
        inflict=cut_and_join,
        cause=Cause.NODE,
        own_nodes=3,
    ),
    Fault(
        name="spare",
        words="a node powered off, with `resources.spare_nodes`",
        cause=Cause.NODE,
        tests=_SPARE_NODES,
    ),
    Fault(
        name="frozen",
        words="a node frozen, cut off and back later, with `resources.spare_nodes`",
        cause=Cause.NODE,
        tests=_SPARE_NODES,
    ),
    Fault(
        name="script-node",
        words="the node of the batch script powered off, with `resources.spare_nodes` and a successor",
        cause=Cause.NODE,
        tests=_SPARE_NODES,
    ),
    Fault(
        name="unfit",
        words="a node whose own disk is full or missing at the start, with `node_check.enabled`",
        outcome=Outcome.ELSEWHERE,
        cause=Cause.NODE,
        tests=_NODE_CHECK,
    ),
    Fault(
        name="gpu",
        words="a GPU that breaks during a training (simulated): an uncorrectable memory error, or it falls off the bus",
        outcome=Outcome.ELSEWHERE,
        cause=Cause.NODE,
        tests="tests/submission/test_script_on_the_host.py",
    ),
    Fault(
        name="same-step",
        words="SIGKILL of a rank at the same step twice in a row, on the same node",
        outcome=Outcome.ELSEWHERE,
        cause=Cause.KILLED,
        tests="tests/end_to_end/test_blamed_node.py",
    ),
    Fault(
        name="same-step-elsewhere",
        words="SIGKILL of a rank at that step again, without the node",
        outcome=Outcome.FAILS,
        cause=Cause.KILLED,
        slow=True,
        tests="tests/end_to_end/test_blamed_node.py",
    ),
    Fault(
        name="unfit-hang",
        words="a node that hangs at the start, with `node_check.enabled`",
        outcome=Outcome.ELSEWHERE,
        cause=Cause.NODE,
        tests=_NODE_CHECK,
    ),
    Fault(name="slurmd", words="slurmd killed", inflict=kill_slurmd, cause=Cause.NODE, own_nodes=3),
    Fault(
        name="controller",
        words="slurmctld killed and restarted",
        inflict=restart_controller,
        outcome=Outcome.UNHARMED,
        alone=True,
    ),
    Fault(
        name="away",
        words="SIGKILL of your own program while slurmctld is down",
        inflict=kill_without_controller,
        cause=Cause.KILLED,
        rank=2,
        alone=True,
        slow=True,
        not_for=TRAININGS,
    ),
    Fault(
        name="script",
        words="SIGKILL of the batch script",
        inflict=kill_script,
        outcome=Outcome.FAILS,
        cause=Cause.KILLED,
    ),
    Fault(
        name="stepd",
        words="SIGKILL of the slurmstepd of one node",
        cause=Cause.KILLED,
        tests="tests/diagnosis/test_failure.py",
    ),
    Fault(
        name="no-scontrol",
        words="no `scontrol` on the nodes when the run has to be requeued",
        outcome=Outcome.FAILS,
        tests="tests/submission/test_script_on_the_host.py",
    ),
    Fault(
        name="deaf-scontrol",
        words="`scontrol requeue` failing for less than ten minutes",
        tests="tests/submission/test_script_on_the_host.py",
    ),
    Fault(
        name="preempted",
        words="preemption",
        inflict=preempt,
        cause=Cause.PREEMPTED,
        own_nodes=2,
        settings={"resources.partition": '"preemptable"', "resources.exclusive": "true"},
    ),
    Fault(
        name="warned",
        words="the warning before the time limit",
        inflict=warn,
        cause=Cause.PREEMPTED,
    ),
    Fault(
        name="time",
        words="the time limit, without a warning",
        inflict=run_out_of_time,
        outcome=Outcome.FAILS,
        cause=Cause.TIME,
        settings={"resources.warning": "0"},
    ),
    Fault(
        name="scancel",  # `truncated` begins with it
        words="scancel",
        inflict=cancel,
        outcome=Outcome.FAILS,
        cause=Cause.CANCELLED,
        tests="tests/faults/test_once.py",
    ),
    Fault(
        name="refused-cancel",
        words="`clusterctl cancel` while slurmctld is down",
        outcome=Outcome.UNHARMED,
        tests="tests/cli/test_commands.py",
    ),
    Fault(name="requeue", words="scontrol requeue by hand", inflict=requeue, cause=Cause.PREEMPTED),
    Fault(
        name="stubborn",
        words="scontrol requeue of a program that ignores TERM and has a daemon: nothing of it runs beside the next "
        "attempt",
        cause=Cause.PREEMPTED,
        tests=_LEFT,
    ),
    Fault(
        name="stubborn-cancel",
        words="`clusterctl cancel` of such a program: nothing of it is left",
        outcome=Outcome.FAILS,
        cause=Cause.CANCELLED,
        tests=_LEFT,
    ),
    Fault(
        name="cleaned",
        words="the warning before the time limit, after a cleaner has removed the temporary files of the task",
        cause=Cause.PREEMPTED,
        tests="tests/workloads/test_command.py",
    ),
    Fault(
        name="full",
        words="run directory full, then freed",
        inflict=fill_and_free,
        outcome=Outcome.UNHARMED,
        full_disk=True,
    ),
    Fault(
        name="full-start",
        words="run directory full when the run is started again",
        outcome=Outcome.FAILS,
        cause=Cause.DISK,
        tests="tests/diagnosis/test_failure.py",
    ),
    Fault(
        name="setup",
        words="a line of `setup` after which nothing can be right: `exit`, a failing `source`, `conda` or `module`, "
        "a syntax error",
        outcome=Outcome.FAILS,
        cause=Cause.LAUNCH,
        tests="tests/submission/test_script_on_the_host.py",
    ),
    Fault(
        name="moved",
        words="run directory moved away while the run is running: nothing appears in its old place",
        outcome=Outcome.FAILS,
        cause=Cause.LAUNCH,
        slow=True,
        tests="tests/end_to_end/test_why.py",
    ),
    Fault(
        name="truncated",
        words="newest checkpoint truncated",
        inflict=truncate,
        outcome=Outcome.RESUMED,
        cause=Cause.CANCELLED,
    ),
    Fault(
        name="flipped",
        words="a bit of the newest checkpoint flipped",
        inflict=flip_a_bit,
        outcome=Outcome.RESUMED,
        cause=Cause.CANCELLED,
        tests="tests/record/test_checkpoints.py",
    ),
    Fault(
        name="foreign",
        words="newest checkpoint is from another model",
        inflict=make_foreign,
        outcome=Outcome.RESUMED,
        cause=Cause.CANCELLED,
        not_for=("command",),
    ),
    Fault(
        name="cache",
        words="a bit of the prepared data set flipped",
        prepare=damage_cache,
        outcome=Outcome.UNHARMED,
        not_for=("command",),
    ),
    Fault(
        name="submit",
        words="clusterctl killed at any point of `submit`",
        outcome=Outcome.UNHARMED,
        tests="tests/end_to_end/test_crashes.py",
    ),
)
