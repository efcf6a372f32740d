"""A plan: everything needed to render a run's script, decided and checked but not yet done."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.launcher.config import images_folder
from clusterctl.launcher.config.resolution import AUTO
from clusterctl.launcher.containers import runtimes
from clusterctl.launcher.containers.runtimes import IMAGE_MARK, IMAGE_PYTHON, Mount, check_image, make_view, removing
from clusterctl.launcher.submission.user_script import given_to_sbatch, plan_script
from clusterctl.shared.errors import ConfigError
from clusterctl.shared.node.launch_command import workers_of_a_task
from clusterctl.shared.node.staging import PREFIX
from clusterctl.shared.record.interpreter import isolated, with_packages
from clusterctl.shared.record.roles import seating
from clusterctl.shared.spec.job import EXPEDITE, Grow
from clusterctl.shared.spec.values import mebibytes, slurm_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from clusterctl.launcher.config import Resolved
    from clusterctl.launcher.config.environment import Environment
    from clusterctl.launcher.containers.runtimes import ContainerView
    from clusterctl.launcher.slurm.rules import Restarts, Rules
    from clusterctl.launcher.submission.user_script import Option, ScriptPlan
    from clusterctl.shared.record.layout import RunDir
    from clusterctl.shared.spec import Cluster, Job, Resources


# Fields of Job and Resources are named after sbatch's options; these exceptions have their own rendering.
_OWN_RULES = {
    *("nodes", "spare_nodes", "gpus_per_node", "tasks_per_node", "cpus_per_task", "memory", "time", "warning"),
    *("exclusive", "requeue", "sbatch", "local_code", "allocator", "numa"),
}
_FORBIDDEN_IN_PATHS = re.compile(r"[%\\\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # the last range: bytes that are not UTF-8
# On a node: the folder of its copies, with variables expanded. `$0` is the folder named in the plan.
ON_NODE = r'eval "s=\"$0\".$CLUSTERCTL_ATTEMPT@$SLURMD_NODENAME"'
# By default glibc maps and unmaps each tensor above 32 MB: page faults take a third of the training time on CPUs. It
# reads these when a program starts; musl and other allocators ignore them (docs/decisions, "Programs and their
# environment").
TUNED_ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(10**11),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
# For built-in trainings, whose tensors vary in size from step to step. Freed tensors cannot be joined across small
# blocks, so the heap grew with every step. Such blocks are those that glibc puts aside when they are freed, and the
# kernels that oneDNN has compiled for the last 1,024 sizes (docs/decisions, "What a job needs").
STEADY_HEAP = {
    "GLIBC_TUNABLES": f"{TUNED_ALLOCATOR['GLIBC_TUNABLES']}:glibc.malloc.tcache_count=0:glibc.malloc.mxfast=0",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128",
}
# For built-in trainings: how often an idle thread of GNU's OpenMP, which PyTorch uses, looks for work before it sleeps,
# for about 0.1 ms. By default it looks for 5 ms after every operator, on a core that compiled loops and the sampler of
# the next step need (docs/decisions, "Programs and their environment").
BRIEF_SPINS = {"GOMP_SPINCOUNT": "5000"}
# A step that shares the job's CPUs and memory with the tasks, and outlives any of its own processes.
_BESIDE = ("--overlap", "--mem=0", "--cpu-bind=none", "--kill-on-bad-exit=0", "--wait=0")
ON_NODES = "clusterctl/shared/node/__main__.py"  # the program of the tasks and of the node check
_EXPORTED = re.compile(r"\bexport\s+([A-Za-z_]\w*)=")
_LONGEST_PATH = 3000  # bytes; files in a run directory must stay below the kernel's 4096


@dataclass(frozen=True)
class Warm:
    """The additions for a warm run: its allocation, and with pyxis how to import the image on the nodes."""

    job_id: str
    node_list: str
    clearing: tuple[str, ...] = ()  # srun arguments: remove the leftovers of an unfinished import
    importing: tuple[str, ...] = ()  # srun arguments
    on_each: tuple[str, ...] = ()  # srun arguments for a command on each node
    image_mark: str = ""  # the folder that records whether the image has been imported


@dataclass(frozen=True)
class Spares:
    """How a job goes on without nodes that it loses (spares.sh): the ranks run on `nodes` of those that it holds."""

    nodes: int
    least: int  # it goes on with as few as this
    tasks_per_node: int
    guard: tuple[str, ...]  # the process on each node that notices lost ones (shared/node/guard.py)


@dataclass(frozen=True)
class ModuleCopies:
    """The modules that each node copies to its local disk before the ranks start, to import them from there."""

    command: tuple[str, ...]  # shared/node/staging.py
    folder: str  # on the node; the attempt and the node's name follow
    archives: tuple[tuple[str, str], ...]  # folder that modules are imported from -> its archive
    environments: tuple[str, ...]  # those of the folders that are Python environments, archived on submission
    named: bool  # whether the cluster file names the environments

    @property
    def closing(self) -> tuple[str, ...]:
        return ("sh", "-c", f'{ON_NODE}; rm -rf "$s"', self.folder)


class Block(NamedTuple):
    """Nodes of the job whose ranks with these local ranks are those of one role. All bounds are included."""

    first_node: int
    last_node: int
    first_slot: int
    last_slot: int


@dataclass(frozen=True)
class RoleStart:
    """How the ranks of a role start, if they run in another image than the job's."""

    blocks: tuple[Block, ...]
    view: ContainerView | None  # None: on the host
    runner: tuple[str, ...]
    python: str
    task: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """One run, ready to be rendered. `options` are sbatch's, `flags` srun's, `exports` what the script exports.

    `secrets` are not rendered: they reach the tasks through sbatch's environment.
    """

    run: RunDir
    version: str
    name: str
    options: tuple[Option, ...]
    setup: tuple[str, ...]
    unset: tuple[str, ...]  # variables of the submitter that must not reach the image
    exports: tuple[tuple[str, str], ...]
    flags: tuple[str, ...]
    view: ContainerView | None  # of the container, if there is one
    runner: tuple[str, ...]  # enters the image where srun does not; comes before the tasks' command
    opening: tuple[str, ...]  # command to run once on each node before the tasks of a requeued job
    closing: tuple[str, ...]  # command to run once on each node after the tasks
    ending: tuple[str, ...]  # ends what earlier attempts left on a node (shared/node/leftovers.py); their end follows
    notifier: tuple[str, ...]  # sends notifications when the attempt has ended, if any are configured
    tracker: tuple[str, ...]  # copies the metrics to trackers, if any are configured
    python: str
    task: tuple[str, ...]  # the command of each task
    python_is_named: bool  # by the cluster file: takes precedence over environments that setup lines activate
    tasks: int
    restarts: int = 0  # how often the queue may start it again
    by: str | None = None  # "requeue" or "successor" (successor.sh); None: as the site has it
    successors: int = 0  # how many jobs the submission queues to go on with the run
    queue: Restarts | None = None  # how the queue starts it again, as Slurm showed before the submission
    again: int | None = None  # how often in a row it may start the tasks again without progress; None: never
    standby: tuple[str, ...] = ()  # srun's flags for the process on each node that becomes the ranks, if there is one
    grow: Grow = field(default_factory=Grow)
    warning: int = 0  # seconds before the time limit
    progress: str | None = None  # the files whose change shows progress, for a shell in the working directory
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    spares: Spares | None = None
    warm: Warm | None = None  # set if it runs in an existing allocation
    staging: ModuleCopies | None = None
    node_check: tuple[str, ...] = ()  # its timeout in seconds, and the command (shared/node/node_check.py)
    node_setup: tuple[str, ...] = ()  # shell lines to run once on each node before the tasks
    script: ScriptPlan | None = None  # a batch script of the user's own, instead of the rendered one
    environment: Environment | None = None  # of the tasks, built from a lock file
    role_starts: tuple[RoleStart, ...] = ()  # of roles whose image is not the job's

    @property
    def views(self) -> tuple[tuple[ContainerView, str], ...]:
        """What its tasks see in each of their images, and their Python there."""
        found = [(self.view, self.python), *((start.view, start.python) for start in self.role_starts)]
        return tuple({view.image: (view, python) for view, python in found if view}.values())

    @property
    def slurm_log(self) -> Path:
        return self.run.path / "slurm.log"


def make_plan(
    resolved: Resolved,
    run: RunDir,
    code: Path,
    version: str,
    interpreter: str = sys.executable,
    rules: Rules | None = None,
) -> Plan:
    """Decide how `resolved` runs in the directory of `run` with the snapshot at `code`. Pure: reads no files.

    `rules` are those of its site, as far as Slurm shows them; not needed without restarts through the queue.

    Raises ConfigError for values that flags cannot express.
    """
    job, cluster = resolved.job, resolved.cluster
    assert AUTO not in resolved.origins.values()
    if resolved.script:
        return _plan_of_script(resolved, run, version, interpreter)
    for path in (str(run.path), str(code), job.data.root or ""):
        check_path(path)
    library = code / "lib"
    launcher, node = library / "clusterctl" / "launcher", library / "clusterctl" / "shared" / "node"
    exports, secrets = resolved.secrets.parted(_exports(resolved, library, run.work))
    own_images = any(job.image_of(role) != job.container.image for role in job.role.values())
    set_here = [*exports, *secrets, *(["CLUSTERCTL_STANDBY"] if job.restart.standby else [])]
    view = _view(resolved, run, set_here, job.container.image)
    runner = tuple(isolated(interpreter, str(launcher / "containers")))
    entering = tuple(view.flags()) if view and cluster.runtime == "pyxis" and not own_images else ()
    flags = [
        "--overlap",  # a step of `setup`, or what cannot be killed of the last attempt, may hold the job's CPUs
        "--mem=0",  # and its memory
        f"--ntasks-per-node={job.resources.tasks_per_node or 1}",
        "--kill-on-bad-exit=1",
        f"--cpus-per-task={job.resources.cpus_per_task}",  # in 22.05 to 23.02 srun does not inherit it from sbatch
        f"--mpi={cluster.mpi}",
        "--unbuffered",
        "--input=none",
        *(["--cpu-bind=none"] if job.role else []),  # the roles of a node divide its CPUs themselves
        *cluster.srun_args,
        *entering,
    ]
    environment = resolved.environment
    if environment:
        check_path(environment.python)
    python = (
        environment.python if environment else cluster.python or (IMAGE_PYTHON if job.container.image else interpreter)
    )
    python_of_host = interpreter if view else python  # an image may not have been imported yet

    def task_of(python: str, *, in_image: bool) -> tuple[str, ...]:
        if in_image and brings_code(job):  # only the Python of the image knows where the package is
            return (*with_packages(python, "-u", "-m", "clusterctl.runs"), str(run.path))
        return (python, "-u", str(library / ON_NODES), str(run.path))

    starts = []
    for name, role in job.role.items():
        if (image := job.image_of(role)) != job.container.image:
            of_role = _view(resolved, run, set_here, image, f"role.{name}.image")
            enter = _runner(resolved, of_role, runner, gpus=bool(role.gpus_per_node), own_images=True)
            # A `python` of the cluster file is that of the job's tasks, on the host or in their image.
            there = IMAGE_PYTHON if of_role and not view else python if of_role else interpreter
            there_task = task_of(there, in_image=of_role is not None)
            starts.append(RoleStart(_blocks(job, name), of_role, enter, there, there_task))
    notifier: tuple[str, ...] = ()
    if job.notify.wanted:
        notifier = tuple(isolated(python_of_host, str(launcher / "notifications"), str(run.path)))
    tracker: tuple[str, ...] = ()  # the tasks' environment has the trackers' libraries
    if job.track.names and job.track.where == "node":
        tracker = (python_of_host, "-E", "-u", str(launcher / "trackers"), str(run.path))
    staging = _staging(resolved, run, library, python) if job.resources.local_code else None
    closing = staging.closing if staging else ()
    spares, beside = None, (*_BESIDE, *(["--no-kill"] * job.may_lose_nodes))  # such a step goes on without a lost node
    if job.may_lose_nodes:
        tasks, least = job.resources.tasks_per_node or 1, job.restart.min_nodes or job.resources.nodes
        guard = (*beside, python_of_host, "-I", "-S", str(node / "guard.py"))
        spares = Spares(job.resources.nodes, least, tasks, guard)
    successors = 0 if job.restart.by == "requeue" else min(cluster.successors, job.most_starts)
    # On a local machine unpacked images are kept for the next run; on a cluster's nodes nothing is left behind.
    unpacked = dict.fromkeys(one.image for one in (view, *(start.view for start in starts)) if one)
    if unpacked and cluster.runtime == "builtin" and not cluster.nodes_are_here:
        closing = (*runner, "--release", *unpacked)
    return Plan(
        run=run,
        version=version,
        name=job.name,
        options=(*options_of(job.resources, cluster), *([("no-kill", None)] if job.may_lose_nodes else [])),
        setup=(*cluster.setup, *job.setup),
        unset=("PYTHONPATH",) if job.container.image else (),
        exports=tuple(exports.items()),
        flags=tuple(flags),
        view=view,
        runner=_runner(resolved, view, runner, gpus=bool(job.resources.gpus_per_node), own_images=own_images),
        # A node that went down, or was too slow, still has the container of an earlier start.
        opening=removing("[.][0-9]+") if unpacked and cluster.runtime == "pyxis" else (),
        closing=closing,
        ending=(python_of_host, "-I", "-S", str(node / "leftovers.py")),
        notifier=notifier,
        tracker=tracker,
        python=python,
        task=task_of(python, in_image=view is not None),
        python_is_named=environment is not None or cluster.python is not None,
        tasks=job.resources.nodes * (job.resources.tasks_per_node or 1),
        restarts=job.most_starts,
        # The emulator always requeues; what a site's Slurm does, the batch script finds out.
        by=job.restart.by or (None if cluster.is_slurm or cluster.successors else "requeue"),
        successors=successors,
        queue=rules.restarts(job, successors) if rules and job.most_starts else None,
        again=job.restart.without_progress if job.restart.limit and job.restart.where == "allocation" else None,
        standby=(*beside, *cluster.srun_args, *entering, f"--chdir={run.work}") if job.restart.standby else (),
        progress=job.restart.progress,
        grow=job.restart.grow,
        warning=job.resources.warning or 0,
        spares=spares,
        secrets=secrets,
        staging=staging,
        node_check=_node_check(resolved, library, python_of_host),
        node_setup=job.node_setup,
        environment=environment,
        role_starts=tuple(starts),
    )


def _blocks(job: Job, name: str) -> tuple[Block, ...]:
    """Where the ranks of a role are: all of its nodes that have the same slots for it in one block."""
    seated = seating(job.role)
    slots: dict[int, list[int]] = {}
    for rank in seated.ranks_of(name):
        node, slot = divmod(rank, seated.tasks_per_node)
        slots.setdefault(node, []).append(slot)
    found: list[Block] = []
    for node, on_node in slots.items():
        block = Block(node, node, on_node[0], on_node[-1])
        if found and found[-1][2:] == block[2:]:
            block = found.pop()._replace(last_node=node)
        found.append(block)
    return tuple(found)


def _plan_of_script(resolved: Resolved, run: RunDir, version: str, interpreter: str) -> Plan:
    """The plan of a batch script, which starts its tasks itself."""
    job = resolved.job
    check_path(str(run.path))
    resources, given = given_to_sbatch(resolved)
    script = plan_script(resolved, run, options_of(resources, resolved.cluster), given, interpreter)
    exports, secrets = resolved.secrets.parted(script.environment)
    return Plan(
        run=run,
        version=version,
        name=job.name,
        options=script.options,
        setup=(),
        unset=(),
        exports=tuple(exports.items()),
        flags=(),
        view=None,
        runner=(),
        opening=(),
        closing=(),
        ending=(),
        notifier=(),
        tracker=(),
        python="",  # unknown
        task=(),
        python_is_named=False,
        tasks=job.resources.nodes * (job.resources.tasks_per_node or 1),
        secrets=secrets,
        script=script,
    )


def _staging(resolved: Resolved, run: RunDir, library: Path, python: str) -> ModuleCopies:
    job, cluster = resolved.job, resolved.cluster
    check_path(cluster.local_scratch)
    folder = f"{cluster.local_scratch.rstrip('/')}/{PREFIX}{run.id}"
    found = dict.fromkeys(activated_environments(python, (*cluster.setup, *job.setup)))
    environments = cluster.python_environments or tuple(found)
    if resolved.environment and (built := str(resolved.environment.folder)) not in environments:
        environments = (built, *environments)
    archives = [(library, library.with_suffix(".tar"))]
    if job.code:
        archives.append((run.work, library.with_name("project.tar")))
    archives += [(Path(path), run.environment(number)) for number, path in enumerate(environments)]
    return ModuleCopies(
        command=tuple(isolated(python, str(library / "clusterctl" / "shared" / "node" / "staging.py"))),
        folder=folder,
        archives=tuple((str(original), str(archive)) for original, archive in archives),
        environments=environments,
        named=bool(cluster.python_environments),
    )


def _node_check(resolved: Resolved, library: Path, python: str) -> tuple[str, ...]:
    check, cluster = resolved.job.node_check, resolved.cluster
    if not check.enabled:
        return ()
    check_path(cluster.local_scratch)
    sizes = (str(mebibytes(check.scratch)), str(mebibytes(check.shared_memory)))
    limits = (str(check.seconds), str(check.clock), cluster.local_scratch, *sizes)
    return (str(check.seconds), python, "-u", str(library / ON_NODES), "node_check", *limits)


def brings_code(job: Job) -> bool:
    """Whether the image contains the run's code, so that none is mounted over it."""
    return job.container.image is not None and job.container.code == "image"


def has_project(job: Job) -> bool:
    """Whether the run's code includes a project besides this package."""
    return job.code is not None and not brings_code(job)


def image_file(image: str, cluster: Cluster, key: str = "container.image") -> str:
    """What the nodes open for an image that `key` sets: a file, or an address that they fetch it from.

    Raises ConfigError for an image that cannot be.
    """
    if cluster.runtime == "apptainer" and runtimes.is_address(image):
        return image
    if check_image(image, key).startswith("/") or cluster.runtime == "pyxis":
        return image
    from clusterctl.launcher.containers.contents import name_of  # most runs have no image

    return str(images_folder(cluster) / f"{name_of(image)}.sqsh")  # `submit` imports it there


def _view(
    resolved: Resolved, run: RunDir, set_here: list[str], image: str | None, key: str = "container.image"
) -> ContainerView | None:
    """What tasks see in `image`, which `key` sets. `set_here` names the variables that the run sets."""
    job, cluster = resolved.job, resolved.cluster
    if not image:
        return None
    mounts = [Mount(str(run.path.parent), str(run.path.parent))]
    if job.data.root:
        mounts.append(Mount(job.data.root, job.data.root, ("ro",)))
    if cluster.runtime == "pyxis":  # srun starts the task on the host of a node that lacks the plugin
        mounts.append(Mount(str(run.path.parent), IMAGE_MARK, ("ro",)))
    environment = {*set_here, "CLUSTERCTL_RUN_DIR", "CLUSTERCTL_ATTEMPT", "CLUSTERCTL_STARTS"}
    environment |= {name for line in (*cluster.setup, *job.setup) for name in _EXPORTED.findall(line)}
    if job.resources.gpus_per_node:
        environment.add("CUDA_VISIBLE_DEVICES")  # Slurm's value overrides the image's
    workplace = None if brings_code(job) else str(run.work)
    return make_view(image_file(image, cluster, key), job.container, mounts, environment, workplace)


def _runner(
    resolved: Resolved, view: ContainerView | None, builtin: tuple[str, ...], *, gpus: bool, own_images: bool
) -> tuple[str, ...]:
    """The words before each task's command. With pyxis, the step has the image's flags, unless roles have their own."""
    runtime = resolved.cluster.runtime
    if view is None or (runtime == "pyxis" and not own_images):
        return ()
    if runtime == "pyxis":
        return runtimes.step_runner((*_BESIDE, *view.flags()))
    if runtime == "apptainer":
        return runtimes.runner(view, gpus=gpus)
    return (*builtin, *view.flags(), "--")


def check_path(path: str) -> None:
    """Reject paths that are too long, that Slurm would rewrite ('%'), or that break an #SBATCH line (newline)."""
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise ConfigError(f"path too long: {path[:60]}...", f"choose a folder with a path below {_LONGEST_PATH} bytes")
    if found := _FORBIDDEN_IN_PATHS.search(path):
        hint = "Slurm rewrites '%' and '\\' in paths; choose a folder without them"
        raise ConfigError(f"path contains {found[0]!r}: {path!r}", hint)


def gpu_options(resources: Resources, cluster: Cluster) -> list[Option]:
    """The option that requests a node's GPUs, the same for sbatch and srun."""
    gpus = resources.gpus_per_node
    if not gpus:
        return []
    return [("gpus-per-node", gpus) if cluster.gpu_request == "gpus-per-node" else ("gres", f"gpu:{gpus}")]


def options_of(resources: Resources, cluster: Cluster) -> list[Option]:
    """What sbatch is asked for."""
    options: list[Option] = [
        ("nodes", resources.held_nodes),
        ("ntasks-per-node", resources.tasks_per_node),
        ("cpus-per-task", resources.cpus_per_task),
        ("time", slurm_time(resources.time)),
        *gpu_options(resources, cluster),
    ]
    if resources.memory:
        options.append(("mem", resources.memory))
    if resources.warning:
        options.append(("signal", f"USR2@{resources.warning}"))
    expedite = resources.requeue if resources.requeue == EXPEDITE else None
    options.append(("requeue" if resources.requeue else "no-requeue", expedite))
    if resources.exclusive:
        options.append(("exclusive", None))
    for name, value in vars(resources).items():
        if name not in _OWN_RULES and value is not None:
            options.append((name.replace("_", "-"), value))
    return options + [(name, value or None) for name, value in resources.sbatch.items()]


def _exports(resolved: Resolved, library: Path, work: Path) -> dict[str, str]:
    """The variables that the run adds to every task's environment; the job's own values come last and win."""
    job, cluster = resolved.job, resolved.cluster
    exports = {}
    if not job.role:  # whose ranks have different numbers of CPUs
        exports["OMP_NUM_THREADS"] = str(max(1, job.resources.cpus_per_task // workers_of_a_task(job)))
    if job.resources.allocator == "tuned" and not job.resources.gpus_per_node:
        exports |= TUNED_ALLOCATOR | (STEADY_HEAP if job.workload != "command" else {})
    if job.workload != "command":
        exports |= BRIEF_SPINS
    if not brings_code(job):
        exports["PYTHONPATH"] = f"{library}:{work}" if job.code else str(library)
    if cluster.interface:
        exports["CLUSTERCTL_INTERFACE"] = cluster.interface
    if job.images:
        # Without these enroot's hook exposes no GPU; on a node without GPUs it fails unless the value is `void`.
        exports["NVIDIA_VISIBLE_DEVICES"] = "all" if job.resources.gpus_per_node else "void"
        exports["NVIDIA_DRIVER_CAPABILITIES"] = "compute,utility"
    for name, value in job.env.items():
        exports[name] = f"{exports[name]}:{value}" if name == "PYTHONPATH" and name in exports else value
    return exports


# Where programs find Python, torchrun and the like, as far as that is known before the batch script runs.


# Lines that appear to put another folder on PATH.
_SELECTS = re.compile(r"\bactivate\b|\bPATH=|^\s*(?:module|ml|spack)\s")
_SOURCED = re.compile(
    r"""^\s*(?:source|\.)\s+(?:"(?P<double>[^"$`\\]+)"|'(?P<single>[^']+)'|(?P<bare>[^\s"'$`\\~*?;&|]+))"""
    r"""(?:[ \t]+(?P<argument>[^\s"'$`\\~*?;&|#]+))?"""
)


def activated_environments(python: str, setup: Iterable[str]) -> Iterator[str]:
    """The Python environments of the interpreter `python` and of the setup lines, as far as they can be recognised.

    Recognised lines are `source ENV/bin/activate` for a venv and `source CONDA/bin/activate NAME`.
    """
    if python.startswith("/"):
        yield python.rpartition("/")[0].removesuffix("/bin")
    for line in setup:
        path, argument = _sourced(line)
        folder = path.removesuffix("/bin/activate")
        if folder != path:
            yield argument if argument.startswith("/") else f"{folder}/envs/{argument}" if argument else folder


def _sourced(line: str) -> tuple[str, str]:
    """The path that a setup line sources, and its first argument; empty if they need expansion."""
    match = _SOURCED.match(line)
    return (match["double"] or match["single"] or match["bare"], match["argument"] or "") if match else ("", "")


@dataclass(frozen=True)
class Programs:
    """Which Python comes first on the tasks' PATH (decided on the first node by `cctl_put_first` of batch.sh)."""

    python: str
    named: bool  # by the cluster file
    setup: Sequence[str] = ()
    in_image: bool = False

    @classmethod
    def of(cls, plan: Plan) -> Programs:
        return cls(plan.python, plan.python_is_named, plan.setup, plan.view is not None)

    @property
    def folder(self) -> str:
        return self.python.rpartition("/")[0] or f"the folder of {self.python}"

    @property
    def selecting(self) -> tuple[str, ...]:
        """The setup lines that may select another Python."""
        if self.named or self.in_image:
            return ()
        return tuple(line for line in self.setup if _SELECTS.search(line))

    @property
    def sourced(self) -> Iterator[str]:
        """The paths that the setup lines source, except those that need expansion."""
        for line in self.setup:
            if "/" in (path := _sourced(line)[0]):
                yield path

    def __str__(self) -> str:
        place = self.folder + " in the image" * self.in_image
        if self.selecting:
            place = f"the environment that `{'; '.join(self.selecting)}` sets up, otherwise from {place}"
        return f"programs such as python and torchrun come from {place}"
