"""Gathers what `doctor` judges: the interpreter of the tasks, Slurm, folders, clock and limits of this machine.

Everything slow is asked at the same time, and nothing is waited for longer than a few seconds.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.checks.surroundings import Folder, look_at, nearest, soft_limit
from clusterctl.config import runs_folder, state_folder
from clusterctl.errors import SlurmError
from clusterctl.slurm import Slurm

if TYPE_CHECKING:
    from clusterctl.checks.container import Facts
    from clusterctl.spec import Cluster

INTERPRETER_SECONDS = 30  # the first import of torch from a shared file system
# Slurm is asked these; the answers are text, as their JSON changes with every version.
QUESTIONS = {
    "version": ("sbatch", "--version"),
    "ping": ("scontrol", "ping"),
    "partitions": ("sinfo", "-h", "-o", "%P"),
    "config": ("scontrol", "show", "config"),
    "srun": ("srun", "--help"),
}
_ASK_INTERPRETER = """
import importlib, json, platform
versions = {"python": platform.python_version()}
for name in ("torch", "submitit"):
    try:
        versions[name] = importlib.import_module(name).__version__
    except Exception as error:
        versions[name + " problem"] = f"{type(error).__name__}: {error}"
print(json.dumps(versions))
"""

Told = str | SlurmError
"""What a command of Slurm's printed, or why it did not."""


@dataclass(frozen=True)
class Interpreter:
    """What the tasks' Python says: name -> version, "NAME problem" -> why not; `problem` where it says nothing."""

    path: str
    says: dict[str, str]
    problem: str = ""


@dataclass(frozen=True)
class Evidence:
    """All that `doctor` judges. `slurm` is empty on the emulator; `interpreter` is None where tasks run in an image."""

    cluster: Cluster
    python: str
    interpreter: Interpreter | None
    slurm: dict[str, Told]
    runs: Folder
    state: Folder
    images: Folder | None
    clock_ahead: float | None  # seconds that the file system of the runs is ahead of this machine
    open_files: int
    processes: int
    git: bool
    container: Facts | None = None  # of the cluster's image, where it names one


def gather(cluster: Cluster) -> Evidence:
    """Look at this machine and ask `cluster`."""
    runs = runs_folder(cluster)
    with ThreadPoolExecutor() as pool:
        container = pool.submit(_look_into_image, cluster)
        interpreter = pool.submit(_ask_interpreter, cluster.python or sys.executable)
        slurm = {name: pool.submit(_ask, cluster, words) for name, words in _questions(cluster).items()}
        return Evidence(
            cluster=cluster,
            python=platform.python_version(),
            interpreter=None if cluster.container.image else interpreter.result(),
            container=container.result(),
            slurm={name: answer.result() for name, answer in slurm.items()},
            runs=look_at(runs),
            state=look_at(state_folder()),
            images=look_at(Path(cluster.images).expanduser()) if cluster.images else None,
            clock_ahead=_clock_ahead(nearest(runs)),
            open_files=soft_limit(resource.RLIMIT_NOFILE),
            processes=soft_limit(resource.RLIMIT_NPROC),
            git=shutil.which("git") is not None,
        )


def _look_into_image(cluster: Cluster) -> Facts | None:
    """What the preflight of a run would find, but for what the run itself adds."""
    if not cluster.container.image:
        return None
    from clusterctl.checks.container_facts import gather as gather_facts
    from clusterctl.containers.pyxis import IMAGE_PYTHON, make_view

    image = cluster.container.image
    if image.startswith((".", "~")):
        image = str(Path(image).expanduser().absolute())
    view = make_view(image, cluster.container, [], cluster.env, None)
    here = cluster.nodes_are_here and not cluster.has_pyxis
    return gather_facts(
        view,
        cluster.python or IMAGE_PYTHON,
        builtin=not cluster.has_pyxis,
        gpus=cluster.gpus_per_node,
        srun_help=None,
        unpacks_here=here,
    )


def _questions(cluster: Cluster) -> dict[str, tuple[str, ...]]:
    return QUESTIONS if cluster.is_slurm else {}


def _ask(cluster: Cluster, words: tuple[str, ...]) -> Told:
    try:
        return Slurm.of(cluster).answer(*words)
    except SlurmError as error:
        return error


def _ask_interpreter(path: str) -> Interpreter:
    try:
        done = subprocess.run(
            [path, "-c", _ASK_INTERPRETER],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=INTERPRETER_SECONDS,
            check=False,
        )
        return Interpreter(path, json.loads(done.stdout.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        return Interpreter(path, {}, f"no answer within {INTERPRETER_SECONDS} s")
    except OSError as error:
        return Interpreter(path, {}, str(error.strerror))
    except (ValueError, IndexError):
        return Interpreter(path, {}, (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])


def _clock_ahead(folder: Path) -> float | None:
    """By the time of a file made now: what NFS serves is the server's clock."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".clusterctl-") as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
            return os.stat(file.name).st_mtime - time.time()  # noqa: PTH116 - the name, as NFS asks the server then
    except OSError:
        return None
