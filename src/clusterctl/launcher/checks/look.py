"""Gathers the evidence for the checks, without changing anything.

Slow queries run in parallel, with timeouts of a few seconds.
"""

from __future__ import annotations

import os
import platform
import resource
import shlex
import shutil
import stat
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import clusterctl
from clusterctl.launcher.checks.data_size import batches
from clusterctl.launcher.checks.interpreters import (
    ask_packages,
    ask_version,
    find_interpreter,
    find_program_problem,
    find_setup_problem,
)
from clusterctl.launcher.checks.memory import estimate
from clusterctl.launcher.checks.surroundings import (
    Folder,
    KnownNodes,
    LoginNode,
    NodeSize,
    Seen,
    Surroundings,
    WantedRun,
)
from clusterctl.launcher.config import expanded, runs_folder, state_path
from clusterctl.launcher.config.client_data import client_data
from clusterctl.launcher.containers.runtimes import IMAGE_PYTHON
from clusterctl.launcher.slurm import Slurm, rules
from clusterctl.launcher.slurm.nodes import asked_of, gpus_by_type, has_features
from clusterctl.launcher.submission.module_archives import standard_libraries
from clusterctl.launcher.submission.plan import Programs
from clusterctl.shared.errors import SlurmError
from clusterctl.shared.record.files import clock_ahead, exists, nearest_existing, read_beginning
from clusterctl.shared.record.ownership import is_trusted, open_parent, shared_parent
from clusterctl.shared.spec import WORKLOADS
from clusterctl.shared.spec.forward import in_source
from clusterctl.shared.spec.job import EXPEDITE
from clusterctl.shared.spec.train import likeliest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from clusterctl.launcher.checks.surroundings import Answer, ContainerFacts, ProgramProblem
    from clusterctl.launcher.config import Resolved
    from clusterctl.launcher.slurm import Inventory
    from clusterctl.launcher.submission.plan import Plan
    from clusterctl.shared.spec import Cluster, Job, Resources
    from clusterctl.shared.spec.forward import Forward

INVENTORY_SECONDS = 3600.0
_MOST_SOURCE = 1 << 20  # of a user's module
# Slurm commands to run; with text output, since their JSON changes with every version.
QUESTIONS = {
    "version": ("sbatch", "--version"),
    "ping": ("scontrol", "ping"),
    "partitions": ("sinfo", "-h", "-o", "%P"),
    "config": rules.CONFIG,
    "preemption": rules.PARTITIONS,
    "qos": rules.QOS,
    "srun": ("srun", "--help"),
}


def look_at_cluster(cluster: Cluster) -> Surroundings:
    """This machine and `cluster`, for `doctor`."""
    from concurrent.futures import ThreadPoolExecutor

    from clusterctl.launcher.checks.container_rules import look_at_cluster_image

    runs, in_image = runs_folder(cluster), cluster.container.image is not None
    named = cluster.python or (IMAGE_PYTHON if in_image else sys.executable)
    with ThreadPoolExecutor() as pool:
        container = pool.submit(look_at_cluster_image, cluster)
        python = find_interpreter(cluster.python or sys.executable, cluster.nodes_are_here)
        interpreter = None if cluster.container.image else pool.submit(ask_packages, python)
        questions = QUESTIONS if cluster.is_slurm else {}
        slurm = {name: pool.submit(_ask, cluster, words) for name, words in questions.items()}
        return Surroundings(
            cluster=cluster,
            runs=look_at(runs),
            open_files=_limits(resource.RLIMIT_NOFILE)[1],
            interpreter=interpreter.result() if interpreter else None,
            programs=Programs(named, cluster.python is not None, cluster.setup, in_image),
            activation=activation(),
            containers=tuple(filter(None, [container.result()])),
            scratch=_scratch(cluster),
            environments=tuple(map(_environment, cluster.python_environments)),
            login_node=LoginNode(
                python=platform.python_version(),
                state=look_at(state_path()),
                images=look_at(expanded(cluster.images)) if cluster.images else None,
                clock_ahead=clock_ahead(nearest_existing(runs)),
                processes=_limits(resource.RLIMIT_NPROC)[0],
                git=shutil.which("git") is not None,
                apptainer=shutil.which("apptainer") is not None,
                name=platform.node() if client_data() else "",
                program=str(Path(clusterctl.__file__).parent),
            ),
            slurm={name: answer.result() for name, answer in slurm.items()},
        )


def look_around(resolved: Resolved, plan: Plan, slurm: Slurm) -> Surroundings:
    """The surroundings of the run of `plan`, as far as visible from this machine."""
    job, cluster = resolved.job, resolved.cluster
    python = None
    if cluster.python and not job.container.image and not plan.setup:  # these may provide another interpreter
        python = find_interpreter(cluster.python, cluster.nodes_are_here)
    suggested, root = data_folder(job.workload), job.data.root and Path(job.data.root)
    data = None
    if root and job.data.load:  # the user's code reads it: its required files are unknown
        data = Seen.at(root, cluster.nodes_are_here)
    elif root:
        data = _data_set(job.workload, root, cluster.nodes_are_here)
    # The run's copy of the code, or the folder that it will be copied from.
    code = next((folder for folder in (plan.run.work, plan.run.project) if folder.is_dir()), job.code)
    # Each line of `node_setup` is evaluated on its own, so that it can be named: it must be complete in itself.
    incomplete = (
        problem._replace(line=number)
        for number, line in enumerate(plan.node_setup, start=1)
        if (problem := find_setup_problem([line], 0))
    )
    where, nodes, gpu_types = _nodes(job.resources, cluster, slurm)
    containers: tuple[ContainerFacts, ...] = ()
    if plan.views:
        from clusterctl.launcher.checks.container_rules import look_at_images  # 10 ms, not needed for runs on the host

        containers = look_at_images(resolved, plan, slurm)
    return Surroundings(
        cluster=cluster,
        runs=look_at(runs_folder(cluster)),
        open_files=_limits(resource.RLIMIT_NOFILE)[1],
        interpreter=ask_version(python) if python else None,
        setup_problem=find_setup_problem(plan.setup, len(cluster.setup)),
        node_setup_problem=next(incomplete, None),
        programs=Programs.of(plan) if job.workload == "command" else None,
        activation=activation(),
        containers=containers,
        scratch=_scratch(cluster) if plan.staging else None,
        environments=tuple(map(_environment, cluster.python_environments)) if plan.staging else (),
        wanted=WantedRun(
            resolved=resolved,
            tasks=plan.tasks,
            data=data,
            batches=batches(job),
            memory=estimate(job),
            data_here=suggested is not None and not _data_set(job.workload, Path(suggested), True).missing,
            program=None if plan.setup else _program(job, code),
            program_problem=_program_problem(resolved, plan, code),
            nodes_have_names=_nodes_have_names(job, cluster, slurm),
            modules=tuple(_modules(job, code)),
            forward=_forward(job, code),
            nodes=nodes,
            where=where,
            configured=_configured(job.resources, len(nodes), cluster, slurm),
            gpu_types=gpu_types,
            slurm_version=_ask(cluster, QUESTIONS["version"]) if job.resources.requeue == EXPEDITE else "",
            slurm_config=_ask(cluster, QUESTIONS["config"]) if job.resources.requeue == EXPEDITE else "",
            webhook={**os.environ, **job.env}.get(job.notify.url_variable or "", ""),
            missing_trackers=_missing_trackers(job, plan),
        ),
    )


def _missing_trackers(job: Job, plan: Plan) -> tuple[str, ...]:
    """Trackers without an installed library, if the node uses the running Python; others are not checked."""
    if not plan.tracker or plan.tracker[0] != sys.executable:
        return ()
    found = {name: find_spec(name) for name in job.track.names}
    return tuple(name for name, spec in found.items() if spec is None or spec.origin is None)  # None: just a folder


def _scratch(cluster: Cluster) -> Folder | None:
    """The local scratch folder; None if its path can only be expanded on a node."""
    return None if "$" in cluster.local_scratch else look_at(Path(cluster.local_scratch))


def _environment(path: str) -> Seen:
    return Seen(path, bool(standard_libraries(Path(path))))


def activation(environment: Mapping[str, str] = os.environ, own: str = sys.prefix) -> str:
    """The command that activates this shell's environment; empty if it is `own`, clusterctl's.

    conda's base environment is ignored: it is active in every shell of conda's users.
    """
    virtual, conda = environment.get("VIRTUAL_ENV"), environment.get("CONDA_PREFIX")
    if virtual and os.path.realpath(virtual) != os.path.realpath(own):
        return f"source {shlex.quote(f'{virtual}/bin/activate')}"
    base = environment.get("CONDA_EXE", "").removesuffix("/bin/conda")
    if virtual or not conda or not base or os.path.realpath(conda) in map(os.path.realpath, (own, base)):
        return ""
    return f"source {shlex.quote(f'{base}/bin/activate')} {shlex.quote(conda)}"


def sizes(resources: Resources, inventory: Inventory) -> KnownNodes:
    """The nodes that Slurm could allocate to the job, free or not."""
    asked = asked_of(resources)
    partition = inventory.partition_for(resources.partition)
    if partition is None:
        return KnownNodes()
    nodes = [node for node in inventory.nodes_of(partition) if has_features(node, asked.constraint)]
    found = [
        NodeSize(sum(kind.total for kind in node.gpus if asked.gpu_type in ("", kind.type)), node.cpus, node.memory)
        for node in nodes
    ]
    most = len(found) if partition.most_nodes is None else partition.most_nodes
    types = sorted(filter(None, gpus_by_type(nodes)))
    return KnownNodes(f"{partition.name} partition", tuple(sorted(found, reverse=True)[:most]), tuple(types))


def data_folder(workload: str) -> str | None:
    """The folder suggested for the data set of `workload`; None if `clusterctl data` has none for it."""
    data_set = WORKLOADS[workload].data_set
    return f"{data_set}-data" if data_set else None


def look_at(path: Path) -> Folder:
    """Inspect a folder without changing anything."""
    found = nearest_existing(path)
    status, space = found.stat(), os.statvfs(found)
    return Folder(
        path=str(path),
        exists=exists(path) and path.is_dir(),
        writable=found.is_dir() and os.access(found, os.W_OK | os.X_OK),
        mode=stat.S_IMODE(status.st_mode),
        ours=is_trusted(status.st_uid),
        open_parent=str(open_parent(path) or ""),
        shared_parent=str(shared_parent(path) or ""),
        file_system=file_system(found),
        free_bytes=space.f_bavail * space.f_frsize,
        free_files=space.f_favail if space.f_files else 2**63,  # some file systems do not count inodes
    )


def file_system(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """The file system type of `path`, such as ext4 or nfs4; empty if unknown."""
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    found = [
        (point.encode("latin-1", "replace").decode("unicode_escape"), kind)
        for _, point, kind, *_ in map(str.split, lines)
    ]
    above = [(len(point), kind) for point, kind in found if path.resolve().is_relative_to(point)]
    return max(above, default=(0, ""), key=lambda item: item[0])[1]


def _limits(which: int) -> tuple[int, int]:
    """The soft limit of this process, which Slurm propagates to tasks, and the hard limit; large if unlimited."""
    soft, hard = (2**31 if limit == resource.RLIM_INFINITY else limit for limit in resource.getrlimit(which))
    return soft, hard


def _ask(cluster: Cluster, words: tuple[str, ...]) -> Answer:
    try:
        return Slurm.of(cluster).answer(*words)
    except SlurmError as error:
        return error


def _data_set(workload: str, root: Path, nodes_are_here: bool) -> Seen:
    layouts = WORKLOADS[workload].data
    missing = [part for part in likeliest(layouts, root) if not any(root.glob(part))] if layouts else []
    return replace(Seen.at(root, nodes_are_here), missing=tuple(missing))


def _modules(job: Job, code: Path | str | None) -> Iterator[tuple[str, Seen]]:
    """The modules that the job names, as files in its code; installed packages may be anywhere."""
    if code is None or not job.has_own_code:
        return
    named = [(f"train.{key}", getattr(job.train, key, None)) for key in ("model", "sampler")]
    for key, name in (*named, ("data.load", job.data.load)):
        module = (name or "").partition(":")[0]
        if ":" in (name or "") and "." not in module and not Path(code, module).is_dir():
            yield key, Seen.at(Path(code, f"{module}.py"), nodes_are_here=True)


def _forward(job: Job, code: Path | str | None) -> Forward | None:
    """The `forward` of a model of nodes in the job's code, as far as its source shows it."""
    module, _, name = str(getattr(job.train, "model", "")).partition(":")
    if job.workload != "node-classification" or not name or code is None or not job.has_own_code:
        return None
    try:
        source = read_beginning(Path(code, *module.split(".")).with_suffix(".py"), _MOST_SOURCE)
    except OSError:
        return None
    return in_source(source.decode(errors="replace"), name)


def _program(job: Job, code: Path | str | None) -> Seen | None:
    """The Python script that the tasks would run; of several, the first that is missing."""
    if job.workload != "command" or code is None:
        return None
    seen = [
        Seen.at(Path(code, argv[1]), nodes_are_here=True)
        for argv in job.programs
        if len(argv) > 1
        and argv[1].endswith(".py")
        and not argv[1].startswith(("-", "/"))
        and argv[0].rpartition("/")[2].rstrip("0123456789.") == "python"
    ]
    return next((one for one in seen if not one.there), seen[0] if seen else None)


def _program_problem(resolved: Resolved, plan: Plan, code: Path | str | None) -> ProgramProblem | None:
    """What is wrong with the first file that a program on the host begins with and that would not start."""
    job = resolved.job
    if job.workload != "command" or job.images:
        return None
    here, project = resolved.cluster.nodes_are_here, Path(job.code or "/")
    problems = (
        find_program_problem(argv, Path(code or "/"), project, plan.python, here)
        for argv in job.programs
        if argv and (code or argv[0].startswith("/"))
    )
    found = next(filter(None, problems), None)
    return found and found._replace(certain=found.certain and not plan.setup)  # which may make or replace it


def _nodes_have_names(job: Job, cluster: Cluster, slurm: Slurm) -> bool:
    """Whether a program on several nodes can look up their names. Checked only on the emulator."""
    if cluster.is_slurm or job.workload != "command" or (job.resources.nodes or 1) == 1:
        return True
    from clusterctl.launcher.emulator.virtual_cluster import (
        Machine,
        names_resolve,  # late: not for a Slurm cluster
    )

    return names_resolve(Machine.load(Path(slurm.path_of("srun")).parent))


def _configured(resources: Resources, known: int, cluster: Cluster, slurm: Slurm) -> int | None:
    """How many nodes Slurm has in its configuration; asked only about a job that is too large for the known ones."""
    if not cluster.is_slurm or not 0 < known < resources.nodes:
        return None
    try:
        return slurm.configured_nodes(resources.partition)
    except SlurmError:
        return None


def _nodes(resources: Resources, cluster: Cluster, slurm: Slurm) -> KnownNodes:
    """The nodes that the job could get. The emulator's nodes share this machine's memory.

    A cluster's nodes rarely change: an answer to any process in the last hour is good enough.
    """
    if cluster.is_slurm:
        try:
            return sizes(resources, slurm.nodes(max_age=INVENTORY_SECONDS))
        except SlurmError:
            return KnownNodes()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    emulator, gpus = cluster.emulator, cluster.emulator.gpus_per_node
    fitting = int(gpus) if asked_of(resources).gpu_type in ("", gpus.type) else 0
    size = NodeSize(fitting, emulator.cpus_per_node, memory)
    return KnownNodes(cluster.name, (size,) * emulator.nodes, tuple(filter(None, [gpus.type])))
