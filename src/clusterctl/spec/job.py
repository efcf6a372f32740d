"""A job: what to run. The dataclasses of a job file, table by table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from clusterctl.spec.train import Train
from clusterctl.spec.values import (
    LARGEST,
    AtLeast,
    Count,
    Duration,
    Line,
    Matches,
    Memory,
    Minutes,
    Name,
    Natural,
    OneOf,
    Option,
    OptionText,
    Seconds,
    Text,
    Unshown,
    Word,
)

EnvName = Annotated[str, Matches(r"[A-Za-z_][A-Za-z0-9_]*", "a shell variable's name (letters, digits and '_')")]
Environment = Annotated[dict[EnvName, Annotated[Text, Unshown()]], Unshown()]
OptionName = Annotated[str, Matches(r"[a-z][a-z0-9-]*", "the long name of an sbatch option, without '--'")]


@dataclass(frozen=True, kw_only=True)
class Resources:
    """`[resources]`: what to ask Slurm for. Options that are named as sbatch's mean what sbatch(1) says."""

    nodes: Count = 1
    gpus_per_node: Natural | None = None  # default: the cluster's
    tasks_per_node: Count | None = None  # default: gpus_per_node, else 1
    cpus_per_task: Count = 1
    memory: Memory | None = None  # per node
    time: Minutes = 3600
    warning: Seconds | None = None  # lead of the warning signal; default: 120, at most a quarter of `time`; 0: none

    partition: Option | None = None
    account: Option | None = None
    qos: Option | None = None
    constraint: Option | None = None
    reservation: Option | None = None
    nodelist: Option | None = None
    exclude: Option | None = None
    dependency: Option | None = None
    begin: Option | None = None
    deadline: Option | None = None
    licenses: Option | None = None
    gres: Option | None = None
    gpus_per_task: Option | None = None
    gpu_bind: Option | None = None
    cpus_per_gpu: Count | None = None
    mem_per_cpu: Memory | None = None
    mem_per_gpu: Memory | None = None
    exclusive: bool = False
    requeue: bool = True  # may Slurm start the run again after a preemption or a lost node
    switches: Option | None = None
    nice: Annotated[int, AtLeast(-LARGEST)] | None = None
    comment: Option | None = None
    wckey: Option | None = None
    mail_type: Option | None = None
    mail_user: Option | None = None
    sbatch: dict[OptionName, OptionText] = field(default_factory=dict)  # any other option, by its long name


@dataclass(frozen=True, kw_only=True)
class Container:
    """`[container]`: the image that the tasks run in, and what they see of the host."""

    image: Word | None = None  # a .sqsh file, registry#name:tag, or none: run on the host
    mounts: tuple[Line, ...] = ()  # SRC:DST[:flag+flag], added to the cluster's
    code: Annotated[str, OneOf(("mounted", "image"))] = "mounted"  # the snapshot taken by submit, or what the image has
    workdir: Line | None = None  # default: the code's folder, or the image's own
    writable: bool = False
    mount_home: bool = False
    remap_root: bool = False
    entrypoint: bool = False


@dataclass(frozen=True, kw_only=True)
class Data:
    """`[data]`: where the data set lies."""

    root: Line | None = None  # folder in the data set's raw layout; relative to the job file


@dataclass(frozen=True, kw_only=True)
class Watchdog:
    """`[watchdog]`: when a rank counts as standing still, and what happens then."""

    enabled: bool = True
    action: Annotated[str, OneOf(("restart", "fail"))] = "restart"
    floor: Annotated[Seconds, AtLeast(1)] = 30  # least time without a step of training
    factor: Annotated[float, AtLeast(1)] = 30.0  # times the slowest recent step, where that is more
    starting: Seconds = 900  # before the first steps: importing, meeting, warming up
    loading: Seconds = 6 * 3600
    evaluating: Seconds = 3600
    checkpointing: Seconds = 3600


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """`[checkpoint]`: what is kept of a training that is under way."""

    every: Annotated[int, Duration(60), AtLeast(0)] = 600  # between two; 0: only when the run is asked to stop
    keep: Count = 2  # the newest so many stay


@dataclass(frozen=True, kw_only=True)
class Restart:
    """`[restart]`: when clusterctl itself sends the run back to the queue, to go on from its last checkpoint."""

    limit: Natural = 20  # restarts of one submission, those by Slurm counted too; 0: never


@dataclass(frozen=True, kw_only=True)
class Job:
    """A whole job file, resolved: every value set, paths absolute."""

    name: Name
    workload: str
    argv: tuple[Text, ...] = ()  # of workload "command": the program and its arguments
    code: Line | None = None  # folder to snapshot and run in; default for "command": where submit was typed
    resources: Resources = field(default_factory=Resources)
    container: Container = field(default_factory=Container)
    env: Environment = field(default_factory=dict)
    data: Data = field(default_factory=Data)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    restart: Restart = field(default_factory=Restart)
    watchdog: Watchdog = field(default_factory=Watchdog)
    train: Train = field(default_factory=Train)


__all__ = ["Checkpoint", "Container", "Data", "Environment", "Job", "Resources", "Restart", "Watchdog"]
