"""The evidence that the checks judge: what is known of this machine, a cluster, and the run that is asked for.

`look` gathers it. What nobody asked for, or nobody can see from here, is None or empty.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.errors import SlurmError
from clusterctl.runs.files import exists

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from clusterctl.config import Resolved
    from clusterctl.containers.contents import Contents
    from clusterctl.containers.pyxis import ContainerView
    from clusterctl.launch.programs import Programs
    from clusterctl.spec import Batches, Cluster

Answer = str | SlurmError
"""What a command of Slurm's printed, or why it did not."""


@dataclass(frozen=True)
class Folder:
    """A folder as it is, or the nearest one above it if it does not exist yet."""

    path: str
    exists: bool
    writable: bool
    mode: int = 0o700
    ours: bool = True
    file_system: str = ""
    free_bytes: int = 2**63
    free_files: int = 2**63


@dataclass(frozen=True)
class Seen:
    """A path that the tasks need. `visible` is False if it may exist on the nodes alone, out of sight from here."""

    path: str
    there: bool
    visible: bool = True
    missing: tuple[str, ...] = ()  # of a data set: the parts that it lacks

    @classmethod
    def at(cls, path: Path, nodes_are_here: bool, folder: Path | None = None) -> Seen:
        """Where the nodes are elsewhere, `path` counts as visible if `folder`, by default its own, exists here."""
        return cls(str(path), exists(path), nodes_are_here or exists(folder or path.parent))


@dataclass(frozen=True)
class Interpreter:
    """The tasks' Python. `packages` maps a package to its version, empty if it has none; None: not asked."""

    seen: Seen
    version: tuple[int, ...] = ()
    packages: Mapping[str, str] | None = None
    problem: str = ""  # why it does not say
    has_pip: bool = True


class NodeSize(NamedTuple):
    """What one node has, or a job asks of each node. Memory is in MiB."""

    gpus: int
    cpus: int
    memory: int


class KnownNodes(NamedTuple):
    """The nodes that a job could get, as far as they are known; their GPUs are those of the type that it asks for."""

    where: str = ""  # what they are called together
    sizes: tuple[NodeSize, ...] = ()
    gpu_types: tuple[str, ...] = ()  # all that there are, where they are named


@dataclass(frozen=True)
class LoginNode:
    """What `doctor` alone looks at on this machine."""

    python: str
    state: Folder
    images: Folder | None
    clock_ahead: float | None  # seconds that the file system of the runs is ahead of this machine
    processes: int
    git: bool
    apptainer: bool = False
    name: str = ""  # where it works for commands that are typed on another machine
    program: str = ""  # the folder of the clusterctl that works here


@dataclass(frozen=True, kw_only=True)
class ContainerFacts:
    """What is known of a container."""

    view: ContainerView
    python: str  # the tasks' interpreter
    brings_code: bool = False  # the image has the code of the run
    brings_packages: bool = False  # the job has a PYTHONPATH of its own, with unknown packages
    srun_help: str | None = None  # of a cluster with pyxis
    image: Seen | None = None  # None: a reference, which pyxis fetches
    problem: str = ""  # why the image cannot be read
    squashfs: bool = True
    contents: Contents | None = None
    has_unsquashfs: bool = True
    unpacks_here: bool = False  # this machine will run the image
    runtime: str = "pyxis"  # what runs it
    has_apptainer: bool = True
    gpus: int = 0  # of a node
    machine: str = ""  # this one's kind, as uname names it
    sources: tuple[Seen, ...] = ()  # of the mounts
    rooms: Mapping[str, int] | None = None  # folder -> bytes free; None: nothing is to be unpacked
    environment: Mapping[str, str] = field(default_factory=dict)  # the submitter's


@dataclass(frozen=True)
class WantedRun:
    """The run that is asked for, and what it would find."""

    resolved: Resolved
    tasks: int = 1
    data: Seen | None = None
    batches: Batches | None = None  # None: a program of the user's
    data_here: bool = False  # the folder that the hint generates a data set in holds one already
    program: Seen | None = None  # the script of workload "command"
    modules: tuple[tuple[str, Seen], ...] = ()  # of the user's code, by the key that names something in them
    nodes: tuple[NodeSize, ...] = ()  # that the job could get, as far as they are known
    where: str = ""  # what those are called together
    gpu_types: tuple[str, ...] = ()  # of their GPUs, where they are named
    slurm_version: Answer = ""  # asked only where something depends on it
    webhook: str = field(default="", repr=False)  # the URL to notify, where it can be found
    missing_trackers: tuple[str, ...] = ()  # whose library the node would look for in vain


@dataclass(frozen=True)
class Surroundings:
    """All that the checks judge."""

    cluster: Cluster
    runs: Folder
    open_files: int  # the hard limit, up to which a task raises its own
    interpreter: Interpreter | None = None  # None: the tasks run in an image, or setup lines bring it
    programs: Programs | None = None  # None: the tasks run no program of the user's
    activation: str = ""  # of the environment in the submitter's shell, if that is not clusterctl's own
    container: ContainerFacts | None = None
    scratch: Folder | None = None  # the nodes' own disk; None: nothing is to be copied to it
    environments: tuple[Seen, ...] = ()  # Python's, that the cluster file names to be copied
    login_node: LoginNode | None = None
    slurm: Mapping[str, Answer] = field(default_factory=dict)
    wanted: WantedRun | None = None
