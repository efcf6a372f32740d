"""A cluster: where to run. The dataclasses of a cluster file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from clusterctl.spec.job import Container, Environment
from clusterctl.spec.values import Count, Line, Name, Natural, OneOf, Seconds, Word

SECRETS = ("*TOKEN*", "*SECRET*", "*PASSWORD*", "*CREDENTIAL*", "*KEY*")


@dataclass(frozen=True, kw_only=True)
class Emulator:
    """`[emulator]`: the virtual nodes of kind "emulator"."""

    nodes: Count = 4
    cpus_per_node: Count = 4
    gpus_per_node: Natural = 0
    kill_wait: Seconds = 30  # between TERM and KILL, as slurm.conf's KillWait


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A whole cluster file. Keys that a job has too are the defaults of jobs there."""

    name: Name
    kind: Annotated[str, OneOf(("slurm", "emulator", "sandbox"))] = "slurm"
    partition: Line | None = None
    account: Line | None = None
    qos: Line | None = None
    gpus_per_node: Natural = 0
    gpu_request: Annotated[str, OneOf(("gpus-per-node", "gres"))] = "gpus-per-node"
    setup: tuple[Line, ...] = ()  # shell lines for the batch script, before srun
    python: Line | None = None  # interpreter of the tasks; default: this one, or the image's
    runs: Line | None = None  # folder of the runs; must be shared by login and compute nodes
    images: Line | None = None
    container_runtime: Annotated[str, OneOf(("pyxis", "builtin"))] | None = (
        None  # default: pyxis where Slurm is a site's
    )
    container: Container = field(default_factory=Container)
    env: Environment = field(default_factory=dict)
    secrets: tuple[Line, ...] = SECRETS  # patterns of variables in `env` whose values are never written or shown
    srun_args: tuple[Line, ...] = ()
    mpi: Word = "none"
    interface: Word | None = None  # network interface of the rendezvous
    slurm_conf: Line | None = None
    polling_floor: Seconds = 10  # between two questions to Slurm
    emulator: Emulator = field(default_factory=Emulator)

    @property
    def has_pyxis(self) -> bool:
        """Whether images are pyxis's to run there, or clusterctl's own (`containers/enter.py`)."""
        return (self.container_runtime or ("pyxis" if self.kind == "slurm" else "builtin")) == "pyxis"


@dataclass(frozen=True, kw_only=True)
class UserConfiguration:
    """`config.toml` in the user's configuration folder."""

    cluster: Line | None = None  # where jobs go that name no cluster
