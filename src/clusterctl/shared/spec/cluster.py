"""A cluster: where to run. The dataclasses of a cluster file.

The string below a field is its description; `spec.keys` reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from clusterctl.shared.spec.job import Container, Environment, Notify, Track
from clusterctl.shared.spec.values import NO_GPUS, AtLeast, Count, Gpus, Line, Matches, Name, OneOf, Seconds, Word

_OnNodes = Annotated[str, Matches(r"/[^:\x00-\x1f\x7f-\x9f]+", "an absolute path without ':' and control characters")]
# The batch script expands the variables in double quotes.
_Scratch = Annotated[
    str,
    Matches(
        r'(?=[/$])(?:[^:"`$\\\x00-\x1f\x7f-\x9f]|\$[A-Za-z_][A-Za-z0-9_]*)+',
        "an absolute path or one like $TMPDIR, without ':', quotes and backslashes",
    ),
]
_Host = Annotated[
    str,
    Matches(r"[A-Za-z0-9_\[][A-Za-z0-9_.:@%/\[\]-]*", "an ssh host, such as login.site.edu or me@login.site.edu"),
]
# The batch script gives every step its nodes and tasks, and lets it share what the job has.
_OWN_FLAGS = r"--(nod|nt|overl|excl|rel|jobi)|-[Nnwxr]"
_SrunArgument = Annotated[
    Line, Matches(rf"(?!{_OWN_FLAGS}).*", "no flag for nodes, tasks or sharing: the batch script sets those")
]
_Python = Annotated[str, Matches(r"[A-Za-z0-9_/][A-Za-z0-9_./+-]*", "the path of a Python interpreter, or its name")]
SECRETS = ("*TOKEN*", "*SECRET*", "*PASSWORD*", "*CREDENTIAL*", "*KEY*")


@dataclass(frozen=True, kw_only=True)
class Emulator:
    """`[emulator]`: the virtual nodes of kind "emulator"."""

    nodes: Count = 4
    """Number of virtual nodes."""
    cpus_per_node: Count = 4
    """CPU cores of each virtual node; they may exceed this machine's."""
    gpus_per_node: Gpus = NO_GPUS
    """GPUs of each virtual node, such as 4 or "a100:4"."""
    kill_wait: Seconds = 30
    """Time between SIGTERM and SIGKILL, like KillWait in slurm.conf."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A whole cluster file. Keys that jobs have, too, set the defaults of jobs on that cluster."""

    name: Name
    """Name of the cluster; by default the file's name."""
    kind: Annotated[str, OneOf(("slurm", "emulator", "sandbox"))] = "slurm"
    """A site's Slurm, this machine without Slurm, or the Slurm that `clusterctl sandbox up` starts on this machine."""
    host: _Host | None = None
    """Login node, as an ssh destination; every command then runs on that machine."""
    remote_python: _Python | None = None
    """Python 3.11 or later on `host`; by default the newest one found on its PATH."""
    partition: Line | None = None
    """Default partition of jobs."""
    account: Line | None = None
    """Default account of jobs."""
    qos: Line | None = None
    """Default quality of service of jobs."""
    gpus_per_node: Gpus = NO_GPUS
    """Default number of GPUs on each node of a job, such as 4 or "a100:4"."""
    gpu_request: Annotated[str, OneOf(("gpus-per-node", "gres"))] = "gpus-per-node"
    """Which sbatch option requests GPUs; "gres" for sites that reject --gpus-per-node."""
    setup: tuple[Line, ...] = ()
    """Shell lines that the batch script runs on the host before srun, such as "module load cuda"."""
    python: Line | None = None
    """Python interpreter of the tasks, first on their PATH; by default the one that runs clusterctl, or the image's."""
    python_environments: tuple[_OnNodes, ...] = ()
    """Python environments that `resources.local_code` copies; by default those of `python` and of `setup`."""
    local_scratch: _Scratch = "/tmp"
    """Folder on each node's local disk, such as "$TMPDIR", for the copies that `resources.local_code` makes."""
    runs: Line | None = None
    """Folder for the runs, on a file system shared by login and compute nodes."""
    environments: Line | None = None
    """Folder for environments built from jobs' lock files, on a shared file system; by default the folder of runs."""
    images: Line | None = None
    """Folder for container images."""
    container_runtime: Annotated[str, OneOf(("pyxis", "builtin", "apptainer"))] | None = None
    """What runs images: Slurm's pyxis plugin (default for kind "slurm"), clusterctl itself, or Apptainer."""
    container: Container = field(default_factory=Container)
    """Container settings of jobs on this cluster."""
    env: Environment = field(default_factory=dict)
    """Environment variables of jobs on this cluster."""
    secrets: tuple[Line, ...] = SECRETS
    """Patterns of variable names in `env` whose values are never written to a file or shown."""
    srun_args: tuple[_SrunArgument, ...] = ()
    """Additional arguments of srun, except those for nodes, tasks and sharing."""
    mpi: Word = "none"
    """Value of srun's --mpi."""
    interface: Word | None = None
    """Network interface for communication between ranks, such as "ib0"."""
    successors: Annotated[int, AtLeast(0, 20)] = 0
    """Jobs that `submit` queues for a run to go on in, if Slurm requeues none here and jobs may not call sbatch."""
    slurm_conf: Line | None = None
    """Path of slurm.conf, if Slurm's commands do not find it themselves."""
    polling_floor: Seconds = 10
    """Minimum time between two queries to Slurm, shared by all clusterctl processes of a user."""
    notify: Notify = field(default_factory=Notify)
    """Where to send notifications about jobs on this cluster."""
    track: Track = field(default_factory=Track)
    """Trackers that receive the metrics of jobs on this cluster."""
    emulator: Emulator = field(default_factory=Emulator)
    """The virtual nodes of kind "emulator"."""

    @property
    def is_slurm(self) -> bool:
        """Whether a real Slurm runs the jobs, with accounting and limits; it forgets old jobs."""
        return self.kind != "emulator"

    @property
    def nodes_are_here(self) -> bool:
        """Whether this machine hosts all nodes, so that the tasks see the same files as this process."""
        return self.kind != "slurm"

    @property
    def controller(self) -> tuple[str, str | None]:
        """Identifies the cluster's controller: one query covers all clusters with the same one."""
        return self.kind, self.slurm_conf

    @property
    def runtime(self) -> str:
        """What runs the images: "pyxis", "builtin" (`launcher/containers/enter.py`) or "apptainer"."""
        return self.container_runtime or ("builtin" if self.nodes_are_here else "pyxis")


@dataclass(frozen=True, kw_only=True)
class UserConfiguration:
    """`config.toml` in the user's configuration folder."""

    cluster: Line | None = None
    """Cluster to use by default."""
    notify: Notify = field(default_factory=Notify)
    """Where to send notifications about your jobs on any cluster."""
    track: Track = field(default_factory=Track)
    """Trackers that receive the metrics of your jobs on any cluster."""
