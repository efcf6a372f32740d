"""Job file + cluster file + environment + command line -> one resolved job, every value with its origin.

Later layers win: the cluster's defaults, SBATCH_* of the environment, the job file, `--set`, the program after `--`.
Tables are merged key by key and mounts appended. The origin of a value computed here records that.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.launcher.config import roles
from clusterctl.launcher.config.client_data import client_data
from clusterctl.launcher.config.clusters import user_values
from clusterctl.launcher.config.places import current_folder, expanded, find_file, is_home
from clusterctl.launcher.config.program import ORIGIN, command_of, needs_interpreter, without_job_file
from clusterctl.launcher.config.roles import chosen, parted
from clusterctl.launcher.config.secrets import HIDDEN, Secrets, secrets_of
from clusterctl.launcher.config.shown import Shown
from clusterctl.launcher.config.source import Values, explained, read_toml, read_values
from clusterctl.shared.errors import ConfigError, UsageError
from clusterctl.shared.node.launch_command import DEEPSPEED, MPI, find_launch
from clusterctl.shared.spec import SCRIPT, WORKLOADS, Container, Job, from_record
from clusterctl.shared.spec.job import NO_IMAGE, Notify, Restart, Track
from clusterctl.shared.spec.keys import leaves_as_written, parse_override
from clusterctl.shared.spec.records import RENAMED, InvalidRecord, Problem, alternatives, fields_of, with_new_names
from clusterctl.shared.spec.train import LoopTrain
from clusterctl.shared.spec.values import NO_GPUS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from clusterctl.launcher.config.environment import Environment
    from clusterctl.launcher.config.user_script import UserScript
    from clusterctl.shared.record.layout import RunDir
    from clusterctl.shared.spec import Cluster

# Slurm lets these variables override the script's own lines; here they are ordinary values with an origin.
SBATCH_VARIABLES = {"SBATCH_ACCOUNT": "account", "SBATCH_PARTITION": "partition", "SBATCH_QOS": "qos"}
CLUSTER_DEFAULTS = ("partition", "account", "qos", "gpus_per_node")
DEFAULT_WARNING_SECONDS = 120
AUTO = "auto"  # a request that the job's last runs determine; until then it has its default, and this as its origin
# clusterctl uses these options to find, watch and end runs, so [resources] sbatch must not change them.
RESERVED_OPTIONS = frozenset(
    {"array", "chdir", "error", "export", "hold", "input", "job-name", "mem", "no-requeue", "ntasks", "ntasks-per-node"}
    | {"open-mode", "output", "parsable", "signal", "test-only", "uid", "wait", "wrap"}
)
# The same goes for variables by which Slurm and the batch script inform the tasks, and the script's own variables.
RESERVED_PREFIXES = ("CLUSTERCTL_", "SBATCH_", "SLURM_", "SRUN_", "SUBMITIT_", "cctl_")


@dataclass(frozen=True)
class Resolved(Shown):
    """A job ready for planning, its cluster, and the origin of every value that is not a default.

    `typed` is the command line, such as ("submit", "cora"), and `settings` are its KEY=VALUE options.
    """

    job: Job
    cluster: Cluster
    origins: dict[str, str]
    job_file: Path
    secrets: Secrets = field(default_factory=Secrets)
    typed: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    stage: str | None = None  # of the job file
    environment: Environment | None = None  # that `job.environment` leads to, once it has been looked up
    script: UserScript | None = None  # a batch script of the user's own, which runs as sbatch would run it

    @property
    def array(self) -> str:
        """The indices of the elements of a batch script's array, as typed, such as `0-9%4`; empty for any other job."""
        return (self.job.resources.sbatch.get("array") or "") if self.script else ""

    @property
    def array_typed(self) -> str:
        """The array as in messages: `--array=0-9`, with the line of the script or the variable that has it."""
        origin = self.origins.get("resources.sbatch.array", "")
        return f"--array={self.array}" + ("" if origin == "--set" else f" of {origin}")


def resolve(
    job: str | None,
    cluster: Cluster,
    settings: Iterable[str] = (),
    environment: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
    program: Sequence[str] = (),
    stage: str | None = None,
) -> Resolved:
    """Resolve `job` (a name or a path) for `cluster`; `program` replaces its `argv`, and works without a job.

    `stage` selects a stage of a job with stages.

    Raises ConfigError with all problems and their locations.
    """
    cwd, settings = cwd or current_folder(), tuple(settings)
    values, path, file, overrides = _layered(
        job, cluster_values(cluster), settings, environment, cwd, program=program, stage=stage
    )
    of_job = file.get(("container", "mounts"))
    mounts = [*cluster.container.mounts, *(of_job if isinstance(of_job, list) else ())]
    if mounts and ("container", "mounts") not in overrides.origins:
        values.put(("container", "mounts"), mounts, values.origin(("container", "mounts")))
    complete, origins = _read_job(values, cluster, path, cwd)
    secrets = secrets_of(complete, cluster, environment).having(
        cluster.env, file.get(("env",)), overrides.get(("env",))
    )
    named = [*([] if job is None else [job]), *(["--stage", stage] if stage else [])]
    typed = ["submit", *named, *(["--", *program] if program else [])]
    return Resolved(complete, cluster, origins, path, secrets, tuple(secrets.hide_typed(typed)), settings, stage)


def check_without_cluster(
    job: str | None, settings: Sequence[str] = (), program: Sequence[str] = (), stage: str | None = None
) -> Job:
    """The job as written. Raises what `resolve` would raise for its file, keys and values on any cluster."""
    values, path, _, _ = _layered(job, Values(), settings, os.environ, current_folder(), program=program, stage=stage)
    _drop_auto(values)
    written = read_values(Job, values, path)
    if problems := list(_of_bare_script(written)):
        raise explained(problems, values, path)
    return written


def _layered(
    job: str | None,
    of_cluster: Values,
    settings: Sequence[str],
    environment: Mapping[str, str],
    cwd: Path,
    *,
    program: Sequence[str],
    stage: str | None,
) -> tuple[Values, Path, Values, Values]:
    """All values in order, where mistakes are reported, and the layers of the job file and of `settings`."""
    values = Values()
    if job is not None:
        path = find_file("jobs", job, cwd)
        file = read_toml(path)
        values.put(("name",), path.stem, "file name")
        if found := chosen(parted(file, path), stage, path):
            values.put(("name",), f"{file.get(('name',)) or path.stem}-{found.name}", f"stage {found.name}")
            file.drop(("name",))
            file.layer(found.values)
        roles.by_name(file, path)
    elif program:
        path, file = cwd / f"the {ORIGIN}", without_job_file(program)
    else:
        hint = "clusterctl submit cora, or a program: clusterctl submit -- python train.py"
        raise UsageError("nothing to run: neither a job nor a program is given", hint)
    of_user = user_values()
    of_user.drop(("cluster",))  # not a key of jobs
    values.layer(of_user)
    values.layer(of_cluster)
    for variable, name in SBATCH_VARIABLES.items():
        if environment.get(variable):
            values.put(("resources", name), environment[variable], f"environment {variable}")
    values.layer(file)
    overrides = overrides_of(settings, values.get(("workload",)))
    values.layer(overrides)
    if program:
        values.put(("argv",), list(program), ORIGIN)
    return values, path, file, overrides


def resolve_again(
    record: Mapping[str, Any],
    origins: Mapping[str, str],
    cluster: Cluster,
    settings: Iterable[str] = (),
    environment: Mapping[str, str] = os.environ,
    run_json: Path = Path("run.json"),
) -> Resolved:
    """Resolve the job of a run again, from its record in run.json, for another attempt on `cluster`.

    Values that were computed or came from a cluster are determined again. Secrets are not recorded: they come from
    `environment` or `settings`. Raises ConfigError with all problems, such as a missing secret.
    """
    values, settings = Values(), tuple(settings)
    values.layer(cluster_values(cluster))
    origins = {**{".".join(new): origins.get(".".join(old), "") for old, new in RENAMED.items()}, **origins}
    for key, value in leaves_as_written(with_new_names(dict(record))):
        origin = origins.get(".".join(key), "")
        anew = origin.startswith(("default: ", "cluster ")) and key != ("code",)  # the run has a copy of the code
        if not anew and value is not None:
            values.put(key, value, origin or "the run")
    overrides = overrides_of(settings, record.get("workload"))
    if (workload := str(record.get("workload"))) in WORKLOADS:
        train: type = WORKLOADS[workload].train
        for pair in alternatives(fields_of(train)).items():  # batch_size replaces global_batch_size, and vice versa
            for name, other in (pair, reversed(pair)):
                if ("train", name) in overrides.origins:
                    values.drop(("train", other))
    values.layer(overrides)
    bring_secrets(values, cluster, environment)
    job, found = _read_job(values, cluster, run_json, current_folder())
    secrets = secrets_of(job, cluster, environment).having(job.env)
    return Resolved(job, cluster, found, run_json, secrets, ("resume", run_json.parent.name), settings)


def _read_job(values: Values, cluster: Cluster, file: Path, cwd: Path) -> tuple[Job, dict[str, str]]:
    """The job described by `values`, completed and validated, and the origins by key.

    A request that is `auto` has its default, and that origin: `api.submitting.past_runs` replaces it.
    """
    _drop_auto(values)
    job = _completed(read_values(Job, values, file), cluster, values, file, cwd)
    if problems := list(contradictions(job, cluster)):
        raise explained(problems, values, file)
    return job, {".".join(key): origin for key, origin in values.origins.items()}


def _drop_auto(values: Values) -> None:
    for key in (("resources", "memory"), ("resources", "time")):
        if values.get(key) == AUTO:
            values.drop(key)
            values.origins[key] = AUTO


def overrides_of(settings: Iterable[str], workload: object) -> Values:
    """The values of `--set`. Raises UsageError."""
    values = Values()
    for setting in settings:
        key, value = parse_override(setting, workload)
        values.put(key, value, "--set")
    return values


def with_environment(resolved: Resolved, earlier: RunDir | None = None) -> Resolved:
    """`resolved` with the environment that its lock file leads to.

    A run that is repeated or resumed has that of the `earlier` run, unless the setting is given again. Raises
    ConfigError if the file does not name exact packages that can be installed here.
    """
    job, cluster = resolved.job, resolved.cluster
    if job.environment is None:
        return resolved
    from clusterctl.launcher.config.environment import environment_of, environment_of_earlier  # late: reads lock files

    path = Path(job.environment)
    if earlier and not any(setting.partition("=")[0].strip() == "environment" for setting in resolved.settings):
        return replace(resolved, environment=environment_of_earlier(earlier, path, cluster))
    return replace(resolved, environment=environment_of(job, path, cluster))


def bring_secrets(values: Values, cluster: Cluster, environment: Mapping[str, str]) -> None:
    """Put the secrets of a record, which does not store them, back from the environment. Raises ConfigError."""
    missing, client = [], client_data()
    for name, value in (values.get(("env",)) or {}).items():
        if value == HIDDEN:
            # Where the command was typed, if that is another machine.
            asked = b"".join(client.ask({"variable": name})) if client and not environment.get(name) else b""
            typed = environment.get(name) or asked.decode(errors="surrogateescape")
            given = typed or cluster.env.get(name, HIDDEN)
            if given == HIDDEN:
                missing.append(name)
            else:
                values.put(("env", name), given, f"environment {name}")
    if missing:
        hint = f"set {'it' if len(missing) == 1 else 'them'} in your environment: export {' '.join(missing)}"
        raise ConfigError(f"the run needs secrets, which are not stored: {', '.join(missing)}", hint)


def cluster_values(cluster: Cluster) -> Values:
    """Defaults for every job from the cluster, with the job's keys."""
    values, origin = Values(), f"cluster {cluster.name}"
    for name in CLUSTER_DEFAULTS:
        if getattr(cluster, name) is not None:
            values.put(("resources", name), getattr(cluster, name), origin)
    for table, unset in (("container", Container()), ("notify", Notify()), ("track", Track())):
        for name, value in vars(getattr(cluster, table)).items():
            if value != getattr(unset, name):
                values.put((table, name), value, origin)
    for name, value in cluster.env.items():
        values.put(("env", name), value, origin)
    return values


def _completed(job: Job, cluster: Cluster, values: Values, file: Path, cwd: Path) -> Job:
    """Fill in dependent values, and make paths absolute (relative to the job file; for `--set`: to `cwd`)."""

    def absolute(key: tuple[str, ...], path: str | None) -> str | None:
        if path is None:
            return None
        elsewhere = (client := client_data()) and client.text(file) is not None
        base = cwd if values.origin(key) == "--set" else file.parent if elsewhere else file.resolve().parent
        return str(Path(os.path.normpath(base / expanded(path))))

    if job.role:
        job = roles.completed(job, cluster, values, lambda name, image: absolute(("role", name, "image"), image))
    resources = job.resources
    gpus = resources.gpus_per_node or NO_GPUS
    launch = find_launch(job.argv) if job.workload == "command" else None
    starts_workers = launch is not None and launch.starts_workers
    tasks = resources.tasks_per_node or (1 if starts_workers else int(gpus) or 1)
    cpus = resources.cpus_per_task
    code = absolute(("code",), job.code)
    if code is None and job.has_own_code and job.container.code == "mounted":
        code = str(cwd)
        values.origins["code",] = "default: the current folder"
        if is_home(cwd):
            message = f"refusing to copy your home folder, the current folder, into a run: {cwd}"
            raise ConfigError(message, "change to the folder of the program, or set it: `code = FOLDER`")
    container = job.container
    if container.image == NO_IMAGE:
        container = Container()
    elif container.image and container.image.startswith((".", "~")):
        container = replace(container, image=absolute(("container", "image"), container.image))
    if resources.tasks_per_node is None:
        values.origins["resources", "tasks_per_node"] = "default: one a GPU" if gpus else "default: one a node"
        if launch and starts_workers:
            values.origins["resources", "tasks_per_node"] = f"default: {launch.name} starts the workers of a node"
            if gpus and not values.origin(("resources", "cpus_per_task")) and not resources.cpus_per_gpu:
                cpus, values.origins["resources", "cpus_per_task"] = int(gpus), "default: one a GPU"
    warning = resources.warning
    if warning is None:
        warning = default_warning(resources.time)
        values.origins["resources", "warning"] = "default: 2 minutes, at most a quarter of the time"
    restart = job.restart
    if restart.at_limit is None:
        can = job.workload == "command" and bool(job.most_starts and warning)
        restart = replace(restart, at_limit=can and restart.signal != Restart.signal)
        values.origins["restart", "at_limit"] = "default: whether restart.signal is USR1 or TERM"
    if restart.standby is None:
        unpacks_again = cluster.runtime == "pyxis" and container.image is not None
        restart = replace(restart, standby=not gpus and not unpacks_again and _no_standby(job) is None)
        values.origins["restart", "standby"] = "default: whether tasks need no GPU, and no image with pyxis"
    return replace(
        job,
        code=code,
        restart=restart,
        resources=replace(resources, gpus_per_node=gpus, tasks_per_node=tasks, cpus_per_task=cpus, warning=warning),
        container=container,
        environment=absolute(("environment",), job.environment),
        data=replace(job.data, root=absolute(("data", "root"), job.data.root)),
    )


def default_warning(limit: int) -> int:
    """How long before a time limit a run is asked to save."""
    return min(DEFAULT_WARNING_SECONDS, limit // 4)


def contradictions(job: Job, cluster: Cluster) -> Iterator[Problem]:
    """Problems with combinations of values, and settings that are reserved for clusterctl."""
    resources = job.resources
    if job.workload == SCRIPT:
        hint = "submit the script itself: clusterctl submit ./train.sbatch"
        yield Problem(("workload",), "not for job files", hint=hint)
    elif not job.see_ranks:
        yield Problem(("see_ranks",), "only for a batch script of your own: clusterctl submit ./train.sbatch")
    yield from roles.contradictions(job, cluster)
    if job.workload == "command" and not job.role and not any(job.argv[:1]):
        yield Problem(("argv",), 'missing: workload "command" needs the program, such as ["python", "train.py"]')
    yield from _of_programs(job)
    if job.workload != "command" and job.argv:
        message = f'only workload "command" takes a program, not "{job.workload}"'
        yield Problem(("argv",), message, hint="without a job: clusterctl submit -- python train.py")
    own = {name.replace("_", "-") for name in vars(resources)} | RESERVED_OPTIONS
    for name in sorted(own & set(resources.sbatch)):
        instead = "use a sweep instead" if name == "array" else "use the job file's key instead"
        yield Problem(("resources", "sbatch", name), f"clusterctl sets this option; {instead}")
    if job.notify.command and not job.notify.command[0]:
        yield Problem(("notify", "command"), 'needs a program, such as ["mail", "-s", "clusterctl", "me@example.org"]')
    for name in (*job.env, job.notify.url_variable or ""):
        if name.startswith(RESERVED_PREFIXES):
            key = ("env", name) if name in job.env else ("notify", "url_variable")
            yield Problem(key, "Slurm or clusterctl sets this variable; choose another name")
    yield from _of_lost_nodes(job)
    yield from _of_restarts(job)
    if resources.warning and resources.warning >= resources.time:
        yield Problem(("resources", "warning"), f"must be shorter than the time of {resources.time} s")
    for table, kind in job.train.option_tables.items():  # those of a user's model or optimizer it checks itself
        try:
            from_record(kind, getattr(job.train, table))
        except InvalidRecord as error:
            for problem in error.problems:
                yield problem._replace(path=("train", table, *problem.path))
    ranks = (resources.nodes or 1) * (resources.tasks_per_node or 1)
    for name, message in (
        *job.train.misfits(ranks=ranks, has_gpus=bool(resources.gpus_per_node)),
        *job.train.contradictions(job.workload, job.data),
    ):
        yield Problem(tuple(name.split(".")), message)
    image = job.container.image
    if job.container.code == "image" and not image:
        yield Problem(("container", "code"), '"image" needs an image; set container.image')
    if job.images and job.environment:
        named = "container.image" if image else "the image of its roles"
        yield Problem(("environment",), f"an image has its own environment; remove this key, or {named}")
    if job.environment_builds and not job.environment:
        yield Problem(("environment_builds",), "only for packages of a lock file; set environment")
    if resources.numa and resources.tasks_per_node == 1:
        words = "needs several ranks on each node; torchrun binds its workers itself: --numa-binding"
        yield Problem(("resources", "numa"), words)
    if job.images and resources.local_code:
        yield Problem(("resources", "local_code"), "not needed: an image is on a local disk already; remove this key")
    if job.container.workdir and not job.container.workdir.startswith("/"):
        yield Problem(("container", "workdir"), f"not an absolute path: {job.container.workdir}")
    if job.images and cluster.runtime == "pyxis" and not cluster.is_slurm:
        hint = 'the emulator has no pyxis; set container_runtime = "builtin" in its file'
        of_a_role = (("role", name, "image") for name, role in job.role.items() if job.image_of(role))
        yield Problem(("container", "image") if image else next(of_a_role), hint)


def _no_standby(job: Job) -> str | None:
    """Why a job's ranks cannot be forked by a standby, None if they can."""
    if job.workload == "command":
        return "a program of your own is started anew; remove this key"
    if job.container.image not in (None, NO_IMAGE):
        if job.container.code == "image":  # which may contain a clusterctl that knows no standbys
            return 'not with container.code "image"; remove one of them'
        if job.container.writable:
            return "not with container.writable: a new start would see what the last one wrote; remove one of them"
    if job.resources.local_code:
        return "not with resources.local_code; remove one of them"
    if not job.restart.limit or job.restart.where != "allocation":
        return 'needs restarts on the same nodes: restart.where "allocation", and a restart.limit'
    return None


def _of_lost_nodes(job: Job) -> Iterator[Problem]:
    key = ("resources", "spare_nodes") if job.resources.spare_nodes else ("restart", "min_nodes")
    if not job.may_lose_nodes:
        return
    if not job.restart.limit or job.restart.where != "allocation":
        yield Problem(key, 'needs restarts in the same job: restart.where "allocation", and a restart.limit')
    if (least := job.restart.min_nodes) is None:
        return
    if least >= job.resources.nodes:
        yield Problem(("restart", "min_nodes"), f"must be less than the {job.resources.nodes} of resources.nodes")
    if isinstance(job.train, LoopTrain) and not job.train.global_batch_size:
        message = "needs train.global_batch_size: with train.batch_size, fewer nodes would change the training"
        yield Problem(("restart", "min_nodes"), message)


def _of_bare_script(job: Job) -> Iterator[Problem]:
    if job.workload == "command" and job.argv and needs_interpreter(job.argv):
        yield Problem(("argv",), f"not a program on PATH, but a script: {job.argv[0]}", hint=command_of(job.argv))


def _of_programs(job: Job) -> Iterator[Problem]:
    """For scripts without their interpreter, and programs that would start processes on all nodes in each task."""
    yield from _of_bare_script(job)
    resources = job.resources
    tasks = resources.nodes * (resources.tasks_per_node or 1)
    launch = find_launch(job.argv) if job.workload == "command" and tasks > 1 else None
    if launch and launch.name == MPI:
        hint = "let Slurm start the ranks, with `mpi` in the cluster file: name the program without mpirun"
        yield Problem(("argv",), f"each of the {tasks} tasks would start {launch.name} again", hint=hint)
    if launch and launch.name == DEEPSPEED and resources.nodes > 1 and "--launcher" in launch.given:
        hint = "leave out --launcher: each node starts its own workers, without ssh"
        yield Problem(("argv",), "deepspeed --launcher starts all nodes from one, but each node starts it", hint=hint)


def _of_restarts(job: Job) -> Iterator[Problem]:
    restart = job.restart
    if restart.grow.wanted:
        if not job.most_starts:
            yield Problem(("restart", "grow"), "needs restarts; set restart.limit and resources.requeue")
        if restart.by == "requeue":
            message = "a job that is requeued keeps its limits: the run goes on in another one; remove restart.by"
            yield Problem(("restart", "grow"), message)
        if restart.grow.memory and job.resources.mem_per_gpu:
            yield Problem(("restart", "grow", "memory"), "not with resources.mem_per_gpu; set resources.memory instead")
    if restart.standby and (reason := _no_standby(job)):
        yield Problem(("restart", "standby"), reason)
    if job.workload != "command":
        given = {"signal": restart.signal != Restart.signal, "at_limit": restart.at_limit, "progress": restart.progress}
        for name, is_given in given.items():
            if is_given:
                hint = "the workloads of clusterctl save, and go back to the queue, by themselves; remove this key"
                yield Problem(("restart", name), 'only for a program of your own, workload "command"', hint=hint)
    elif restart.at_limit and job.resources.warning == 0:
        yield Problem(("restart", "at_limit"), "needs the warning before the time limit; set resources.warning")
    elif restart.at_limit and not job.most_starts:
        yield Problem(("restart", "at_limit"), "needs restarts; set restart.limit and resources.requeue")
