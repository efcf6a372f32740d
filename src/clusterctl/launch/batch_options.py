"""Translates options of sbatch and srun into keys of a job."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from clusterctl.spec import Resources
from clusterctl.spec.values import as_name

_KEYS = {field.name.replace("_", "-"): field.name for field in dataclasses.fields(Resources)}
_KEYS |= {"mem": "memory", "ntasks-per-node": "tasks_per_node"}
for _own in ("memory", "tasks-per-node", "warning", "stage-code", "sbatch"):  # no options of sbatch
    del _KEYS[_own]
_WHOLE_NUMBERS = {"nodes", "ntasks-per-node", "cpus-per-task", "cpus-per-gpu", "nice"}
_NUMBER = re.compile(r"[0-9]{1,9}")
_CONTAINER = {"container-image": "image", "container-workdir": "workdir"}
_CONTAINER_FLAGS = {"container-writable": "writable", "container-mount-home": "mount_home"}
_CONTAINER_FLAGS |= {"container-remap-root": "remap_root", "container-entrypoint": "entrypoint"}
_REPLACED = {
    **dict.fromkeys(
        ("output", "error", "open-mode", "label", "unbuffered"), "each run keeps its logs: clusterctl logs"
    ),
    "array": "a run is one job; to vary settings: clusterctl submit --sweep",
    "hold": "hold a run when submitting: clusterctl submit --hold",
    "wait": "wait for a run when submitting: clusterctl submit --wait",
    "kill-on-bad-exit": "clusterctl already ends the other ranks when one fails",
    "mpi": "set `mpi` in the cluster file",
}

Keys = dict[str, Any]


def carried_option(name: str, value: str | None, *, srun: bool = False) -> tuple[Keys, str]:
    """The keys equivalent to an option, and what they do not cover or why there are none."""
    if name in _REPLACED:
        return {}, _REPLACED[name]
    if name in _CONTAINER:
        return {f"container.{_CONTAINER[name]}": value or ""}, ""
    if name in _CONTAINER_FLAGS:
        return {f"container.{_CONTAINER_FLAGS[name]}": True}, ""
    match name, value:
        case "container-mounts", str():
            return {"container.mounts": value.split(",")}, ""
        case "job-name", str():
            return {"name": as_name(value)}, ""
        case "chdir", str():
            return {"code": value}, ""
        case "ntasks", str() if _NUMBER.fullmatch(value):
            return {"ntasks": int(value)}, ""
        case "gres", str():
            return _gres(value)
        case "gpus-per-node", str():
            return {"resources.gpus_per_node": _gpus(value)}, ""
        case "no-requeue", None:
            return {"resources.requeue": False}, ""
        case "exclusive" | "requeue", None:
            return {f"resources.{name}": True}, ""
        case "signal", str() if seconds := re.fullmatch(r"(?:R|B|RB|BR)?:?\w+@([0-9]{1,9})", value):
            return {"resources.warning": int(seconds[1])}, "clusterctl sends its own: runs.stop_requested()"
        case "export", str():
            return _exported(value)
    if name in _KEYS and value is not None:
        whole = name in _WHOLE_NUMBERS and _NUMBER.fullmatch(value)
        return {f"resources.{_KEYS[name]}": int(value) if whole else value}, ""
    if srun:
        return {}, f"srun option: add --{name} to `srun_args` in the cluster file if you need it"
    return {f"resources.sbatch.{name}": value or ""}, ""


def total_tasks(tasks: int, nodes: object) -> tuple[Keys, str]:
    """Converts a total number of tasks to tasks per node."""
    if tasks == 1 and nodes is None:
        return {"resources.tasks_per_node": 1}, ""
    if isinstance(nodes, int) and nodes > 0 and tasks % nodes == 0:
        return {"resources.tasks_per_node": tasks // nodes}, ""
    return {}, "set resources.nodes and resources.tasks_per_node: ranks are counted by node"


def _gres(value: str) -> tuple[Keys, str]:
    """`gpu:a100:4,nvme:1` -> GPUs and the remaining resources."""
    parts = value.split(",")
    gpus = [part.removeprefix("gpu").removeprefix(":") for part in parts if re.fullmatch(r"gpu(?::.*)?", part)]
    others = [part for part in parts if not re.fullmatch(r"gpu(?::.*)?", part)]
    keys: Keys = {"resources.gpus_per_node": _gpus(gpus[0])} if gpus else {}
    keys |= {"resources.gres": ",".join(others)} if others else {}
    return keys, "several GPU types: a job has only one" if len(gpus) > 1 else ""


def _gpus(value: str) -> int | str:
    """4, "a100:4", or just a type, which means one GPU to sbatch."""
    if not value or _NUMBER.fullmatch(value):
        return int(value or 1)
    return value if ":" in value else f"{value}:1"


def _exported(value: str) -> tuple[Keys, str]:
    pairs = [part.partition("=") for part in value.split(",")]
    keys: Keys = {f"env.{name}": text for name, equals, text in pairs if equals}
    return keys, "" if value.startswith("ALL") else "the tasks get the batch script's full environment"
