"""What a check judges and what it finds: facts about this machine, a cluster and the requested run, and its result.

`look` gathers the facts. Facts that were not requested, or are not visible from here, are None or empty.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.shared.errors import ClusterctlError, ConfigError, SlurmError
from clusterctl.shared.record.files import exists

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from clusterctl.launcher.config import Resolved
    from clusterctl.launcher.containers.contents import Contents
    from clusterctl.launcher.containers.runtimes import ContainerView
    from clusterctl.launcher.submission.plan import Programs
    from clusterctl.shared.spec import Batches, Cluster
    from clusterctl.shared.spec.forward import Forward

Answer = str | SlurmError
"""The output of a Slurm command, or why there is none."""


@dataclass(frozen=True)
class Folder:
    """A folder, or its nearest existing parent if it does not exist yet."""

    path: str
    exists: bool
    writable: bool
    mode: int = 0o700
    ours: bool = True
    open_parent: str = ""  # a folder above it where everybody can exchange it
    shared_parent: str = ""  # the same for a group or another user
    file_system: str = ""
    free_bytes: int = 2**63
    free_files: int = 2**63


@dataclass(frozen=True)
class Seen:
    """A path that the tasks need. `visible` is False if it may exist only on the nodes."""

    path: str
    there: bool
    visible: bool = True
    missing: tuple[str, ...] = ()  # the missing files of a data set

    @classmethod
    def at(cls, path: Path, nodes_are_here: bool, folder: Path | None = None) -> Seen:
        """If the nodes are other machines, `path` counts as visible if `folder` (default: its parent) exists here."""
        return cls(str(path), exists(path), nodes_are_here or exists(folder or path.parent))


@dataclass(frozen=True)
class Interpreter:
    """The tasks' Python. `packages` maps a package to its version, empty if not installed; None: not checked."""

    seen: Seen
    version: tuple[int, ...] = ()
    packages: Mapping[str, str] | None = None
    problem: str = ""  # why the version is unknown
    has_pip: bool = True


class NodeSize(NamedTuple):
    """The resources of one node, or a job's request per node. Memory is in MiB."""

    gpus: int
    cpus: int
    memory: int


class KnownNodes(NamedTuple):
    """The known nodes that a job could get; only GPUs of the requested type are counted."""

    where: str = ""  # their collective name
    sizes: tuple[NodeSize, ...] = ()
    gpu_types: tuple[str, ...] = ()  # all existing types, if they are named


@dataclass(frozen=True)
class LoginNode:
    """Facts about this machine that only `doctor` checks."""

    python: str
    state: Folder
    images: Folder | None
    clock_ahead: float | None  # seconds by which the runs file system is ahead of this machine
    processes: int
    git: bool
    apptainer: bool = False
    name: str = ""  # set if it works for commands typed on another machine
    program: str = ""  # the folder of the clusterctl running here


@dataclass(frozen=True, kw_only=True)
class ContainerFacts:
    """Facts about a container."""

    view: ContainerView
    python: str  # the tasks' interpreter
    of_roles: bool = False  # the job's other tasks run on the host, whose interpreter the cluster file names
    brings_code: bool = False  # the image contains the run's code
    brings_packages: bool = False  # the job sets PYTHONPATH, with unknown packages
    srun_help: str | None = None  # on a cluster with pyxis
    image: Seen | None = None  # None: a reference that pyxis fetches
    problem: str = ""  # why the image cannot be read
    squashfs: bool = True
    contents: Contents | None = None
    has_unsquashfs: bool = True
    unpacks_here: bool = False  # this machine will run the image
    runtime: str = "pyxis"  # the program that runs it
    has_apptainer: bool = True
    gpus: int = 0  # per node
    data_root: str | None = None
    machine: str = ""  # this machine's architecture, as uname names it
    sources: tuple[Seen, ...] = ()  # of the mounts
    rooms: Mapping[str, int] | None = None  # folder -> bytes free; None: nothing will be unpacked
    environment: Mapping[str, str] = field(default_factory=dict)  # the submitter's


class SetupProblem(NamedTuple):
    """What bash says about the setup lines. The cluster's come first."""

    line: int
    text: str
    problem: str
    of_cluster: bool


class ProgramProblem(NamedTuple):
    """Why a file that a program begins with would not start. It is not `certain` where the nodes may differ."""

    argv: tuple[str, ...]
    problem: str
    hint: str = ""  # empty: start it by its interpreter
    certain: bool = True


@dataclass(frozen=True)
class Estimate:
    """Bytes: of each node to train, of one node of the run that prepares the data set, and of each GPU (0 without)."""

    training: int
    preparing: int
    gpu: int = 0

    def __str__(self) -> str:
        """For a person, with what the numbers are worth."""
        if self.gpu:
            host = f"{size_in_words(self.training)} on each node"
            text = f"about {size_in_words(self.gpu)} on each GPU and {host}, by formula and never compared with a GPU"
        else:
            text = f"about {size_in_words(self.training)} on each node, by formula"
        more = f"; {size_in_words(self.preparing)} on one node of the run that prepares the data set"
        return f"memory: {text}" + more * (self.preparing > self.training)


def size_in_words(size: float) -> str:
    """1.3 GiB, 640 MiB."""
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.0f} MiB"


@dataclass(frozen=True)
class WantedRun:
    """The requested run and its surroundings."""

    resolved: Resolved
    tasks: int = 1
    data: Seen | None = None
    batches: Batches | None = None  # None: a user's own program
    memory: Estimate | None = None  # by formula; None: a program or a model of the user's own, or unknown data
    data_here: bool = False  # the folder suggested in the hint already contains a data set
    program: Seen | None = None  # the script of workload "command"
    program_problem: ProgramProblem | None = None
    nodes_have_names: bool = True  # False if its ranks could not find each other by the names of their nodes
    modules: tuple[tuple[str, Seen], ...] = ()  # of the user's code, with the key that refers to them
    forward: Forward | None = None  # of the user's model, if its source shows it
    nodes: tuple[NodeSize, ...] = ()  # the known nodes that the job could get
    where: str = ""  # their collective name
    gpu_types: tuple[str, ...] = ()  # of their GPUs, if they are named
    configured: int | None = None  # how many nodes the partition has, even off or down; None: enough, or unknown
    slurm_version: Answer = ""  # requested only if needed, like its configuration
    slurm_config: Answer = ""
    webhook: str = field(default="", repr=False)  # the URL to notify, if known
    missing_trackers: tuple[str, ...] = ()  # trackers whose library is not installed


@dataclass(frozen=True)
class Surroundings:
    """All evidence for the checks."""

    cluster: Cluster
    runs: Folder
    open_files: int  # the hard limit, to which tasks raise their soft limit
    interpreter: Interpreter | None = None  # None: the tasks run in an image, or setup lines provide it
    setup_problem: SetupProblem | None = None  # a syntax error in the setup lines
    node_setup_problem: SetupProblem | None = None  # the same in a line of `node_setup`
    programs: Programs | None = None  # None: the tasks do not run a user's program
    activation: str = ""  # command for the environment of the submitter's shell, if that is not clusterctl's own
    containers: tuple[ContainerFacts, ...] = ()
    scratch: Folder | None = None  # on the nodes' local disk; None: nothing will be copied there
    environments: tuple[Seen, ...] = ()  # Python environments to copy, from the cluster file
    login_node: LoginNode | None = None
    slurm: Mapping[str, Answer] = field(default_factory=dict)
    wanted: WantedRun | None = None


NO_DATA = "set data.root to the folder of the data set"  # the hint of two checks


class Verdict(StrEnum):
    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True)
class Check:
    """One result. A failed check is fatal: the run would not work.

    `hint` is the command to type or the request to make. If other settings would pass, `changes` are these settings (as
    for `--set`) and `first` is the command to run first.
    """

    name: str
    verdict: Verdict
    message: str
    hint: str = ""
    changes: Mapping[str, str] = field(default_factory=dict)
    first: str = ""
    error: type[ClusterctlError] = ConfigError  # what a refusal raises

    @property
    def fatal(self) -> bool:
        return self.verdict is Verdict.FAIL


def ok(name: str, message: str) -> Check:
    return Check(name, Verdict.OK, message)


def warn(name: str, message: str, hint: str) -> Check:
    return Check(name, Verdict.WARN, message, hint)


def fail(name: str, message: str, hint: str) -> Check:
    return Check(name, Verdict.FAIL, message, hint)
