"""A new user's first cluster file and job file as text, with comments that explain each value."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.spec.values import Duration, plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from clusterctl.slurm import Inventory, Node, Partition
    from clusterctl.slurm.site import Site

_MINUTES = Duration(60)
_FIRST_SECONDS = 600
FIRST_PROGRAM = (
    "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], 'on', os.uname().nodename)"
)


@dataclass(frozen=True)
class ClusterChoices:
    """The user's choices. Without account or QOS Slurm uses the user's default."""

    name: str
    partition: str
    runs: str
    account: str = ""
    qos: str = ""


def likely_partition(inventory: Inventory) -> str:
    """The default partition; if only others have GPUs, the one with the most."""
    first = next(iter(inventory.partitions.values()))
    return max(
        inventory.partitions.values(),
        key=lambda one: (_gpu_count(first, inventory) > 0 and one is first, _gpu_count(one, inventory), one is first),
    ).name


def cluster_text(site: Site, chosen: ClusterChoices, variables: Mapping[str, str], shared: str = "") -> str:
    """The cluster file. `variables` are environment variables, `shared` is the type of the runs' file system."""
    inventory = site.inventory
    partition = inventory.partitions[chosen.partition]
    others = [_described(one, inventory) for one in inventory.partitions.values() if one is not partition]
    lines = [
        "# Written by `clusterctl init` from Slurm's configuration. All keys: clusterctl config keys",
        _key("kind", "slurm"),
        _key("partition", chosen.partition, _described(partition, inventory)),
        *(f"# another partition: {other}" for other in others),
        _optional("account", chosen.account, site.accounts),
        _optional("qos", chosen.qos, site.qos),
        _gpus(inventory.nodes_of(partition)),
        _key("gpu_request", "gpus-per-node", 'or "gres" if sbatch rejects --gpus-per-node'),
        _key("runs", chosen.runs, f"must be visible to login and compute nodes{f'; {shared}' if shared else ''}"),
    ]
    if site.has_pyxis:
        lines.append(_key("container_runtime", "pyxis", "srun has --container-image"))
    elif site.has_pyxis is not None:
        lines.append(_key("container_runtime", "builtin", "no pyxis; nodes need unsquashfs and user namespaces"))
    if variables.get("SLURM_CONF"):
        lines.append(_key("slurm_conf", variables["SLURM_CONF"], "$SLURM_CONF"))
    lines += [
        '# setup = ["module load cuda", "source /shared/me/env/bin/activate"] # on the host, before the tasks',
        '# interface = "ib0" # the network between the nodes, if the ranks cannot connect to each other',
    ]
    return "".join(f"{line}\n" for line in lines)


def first_job(site: Site, chosen: ClusterChoices) -> dict[str, Any]:
    """A job that takes a minute to show that everything works: each rank prints its node."""
    partition = site.inventory.partitions[chosen.partition]
    usable = sum(node.can_start or node.state == "allocated" for node in site.inventory.nodes_of(partition))
    nodes = max(1, min(2, usable, partition.most_nodes or 2))
    time = _MINUTES.write(min(_FIRST_SECONDS, partition.longest or _FIRST_SECONDS))
    return {
        "workload": "command",
        "argv": ["python", "-c", FIRST_PROGRAM],
        "resources": {"nodes": nodes, "time": time},
    }


def toml_text(values: Mapping[str, Any], comments: Iterable[str] = ()) -> str:
    """Nested tables as a TOML file, under `comments`."""
    tables = {name: value for name, value in values.items() if isinstance(value, dict)}
    lines = [f"# {_printable(comment)}" for comment in comments]
    lines += [_key(name, value) for name, value in values.items() if name not in tables]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *_table(table)]
    return "".join(f"{line}\n" for line in lines)


def _table(values: Mapping[str, Any]) -> list[str]:
    inline = {name: value for name, value in values.items() if isinstance(value, dict)}
    written = (f"{name} = {{ {', '.join(_table(table))} }}" for name, table in inline.items())
    return [*(_key(name, value) for name, value in values.items() if name not in inline), *written]


def _key(name: str, value: Any, comment: str = "") -> str:
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return f"{name} = {text}" + (f" # {_printable(comment)}" if comment else "")


def _optional(name: str, value: str, known: Sequence[str]) -> str:
    choices = f"yours: {', '.join(known)}" if known else ""
    return _key(name, value, choices) if value else f"# {_key(name, '...', choices or 'your default')}"


def _gpus(nodes: Sequence[Node]) -> str:
    """The GPUs that most nodes have, with the type if nodes of the partition have several."""
    kinds = Counter(gpu for node in nodes for gpu in {(gpu.type, gpu.total) for gpu in node.gpus})
    if not kinds:
        return _key("gpus_per_node", 0, "the partition has no GPUs")
    (kind, count), _ = kinds.most_common(1)[0]
    several = len({name for name, _ in kinds}) > 1
    there = (f"{plural(number, 'node')} with {total} {name or 'GPUs'}" for (name, total), number in kinds.items())
    return _key("gpus_per_node", f"{kind}:{count}" if kind and several else count, ", ".join(there))


def _described(partition: Partition, inventory: Inventory) -> str:
    """gpu: 12 nodes, 4 a100 each, up to 2d."""
    nodes = inventory.nodes_of(partition)
    gpus = sorted({f"{gpu.total} {gpu.type or 'GPUs'}" for node in nodes for gpu in node.gpus})
    longest = f"up to {_MINUTES.write(partition.longest)}" if partition.longest else "no time limit"
    down = "" if partition.up else ", down"
    each = f", {' or '.join(gpus)} each" if gpus else ", no GPUs"
    return f"{partition.name}: {plural(len(nodes), 'node')}{each}, {longest}{down}"


def _gpu_count(partition: Partition, inventory: Inventory) -> int:
    return sum(gpu.total for node in inventory.nodes_of(partition) for gpu in node.gpus)


def _printable(text: str) -> str:
    """`text` without characters that a TOML comment cannot contain."""
    return "".join(character if character.isprintable() else "?" for character in text)
