"""Slurm's configuration and this user's associations, for a first cluster file: four requests in all."""

from __future__ import annotations

import getpass
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.errors import SlurmError

if TYPE_CHECKING:
    from clusterctl.slurm.client import Slurm
    from clusterctl.slurm.nodes import Inventory

_CLUSTER_NAME = re.compile(r"^ClusterName\s*=\s*(\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Site:
    """The parts of a Slurm installation that this user may use. `unknown` describes what the user has to fill in."""

    inventory: Inventory
    name: str = ""
    accounts: tuple[str, ...] = ()
    qos: tuple[str, ...] = ()
    has_pyxis: bool | None = None
    unknown: tuple[str, ...] = ()


def ask_site(slurm: Slurm) -> Site:
    """Request nodes, configuration, associations and srun's options. Raises SlurmError if there are no nodes."""
    inventory = slurm.nodes()
    if not inventory.partitions:
        raise SlurmError("sinfo shows no partition that you may use", "list partitions: sinfo")
    unknown = []

    def ask(what: str, *words: str) -> str:
        try:
            return slurm.answer(*words)
        except SlurmError as error:
            unknown.append(f"{what}: {error.message}")
            return ""

    config = ask("the cluster's name", "scontrol", "show", "config")
    words = ("show", "associations", f"user={getpass.getuser()}", "format=Account,QOS")
    accounts, qos = parse_associations(ask("your accounts and QOS", "sacctmgr", "-n", "-P", *words))
    options = ask("whether srun has pyxis", "srun", "--help")
    name = _CLUSTER_NAME.search(config)
    pyxis = "--container-image" in options if options else None
    return Site(inventory, name[1] if name else "", accounts, qos, pyxis, tuple(unknown))


def parse_associations(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The distinct accounts and QOS in sacctmgr's `account|qos,qos` lines."""
    rows = [line.split("|") for line in text.splitlines() if line.count("|") >= 1]
    accounts = dict.fromkeys(account for account, *_ in rows if account)
    return tuple(accounts), tuple(dict.fromkeys(name for _, qos, *_ in rows for name in qos.split(",") if name))
