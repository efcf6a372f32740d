"""An example of each key: from a shipped file, else from its description, else from the table below."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.shared.spec.keys import FileKey, as_toml

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

ROOT = Path(__file__).resolve().parents[1]
# For keys without an example in a shipped file or in the description.
EXAMPLES: dict[str, Any] = {
    "name": "baseline",
    "note": "lower dropout",
    "tags": ["baseline", "paper"],
    "code": "~/projects/mine",
    "kind": "slurm",
    "cluster": "mycluster",
    "host": "login.site.edu",
    "restart.grow.memory": 1.5,
    "restart.grow.time": 2,
    "account": "my-project",
    "qos": "normal",
    "env": {"OMP_NUM_THREADS": "4"},
    "python": "/shared/me/env/bin/python",
    "python_environments": ["/shared/me/env"],
    "srun_args": ["--cpu-bind=cores"],
    "remote_python": "/opt/python3.11/bin/python3",
    "images": "/shared/me/images",
    "environments": "/shared/me/environments",
    "environment": "uv.lock",
    "node_setup": ["rsync -a /shared/me/graph /scratch/me/"],
    "slurm_conf": "/etc/slurm/slurm.conf",
    "local_scratch": "/scratch",
    "role": [{"name": "server", "program": ["python", "serve.py", "{port}"]}],
    "role.needs": ["server"],
    "role.env": {"OMP_NUM_THREADS": "4"},
    "role.tasks_per_node": 2,
    "role.gpus_per_node": 4,
    "role.ready": "http://{host}:{port}/health",
    "role.image": "/shared/images/inference.sqsh",
    "resources.partition": "gpu",
    "resources.account": "my-project",
    "resources.qos": "normal",
    "resources.reservation": "workshop",
    "resources.nodelist": "node[01-04]",
    "resources.exclude": "node07",
    "resources.deadline": "2030-01-31T08:00",
    "resources.licenses": "matlab:1",
    "resources.gpus_per_task": "1",
    "resources.gpu_bind": "none",
    "resources.switches": "1",
    "resources.comment": "for the paper",
    "resources.wckey": "graphs",
    "resources.mail_user": "me@site.edu",
    "resources.sbatch": {"hint": "nomultithread"},
    "resources.cpus_per_gpu": 8,
    "resources.mem_per_cpu": "4G",
    "resources.mem_per_gpu": "64G",
    "resources.nice": 100,
    "restart.min_nodes": 6,
    "resources.warning": "5m",
    "container.workdir": "/workspace",
    "data.load": "mine:load",
    "watchdog.idle_gpu": "1h",
    "notify.command": ["./announce.sh"],
    "track.wandb": "my-project",
    "train.class_weights": "balanced",
    "train.metric": "roc_auc",
    "train.optimizer_options": {"beta2": 0.98},
    "train.accumulate": 4,
    "train.ema": 0.999,
    "train.sampler": "mine:Sampler",
}


def shipped_values() -> Iterator[tuple[str, str, Any]]:
    """(file, key, value) of the shipped job and cluster files."""
    for folder in ("jobs", "cluster"):
        for path in sorted((ROOT / folder).glob("*.toml")):
            yield from ((f"{folder}/{path.name}", *one) for one in _values(tomllib.loads(path.read_text())))


def _values(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        yield f"{above}{name}", value
        if isinstance(value, dict):
            yield from _values(value, f"{above}{name}.")


def fits(file: str, places: Iterable[str]) -> bool:
    return ("cluster" in places) if file.startswith("cluster/") else bool(set(places) - {"cluster", "config"})


def example(key: str, places: Mapping[str, FileKey], shipped: Iterable[tuple[str, str, Any]]) -> str:
    """A line that sets the key, below its table; training keys come after a workload that has them."""
    place, described = next(iter(places.items()))
    if key in EXAMPLES:
        value = EXAMPLES[key]
    else:
        used = ((file, value) for file, path, value in shipped if path == key and fits(file, places))
        file, value = next(used, ("", None))
        place = _workload_of(file) if file.startswith("jobs/") else place
        value = next(
            (one for one in (value, _quoted(described), _other_than_default(described)) if one not in (None, ())), None
        )
    if value in (None, [], {}):
        raise ValueError(f"no example for {key} of {place}: add one to EXAMPLES")
    table, _, name = key.rpartition(".")
    if key == "role":
        return "\n".join(["[[role]]", *(f"{inner} = {as_toml(one)}" for inner, one in value[0].items())])
    if table == "role":
        others = {"name": "server", **({} if name == "program" else {"program": ["python", "serve.py", "{port}"]})}
        own = f"{{ {', '.join(f'{inner} = {as_toml(one)}' for inner, one in value.items())} }}" if name == "env" else ""
        return "\n".join(
            [
                "[[role]]",
                *(f"{one} = {as_toml(text)}" for one, text in others.items()),
                f"{name} = {own or as_toml(value)}",
            ]
        )
    lines = [f'workload = "{place}"', ""] if table == "train" else []
    if isinstance(value, dict):
        return "\n".join([*lines, f"[{key}]", *(f"{inner} = {as_toml(one)}" for inner, one in value.items())])
    return "\n".join([*lines, *([f"[{table}]"] if table else []), f"{name} = {as_toml(value)}"])


def _workload_of(file: str) -> str:
    return str(tomllib.loads((ROOT / file).read_text())["workload"])


def _other_than_default(key: FileKey) -> Any:
    if key.kind == "true or false":
        return not key.default
    return key.kind.split(" | ")[-1] if " | " in key.kind else key.default


def _quoted(key: FileKey) -> Any:
    """The example in the description, if any."""
    match = re.search(r'such as ("[^"]+"|\[[^\]]+\]|\d+)', key.description)
    value = tomllib.loads(f"value = {match[1]}")["value"] if match else None
    return [value] if key.kind == "list" and isinstance(value, str) else value
