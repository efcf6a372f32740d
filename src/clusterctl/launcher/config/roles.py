"""The roles and the stages of a job file: programs that run side by side in one job, or one after another.

[[role]]
name = "features"
nodes = 2
program = ["python", "serve.py", "--port", "{port}"]
ready = "http://{host}:{port}/health"
[[role]]
name = "trainer"
nodes = 2
program = ["torchrun", "train.py", "--features", "{features.addresses}"]
needs = ["features"]
ends = "job"

Each stage is the job with some changed values, and runs after the previous stage:

workload = "command"
[resources]
nodes = 1
[[stage]]
name = "prepare"
argv = ["python", "prepare.py"]
[[stage]]
name = "train"
argv = ["python", "train.py"]
resources.nodes = 4
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from clusterctl.launcher.config.places import find_file
from clusterctl.launcher.config.program import command_of, needs_interpreter
from clusterctl.launcher.config.secrets import Secrets
from clusterctl.launcher.config.source import Values, read_toml, shown_path
from clusterctl.shared.errors import ConfigError
from clusterctl.shared.node.launch_command import MPI, find_launch
from clusterctl.shared.record.roles import MOST_RANKS, filled, known_names, placeholders, seating, variable
from clusterctl.shared.spec.job import NO_IMAGE
from clusterctl.shared.spec.keys import leaves
from clusterctl.shared.spec.records import Problem, nearest
from clusterctl.shared.spec.values import GpuCount

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from clusterctl.shared.spec import Cluster, Job
    from clusterctl.shared.spec.job import Role


ORIGIN = "default: what the roles need"
_TABLE = "role"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,30}")
_OF_THE_JOB = ("nodes", "tasks_per_node", "cpus_per_task", "gpus_per_node")
# Keys of [resources] that someone may want for one role; a job has one allocation, which all its roles share.
_OF_ONE_ALLOCATION = frozenset(
    {"partition", "constraint", "account", "qos", "reservation", "nodelist", "exclude", "gres", "memory", "time"}
)
_SEPARATE = (
    "set resources.{key} for all of them; for different ones, submit a batch script of your own with Slurm's "
    "heterogeneous components (#SBATCH hetjob), which has no arrays and starts by backfill only"
)


def by_name(file: Values, path: Path) -> None:
    """Turn the list of the file at `path` into a table by name, whose keys `--set role.NAME.KEY` reaches, too.

    Raises ConfigError.
    """
    tables, place = file.get((_TABLE,)), file.origin((_TABLE,))
    if tables is None:
        return
    file.drop((_TABLE,))
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise ConfigError(f"{place}: roles must be tables", "write [[role]] above the values of each")
    known: list[str] = []
    for number, table in enumerate(map(dict, tables)):
        line = file.lines.get((_TABLE, str(number)))
        here = f"{shown_path(path)}:{line}" if line else place
        name = table.pop("name", None)
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            hint = 'such as name = "trainer", of letters, digits, _ and -, beginning with a letter'
            raise ConfigError(f"{here}: a role needs a name", hint)
        alike = next((other for other in known if variable(other, "") == variable(name, "")), None)
        if alike is not None:
            raise ConfigError(f"{here}: two roles of one name: {alike}, {name}", "give each role its own name")
        for key in sorted(_OF_ONE_ALLOCATION & set(table)):
            message = f"{here}: role {name}: {key} applies to the whole job: its roles share one allocation"
            raise ConfigError(message, _SEPARATE.format(key=key))
        known.append(name)
        for path_in_role, value in leaves(table):
            parts = (_TABLE, str(number), *path_in_role)
            line = next(filter(None, (file.lines.get(parts[:end]) for end in range(len(parts), 1, -1))), None)
            file.put((_TABLE, name, *path_in_role), value, f"{shown_path(path)}:{line}" if line else here)
    if file.get(("workload",)) is None:
        file.put(("workload",), "command", "the roles")


def completed(job: Job, cluster: Cluster, values: Values, absolute: Callable[[str, str], str | None]) -> Job:
    """Fill in the ranks and image of each role, and the resources that all of them need together.

    `absolute` makes the path of a role's image absolute. Raises ConfigError.
    """
    roles: dict[str, Role] = {}
    for name, role in job.role.items():
        tasks, image = role.tasks_per_node, role.image
        if tasks is None:
            launch = find_launch(role.program)
            tasks = 1 if launch is not None and launch.starts_workers else role.gpus_per_node or 1
            values.origins[_TABLE, name, "tasks_per_node"] = "default: one a GPU, or one for a launcher"
        if image and image.startswith((".", "~")):
            image = absolute(name, image)
        roles[name] = replace(role, tasks_per_node=tasks, image=image)
    if any(_of_sharing(roles)) or _count(roles) > MOST_RANKS:
        return replace(job, role=roles)  # `contradictions` reports it
    seated = seating(roles)
    for name in _OF_THE_JOB:
        origin = values.origin(("resources", name))
        if origin and not origin.startswith(("default", "cluster ")):
            hint = f"set it in the role: [[role]] {name} = ..., or `role.{next(iter(roles))}.{name} = VALUE`"
            place = values.place(("resources", name))
            raise ConfigError(f"{place}: resources.{name}: the roles decide about it; remove this key", hint)
        values.origins["resources", name] = ORIGIN
    kind = cluster.gpus_per_node.written if cluster.gpus_per_node is not None else 0
    gpus = f"{kind.rpartition(':')[0]}:{seated.gpus_per_node}" if isinstance(kind, str) and ":" in kind else None
    resources: dict[str, Any] = {
        "nodes": seated.nodes,
        "tasks_per_node": seated.tasks_per_node,
        "cpus_per_task": seated.cpus_per_task,
        "gpus_per_node": GpuCount(gpus if gpus and seated.gpus_per_node else seated.gpus_per_node),
    }
    return replace(job, role=roles, resources=replace(job.resources, **resources))


def _count(roles: Mapping[str, Role]) -> int:
    return sum(role.nodes * (role.tasks_per_node or 1) for role in roles.values())


def contradictions(job: Job, cluster: Cluster) -> Iterator[Problem]:
    """What cannot be meant about the roles of `job`."""
    roles, resources = job.role, job.resources
    if not roles:
        return
    if job.workload != "command":
        yield Problem((_TABLE,), f'only for workload "command", not "{job.workload}"; remove the workload')
    if job.argv:
        yield Problem(("argv",), "the roles have the programs; remove this key")
    if job.may_lose_nodes:
        key = ("resources", "spare_nodes") if resources.spare_nodes else ("restart", "min_nodes")
        yield Problem(key, "not with roles, which are bound to their nodes; remove this key")
    if resources.gpus_per_task or resources.cpus_per_gpu:
        of_gpus = "gpus_per_task" if resources.gpus_per_task else "cpus_per_gpu"
        yield Problem(("resources", of_gpus), "not with roles, which divide the GPUs of a node; remove this key")
    if _count(roles) > MOST_RANKS:
        yield Problem((_TABLE,), f"{_count(roles)} ranks; at most {MOST_RANKS}")
    yield from _of_sharing(roles)
    for name, role in roles.items():
        for other in role.needs:
            if other not in roles:
                message = f"no such role: {other}"
                yield Problem((_TABLE, name, "needs"), message, nearest(other, roles), f"roles: {', '.join(roles)}")
    if cycle := _cycle(roles):
        words = f"roles wait for each other: {' needs '.join(cycle)}"
        yield Problem((_TABLE, cycle[0], "needs"), words, hint="remove one of them, so that one role can start")
    for name, role in roles.items():
        yield from _of_program(name, role, roles, Secrets(cluster.secrets))


def _of_sharing(roles: Mapping[str, Role]) -> Iterator[Problem]:
    host: tuple[str, Role] | None = None
    for name, role in roles.items():
        if not role.share:
            host = name, role
        elif host is None:
            yield Problem(
                (_TABLE, name, "share"), "no role before it has nodes; remove this key, or move the role down"
            )
        elif role.nodes > host[1].nodes:
            message = f"{role.nodes} nodes, and role {host[0]}, whose nodes it shares, has {host[1].nodes}"
            yield Problem((_TABLE, name, "nodes"), message)


def _cycle(roles: Mapping[str, Role]) -> list[str]:
    """A chain of roles that leads back to its first one; empty without."""
    done: set[str] = set()

    def follow(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for other in roles[name].needs:
            if other in roles and (found := follow(other, [*path, name])):
                return found
        done.add(name)
        return []

    return next(filter(None, (follow(name, []) for name in roles)), [])


def _of_program(name: str, role: Role, roles: Mapping[str, Role], secrets: Secrets) -> Iterator[Problem]:
    key, known = (_TABLE, name), known_names(roles)
    texts = [
        *((("program",), word) for word in role.program),
        *((("env", one), text) for one, text in role.env.items()),
    ]
    texts += [(("ready",), role.ready)] if role.ready else []
    for where, text in texts:
        for used in placeholders(text):
            if used not in known:
                hint = f"write {{{{{used}}}}} for a brace; placeholders: {', '.join(sorted(known))}"
                yield Problem((*key, *where), f"unknown placeholder: {{{used}}}", nearest(used, known), hint)
    if not role.program[0]:
        yield Problem((*key, "program"), 'needs a program, such as ["python", "serve.py"]')
    elif needs_interpreter(role.program):
        message = f"not a program on PATH, but a script: {role.program[0]}"
        yield Problem((*key, "program"), message, hint=f"name its interpreter: {command_of(role.program)}")
    launch = find_launch(role.program)
    if launch and launch.name == MPI and role.nodes * (role.tasks_per_node or 1) > 1:
        hint = "start the ranks without mpirun: the variables RANK and WORLD_SIZE have their numbers"
        yield Problem((*key, "program"), f"each rank would start {launch.name} again", hint=hint)
    if role.ready and (problem := _of_ready(role.ready, known)):
        hint = 'such as "http://{host}:{port}/health", "tcp://{host}:{port}", "file:PATH" or "log:TEXT"'
        yield Problem((*key, "ready"), problem, hint=hint)
    for one in role.env:
        if one in secrets:
            hint = f"set it in [env], where it is not recorded: env.{one}"
            yield Problem((*key, "env", one), "a secret, which would be recorded with the role", hint=hint)
        elif one.startswith(("CLUSTERCTL_", "SLURM_", "SBATCH_", "SRUN_", "SUBMITIT_", "cctl_")):
            yield Problem((*key, "env", one), "Slurm or clusterctl sets this variable; choose another name")


def _of_ready(ready: str, known: Iterable[str]) -> str:
    """What is wrong with a `ready` that may contain the placeholders in `known`; empty if nothing is."""
    likely = {"host": "127.0.0.1", "hosts": "127.0.0.1", "addresses": "127.0.0.1:1"}
    sample = filled(ready, {name: likely.get(name.rpartition(".")[2], "1") for name in known})
    scheme, colon, rest = sample.partition(":")
    if scheme in ("file", "log") and colon:
        return "" if rest.strip() else f"nothing after {scheme}:"
    if scheme == "https":
        return "https is not supported: use tcp://, or http on the nodes"
    if scheme not in ("http", "tcp") or not rest.startswith("//"):
        return f"cannot be: {ready}"
    try:
        url = urlsplit(sample)
        return "" if url.hostname and url.port else f"needs a host and a port: {ready}"
    except ValueError:
        return f"needs a host and a port: {ready}"


def shown(job: Job) -> Iterator[str]:
    """The roles of a job and their places, for `--dry-run`."""
    seated = seating(job.role)
    per_node = int(job.resources.gpus_per_node or 0)
    for name, role in job.role.items():
        first = seated.seats[seated.ranks_of(name)[0]].first_node
        nodes = f"node {first}" if role.nodes == 1 else f"nodes {first}-{first + role.nodes - 1}"
        ranks = f"{role.tasks_per_node} rank{'s' if role.tasks_per_node != 1 else ''} per node"
        gpus = f", {role.gpus_per_node} GPUs" if role.gpus_per_node else ""
        after = f", after {' and '.join(role.needs)}" if role.needs else ""
        ready = f", ready: {role.ready}" if role.ready else ""
        ends = ", ends the job" if role.ends == "job" else ""
        image = f", image {job.image_of(role) or NO_IMAGE}" if role.image else ""
        yield f"role {name}: {nodes}, {ranks}{gpus}{after}{ready}{ends}{image}"
    unused = sum(per_node - gpus for gpus in seated.gpus_on)
    if unused:
        yield f"{unused} GPUs are held and used by no role: Slurm gives each node of a job as many"


_STAGE_TABLE = "stage"
_STAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
CONDITIONS = ("after", "after_any", "after_start")


class HasStages(ConfigError):
    """A single run was requested of a job with stages."""


@dataclass(frozen=True)
class StageOfJob:
    """One stage: its values, and the stages it waits for, by condition."""

    name: str
    values: Values
    waits: dict[str, tuple[str, ...]]


def parted(file: Values, path: Path) -> list[StageOfJob]:
    """Extract the stages from the values of the job file at `path`. Raises ConfigError."""
    tables = file.get((_STAGE_TABLE,))
    place = file.origin((_STAGE_TABLE,))
    file.drop((_STAGE_TABLE,))
    if tables is None:
        return []
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ConfigError(f"{place}: stages must be tables", "write [[stage]] above the values of each")
    stages: list[StageOfJob] = []
    for table in map(dict, tables):
        name, known = table.pop("name", None), [stage.name for stage in stages]
        if not isinstance(name, str) or not _STAGE_NAME.fullmatch(name):
            raise ConfigError(f"{place}: a stage needs a name", 'such as name = "train", of letters, digits, . _ and -')
        if name in known:
            raise ConfigError(f"{place}: duplicate stage name: {name}", "give each stage its own name")
        waits = {condition: table.pop(condition) for condition in CONDITIONS if condition in table}
        for condition, others in waits.items():
            if not isinstance(others, list) or not set(map(str, others)) <= set(known):
                hint = f"list only earlier stages: {', '.join(known) or 'there are none'}"
                raise ConfigError(f"{place}: stage {name}: {condition} = {others!r}", hint)
        values = Values()
        for key, value in leaves(table):
            values.put(key, value, f"{shown_path(path)}: stage {name}")
        waits = waits or {"after": known[-1:]}
        stages.append(StageOfJob(name, values, {condition: tuple(others) for condition, others in waits.items()}))
    return stages


def stages_of(job: str, cwd: Path) -> list[StageOfJob]:
    """The stages of the job called `job`; most jobs have none. Raises what `find_file` and `read_toml` raise."""
    path = find_file("jobs", job, cwd)
    return parted(read_toml(path), path)


def chosen(stages: list[StageOfJob], name: str | None, path: Path) -> StageOfJob | None:
    """The stage called `name`; None if the job has no stages. Raises ConfigError for an unknown stage."""
    if name is None and not stages:
        return None
    names = ", ".join(stage.name for stage in stages)
    if name is None:
        raise HasStages(f"{shown_path(path)} has stages: {names}", "all: clusterctl submit JOB; one: `stage=NAME`")
    found: Iterator[StageOfJob] = (stage for stage in stages if stage.name == name)
    if stage := next(found, None):
        return stage
    has = f"its stages: {names}" if names else "it has no stages"
    raise ConfigError(f"{shown_path(path)} has no stage called {name}", has)
