"""A job: what to run. The dataclasses of a job file, table by table; `[notify]` is also one of cluster files."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from clusterctl.shared.spec.train import Data, Train
from clusterctl.shared.spec.values import (
    LARGEST,
    AtLeast,
    Count,
    Duration,
    EnvName,
    Factor,
    Gpus,
    Line,
    Matches,
    Memory,
    Minutes,
    Name,
    Natural,
    NotEmpty,
    OneOf,
    Option,
    OptionText,
    Or,
    OrAuto,
    Seconds,
    Text,
    Unshown,
    Word,
)

RoleName = Annotated[str, Matches(r"[A-Za-z][A-Za-z0-9_-]{0,30}", "a short name of letters, digits, _ and -")]


@dataclass(frozen=True, kw_only=True)
class Role:
    """`[[role]]`: one program of a job with several, and where it runs; its `name` is set beside these keys."""

    program: Annotated[tuple[Text, ...], NotEmpty()]
    """Program and arguments, such as ["python", "serve.py", "--port", "{port}"]; {{ is a brace."""
    nodes: Count = 1
    """Number of nodes."""
    share: bool = False
    """Whether it runs on the nodes of the role before it that has its own, with CPUs and GPUs of its own there."""
    tasks_per_node: Count | None = None
    """Ranks on each node; by default one per GPU of the role, or one if it has none or torchrun starts them."""
    cpus_per_task: Count = 1
    """CPU cores for each rank."""
    gpus_per_node: Natural = 0
    """GPUs on each node, which its ranks share; other roles do not see them."""
    needs: tuple[RoleName, ...] = ()
    """Roles that must be ready before it starts."""
    ready: Line | None = None
    """How a rank shows that it is ready: "http://{host}:{port}/health", "tcp://{host}:{port}", "file:PATH" or
    "log:TEXT"; by default it is once started."""
    ready_within: Annotated[Seconds, AtLeast(1)] = 600
    """How long after its start all its ranks must be ready; otherwise the job ends."""
    ends: Annotated[str, OneOf(("role", "job"))] = "role"
    """What its end with exit code 0 ends: only the role, or the whole job, with the other roles."""
    restart: Annotated[str, OneOf(("job", "role", "never"))] = "job"
    """What is started again when one of its ranks is killed: all roles, or only this rank, also after a failure; or
    nothing."""
    grace: Seconds = 10
    """How long its program may take to exit after TERM before it is killed."""
    image: Word | None = None
    """Its image, instead of that of [container], whose other keys apply; "none": it runs on the host."""
    env: Annotated[dict[EnvName, Annotated[Text, Unshown()]], Unshown()] = field(default_factory=dict)
    """Environment variables of this role only; placeholders are filled in."""


class RunEvent(StrEnum):
    """A change of a run that can be notified."""

    FINISHED = "finished"
    FAILED = "failed"  # ended in any other way, except when cancelled
    RESTARTED = "restarted"  # an attempt has ended, and the run is back in the queue
    STALLED = "stalled"  # the watchdog has raised an alarm


EVENTS = tuple(event.value for event in RunEvent)


@dataclass(frozen=True, kw_only=True)
class Notify:
    """`[notify]`: where to report that a run finishes, fails, restarts or stalls."""

    url_variable: Annotated[EnvName, Unshown()] | None = None
    """Environment variable with the URL of a webhook, such as "SLACK_WEBHOOK"; its value is kept secret."""
    format: Annotated[str, OneOf(("json", "slack", "matrix"))] = "json"
    """What the webhook expects: every value as JSON, or a message for Slack or Matrix."""
    command: tuple[Text, ...] = ()
    """Program and arguments to run for each message, which it reads from stdin."""
    events: tuple[Annotated[str, OneOf(EVENTS)], ...] = EVENTS
    """Events to report."""

    @property
    def wanted(self) -> bool:
        return self.url_variable is not None or bool(self.command)


# `[track]` of a job file, a cluster file or the user's configuration: which trackers receive a run's metrics.


@dataclass(frozen=True, kw_only=True)
class Track:
    """`[track]`: the trackers that receive the run's metrics, its settings and how it ended."""

    tensorboard: bool = False
    """Whether to write TensorBoard event files to the folder `tensorboard` in the run directory."""
    wandb: Line | None = None
    """Project in Weights & Biases, as "project" or "entity/project"; WANDB_API_KEY authenticates you."""
    mlflow: Line | None = None
    """MLflow tracking server, such as "http://mlflow:5000"; the experiment has the job's name."""
    where: Annotated[str, OneOf(("node", "login"))] = "node"
    """What sends the metrics: the run's first node or, if nodes have no internet access, `clusterctl track` on the
    login node."""

    @property
    def names(self) -> tuple[str, ...]:
        """The trackers that are set."""
        return tuple(name for name in ("tensorboard", "wandb", "mlflow") if getattr(self, name))


Roles = dict[RoleName, Role]
Environment = Annotated[dict[EnvName, Annotated[Text, Unshown()]], Unshown()]
EXPEDITE = "expedite"
NO_IMAGE = "none"  # instead of the cluster's
Tag = Annotated[str, Matches(r"[\w.:/+@-]+", "one word of letters, digits and . : / + @ - _")]
OptionName = Annotated[str, Matches(r"[a-z][a-z0-9-]*", "the long name of an sbatch option, without '--'")]


@dataclass(frozen=True, kw_only=True)
class Resources:
    """`[resources]`: what to request from Slurm. Keys named like an sbatch option mean the same as there."""

    nodes: Count = 1
    """Number of nodes."""
    spare_nodes: Natural = 0
    """Further nodes to hold, which stay idle until one of the others is lost or fails its check."""
    gpus_per_node: Gpus | None = None
    """GPUs on each node, such as 4 or "a100:4"; by default the number in the cluster file."""
    tasks_per_node: Count | None = None
    """Ranks on each node; by default one per GPU, or one on a node without GPUs."""
    cpus_per_task: Count = 1
    """CPU cores for each rank."""
    memory: Annotated[Memory, OrAuto()] | None = None
    """Memory of each node, such as "64G"; "auto": a quarter more than the job's last three finished runs needed."""
    time: Annotated[Minutes, OrAuto()] = 3600
    """Time limit of each attempt, at which training saves and returns to the queue; "auto": half more than past runs
    took."""
    warning: Seconds | None = None
    """How long before the time limit the run is asked to save; by default 2 minutes, at most a quarter of the limit; 0:
    never."""

    partition: Option | None = None
    """Partition to run in."""
    account: Option | None = None
    """Account to charge."""
    qos: Option | None = None
    """Quality of service to request."""
    constraint: Option | None = None
    """Features that the nodes must have, such as "a100&nvlink"."""
    reservation: Option | None = None
    """Reservation to run in."""
    nodelist: Option | None = None
    """Nodes that must be part of the allocation."""
    exclude: Option | None = None
    """Nodes to avoid."""
    dependency: Option | None = None
    """Jobs to wait for, such as "afterok:1234"."""
    begin: Option | None = None
    """Earliest start time, such as "now+2hours"."""
    deadline: Option | None = None
    """Time by which the run must be able to finish; otherwise Slurm removes it from the queue."""
    licenses: Option | None = None
    """Licenses that the run needs."""
    gres: Option | None = None
    """Generic resources of each node besides the GPUs, such as "nvme:1"."""
    gpus_per_task: Option | None = None
    """GPUs for each rank, instead of GPUs shared by the ranks of a node."""
    gpu_bind: Option | None = None
    """How ranks are bound to GPUs."""
    cpus_per_gpu: Count | None = None
    """CPU cores for each GPU, instead of for each rank."""
    mem_per_cpu: Memory | None = None
    """Memory for each CPU core, instead of for each node."""
    mem_per_gpu: Memory | None = None
    """Memory for each GPU, instead of for each node."""
    exclusive: bool = False
    """Whether to keep other jobs off the nodes."""
    requeue: Annotated[bool | str, Or(EXPEDITE)] = True
    """Whether the run may restart after a preemption, a lost node, a failure or its time limit; "expedite": immediately
    after a lost node (Slurm 25.11)."""
    switches: Option | None = None
    """Maximum number of network switches that the nodes may span."""
    nice: Annotated[int, AtLeast(-LARGEST)] | None = None
    """Adjustment of the priority; a larger number means a lower priority."""
    comment: Option | None = None
    """Comment that Slurm keeps with the job."""
    wckey: Option | None = None
    """Workload characterization key for accounting."""
    mail_type: Option | None = None
    """Events that Slurm sends mail about, such as "END,FAIL"."""
    mail_user: Option | None = None
    """Address that Slurm sends mail to."""
    allocator: Annotated[str, OneOf(("tuned", "system"))] = "tuned"
    """How ranks without GPUs allocate memory: "tuned" keeps freed memory, in large pages, which is faster but counts as
    memory in use."""
    numa: bool = False
    """Whether each rank keeps to the CPUs of one NUMA node of its machine; the ranks are spread over them in order."""
    local_code: bool = False
    """Whether each node first copies the code and the Python environment to its local disk, to import from there."""
    sbatch: dict[OptionName, OptionText] = field(default_factory=dict)
    """Any other sbatch option, by its long name without "--"."""

    @property
    def held_nodes(self) -> int:
        """The nodes that Slurm is asked for."""
        return self.nodes + self.spare_nodes


@dataclass(frozen=True, kw_only=True)
class Container:
    """`[container]`: the image that the tasks run in, and what they see of the host."""

    image: Word | None = None
    """A .sqsh file or a reference such as "nvcr.io#nvidia/pyg:24.07-py3"; without it, or with "none" instead of the
    cluster's image, tasks run on the host."""
    mounts: tuple[Line, ...] = ()
    """Folders of the host, as "SRC:DST" or "SRC:DST:ro"; the job's are added to the cluster's."""
    code: Annotated[str, OneOf(("mounted", "image"))] = "mounted"
    """Which code runs: the snapshot that submit takes, mounted into the image, or what the image contains."""
    workdir: Line | None = None
    """Working directory in the image; by default the run's folder `work`, or the image's own."""
    writable: bool = False
    """Whether tasks may write to the image's file system; their changes are discarded at the end."""
    mount_home: bool = False
    """Whether to mount your home directory."""
    remap_root: bool = False
    """Whether tasks appear to run as root in the image."""
    entrypoint: bool = False
    """Whether to run the image's entrypoint first."""


@dataclass(frozen=True, kw_only=True)
class Watchdog:
    """`[watchdog]`: when a rank counts as stuck, and what to do about it."""

    enabled: bool = True
    """Whether to detect stuck ranks."""
    action: Annotated[str, OneOf(("restart", "fail", "report"))] | None = None
    """Whether to restart a stuck run, let it fail or only report it; by default a program that logs no steps is only
    reported."""
    idle: Seconds = 1800
    """A program that logs no steps is stuck when no rank has done or printed anything for this long; 0: never."""
    idle_gpu: Seconds = 0
    """End the run, or do what `action` sets, if all GPUs of all nodes have been idle for this long; 0: never."""
    floor: Annotated[Seconds, AtLeast(1)] = 30
    """A rank in training is never considered stuck before it has gone this long without a step."""
    factor: Annotated[float, AtLeast(1)] = 30.0
    """A rank in training is stuck after this many times the duration of its slowest recent step, if longer."""
    starting: Seconds = 900
    """Limit until the first steps: imports, rendezvous, warm-up."""
    loading: Seconds = 6 * 3600
    """Limit for loading the data set."""
    evaluating: Seconds = 3600
    """Limit for one evaluation."""
    checkpointing: Seconds = 3600
    """Limit for saving one checkpoint."""


@dataclass(frozen=True, kw_only=True)
class NodeCheck:
    """`[node_check]`: a check of the nodes before the ranks start; a node that fails it is excluded afterwards."""

    enabled: bool = False
    """Whether each node's disk, clock, matrix product and network are checked at each start."""
    seconds: Annotated[Seconds, AtLeast(1)] = 10
    """Time limit of the check."""
    scratch: Memory = "1G"
    """Minimum free space in the cluster's `local_scratch`."""
    shared_memory: Memory = "64M"
    """Minimum free space in /dev/shm."""
    clock: Annotated[Seconds, AtLeast(1)] = 5
    """Maximum difference between a node's clock and that of the runs' file system."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """`[checkpoint]`: how often training is saved, and how many checkpoints are kept."""

    every: Annotated[int, Duration(60), AtLeast(0)] = 600
    """Time between checkpoints; 0 saves only when the run is asked to stop."""
    keep: Count = 2
    """How many of the newest checkpoints to keep, besides the one that your own program's attempt resumed from."""


@dataclass(frozen=True, kw_only=True)
class Grow:
    """`[restart.grow]`: factors of what a run gets that was short of it; it goes on in another job."""

    memory: Factor | None = None
    """Factor of the memory for the next job if the kernel kills a rank for lack of it, such as 1.5; by default none."""
    time: Factor | None = None
    """Factor of the time limit for the next job if the run is ended at it, such as 2; by default none."""

    @property
    def wanted(self) -> bool:
        """Whether any factor is set."""
        return self.memory is not None or self.time is not None


@dataclass(frozen=True, kw_only=True)
class Restart:
    """`[restart]`: where and how often the run is started again; it then continues from its last checkpoint."""

    where: Annotated[str, OneOf(("allocation", "queue"))] = "allocation"
    """Where to start again after a rank was killed or hung: at once on the same nodes, or through the queue."""
    limit: Natural = 20
    """Maximum number of starts through the queue after the first, including those by Slurm; 0 disables all restarts."""
    by: Annotated[str, OneOf(("requeue", "successor"))] | None = None
    """How the queue starts it again: its job is requeued, or another one waits for its end; by default the latter where
    the site does not requeue."""
    without_progress: Natural = 3
    """How many restarts in a row on the same nodes may neither save a checkpoint nor log a new step."""
    min_nodes: Count | None = None
    """Go on with as few nodes as this in the same job when nodes are lost and no spare is left; your own program must
    be able to."""
    standby: bool | None = None
    """Keep a process on each node that has imported what the ranks import, and becomes them; by default without
    GPUs, and not in images with pyxis."""
    signal: Annotated[str, OneOf(("USR2", "USR1", "TERM"))] = "USR2"
    """The signal on which your own program saves: its processes that handle it get it after the warning."""
    at_limit: bool | None = None
    """Start your own program again after the warning even if it requests nothing; by default if `signal` is USR1 or
    TERM."""
    progress: Line | None = None
    """The files that your own program saves, such as "ckpt/*.pt", relative to its working directory: a new one shows
    progress."""
    grow: Grow = field(default_factory=Grow)
    """How much more memory or time the run goes on with when it was short of it."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A whole job file, resolved: every value set, paths absolute."""

    name: Name
    """Name of the run; by default the file's name."""
    note: Line | None = None
    """What the run is about, such as "lower dropout"; shown with it, and not used otherwise."""
    tags: tuple[Tag, ...] = ()
    """Words by which runs can be listed, such as ["baseline", "paper"]; see `clusterctl status --tag`."""
    workload: str
    """What to run: a built-in workload, or "command" for your own program."""
    argv: tuple[Text, ...] = ()
    """Program and arguments of workload "command", such as ["python", "train.py"]."""
    role: Roles = field(default_factory=dict)
    """Several programs that run side by side, each a table [[role]] with a name, instead of `argv`."""
    see_ranks: bool = True
    """Whether the ranks that your own batch script starts with srun are recorded, and their output copied to the
    run."""
    code: Line | None = None
    """Folder to copy at submission, and again as the working directory of each run; by default the current one, if the
    job runs your own code."""
    resources: Resources = field(default_factory=Resources)
    """What to request from Slurm."""
    container: Container = field(default_factory=Container)
    """The image that the tasks run in."""
    env: Environment = field(default_factory=dict)
    """Environment variables of the tasks."""
    environment: Line | None = None
    """Lock file of the Python packages to run with: uv.lock, pylock.toml, or requirements.txt with pinned versions."""
    environment_builds: bool = False
    """Whether packages of `environment` that have no wheel may be built, which runs their code on the login node."""
    setup: tuple[Line, ...] = ()
    """Shell lines to run after the cluster's `setup`, such as "source /home/me/env/bin/activate"."""
    node_setup: tuple[Line, ...] = ()
    """Shell lines to run once on each node at each start, before the ranks, such as a copy of the data to its disk."""
    data: Data = field(default_factory=Data)
    """Where the data set is."""
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    """How often to save, and how much to keep."""
    restart: Restart = field(default_factory=Restart)
    """Where and how often the run may be started again."""
    node_check: NodeCheck = field(default_factory=NodeCheck)
    """Whether nodes are checked before the ranks start."""
    watchdog: Watchdog = field(default_factory=Watchdog)
    """When a rank counts as stuck."""
    notify: Notify = field(default_factory=Notify)
    """Where to send notifications about the run."""
    track: Track = field(default_factory=Track)
    """Trackers that receive a copy of the run's metrics."""
    train: Train = field(default_factory=Train)
    """Settings of the workload."""

    @property
    def programs(self) -> tuple[tuple[str, ...], ...]:
        """The programs of the user's own that it starts, with their arguments."""
        return tuple(role.program for role in self.role.values()) or (self.argv,)

    @property
    def images(self) -> tuple[str, ...]:
        """The images that its tasks run in; none if all run on the host."""
        named = (self.container.image, *(role.image for role in self.role.values()))
        return tuple(dict.fromkeys(image for image in named if image not in (None, NO_IMAGE)))

    def image_of(self, role: Role) -> str | None:
        """The image that the tasks of `role` run in."""
        return None if role.image == NO_IMAGE else role.image or self.container.image

    @property
    def most_starts(self) -> int:
        """How often the queue may start it after the first time."""
        return self.restart.limit if self.resources.requeue or self.restart.by == "successor" else 0

    @property
    def may_lose_nodes(self) -> bool:
        """Whether its job goes on in Slurm when one of its nodes is lost."""
        return self.resources.spare_nodes > 0 or self.restart.min_nodes is not None

    @property
    def has_own_model(self) -> bool:
        """Whether it trains the user's own model."""
        return ":" in getattr(self.train, "model", "")

    @property
    def has_own_code(self) -> bool:
        """Whether it runs the user's own code."""
        has_functions = bool(getattr(self.train, "functions", ()))
        return self.workload == "command" or self.has_own_model or has_functions or self.data.load is not None
