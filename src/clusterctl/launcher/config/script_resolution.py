"""A batch script -> a resolved job: what it, the command line and the cluster file ask for, with the origins.

sbatch reads the script's lines and SBATCH_* itself. The job only records what they say, and adds what `submit` was
given: that wins, as sbatch's command line does. The cluster file fills in what neither of them sets.
"""

from __future__ import annotations

import functools
import os
import pwd
import re
import shlex
import subprocess
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.launcher.config.client_data import client_data
from clusterctl.launcher.config.clusters import user_values
from clusterctl.launcher.config.program import ORIGIN
from clusterctl.launcher.config.resolution import (
    RESERVED_PREFIXES,
    SBATCH_VARIABLES,
    Resolved,
    bring_secrets,
    cluster_values,
    overrides_of,
)
from clusterctl.launcher.config.secrets import secrets_of
from clusterctl.launcher.config.source import Values, read_values
from clusterctl.launcher.config.user_script import OF_ENVIRONMENT, UNSUPPORTED
from clusterctl.shared.errors import ConfigError, UsageError
from clusterctl.shared.spec import SCRIPT, Job, Resources, from_record
from clusterctl.shared.spec.job import Restart
from clusterctl.shared.spec.keys import leaves_as_written
from clusterctl.shared.spec.records import InvalidRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from clusterctl.launcher.config.user_script import UserScript
    from clusterctl.shared.spec import Cluster

# What applies to a batch script; it brings everything else itself.
_OF_SCRIPTS = ("env", "name", "note", "notify", "resources", "restart", "see_ranks", "tags", "track")
_NOT_OF_SCRIPTS = (
    *(("resources", name) for name in ("allocator", "local_code", "numa", "spare_nodes", "warning")),
    *(("restart", one.name) for one in fields(Restart) if one.name not in ("by", "limit")),
)
# Options of which one is enough for sbatch to know what the cluster file would fill in.
_FILLED_IN = ("partition", "account", "qos")

# Options whose value means the same as a key's; the record of a run shows them.
SCRIPT_KEYS = {
    **{name: name for name in ("nodes", "partition", "account", "qos", "time", "constraint", "comment", "gres")},
    "ntasks-per-node": "tasks_per_node",
    "cpus-per-task": "cpus_per_task",
    "gpus-per-node": "gpus_per_node",
    "mem": "memory",
}

_LOGIN_SHELLS = ("bash", "dash", "ksh", "sh", "zsh")  # which know -l
_SHELL_SECONDS = 60
# The list of indices that sbatch gets; of an element that is submitted again, its own index.
ARRAY = ("resources", "sbatch", "array")


def resolve_script(
    script: UserScript,
    cluster: Cluster,
    settings: Iterable[str] = (),
    environment: Mapping[str, str] | None = None,
    sent_from: Path | None = None,
) -> Resolved:
    """The job of a batch script: values given here win over its lines, which win over the cluster's.

    What it asks for in its lines is left to sbatch, except for what the record shows. `environment` is by default what
    sbatch inherits. `sent_from` is the folder in which it was typed on another machine: it starts in a copy of that,
    unless it names its folder. Raises ConfigError.
    """
    settings, asked, values = tuple(settings), script.asked, Values()
    environment = inherited() if environment is None else environment
    for variable, name in OF_ENVIRONMENT.items():
        if environment.get(variable):
            raise ConfigError(f"{variable} is set, but --{name} is not supported", f"unset {variable}")
    values.layer(user_values())
    values.drop(("cluster",))  # not a key of jobs
    of_cluster = cluster_values(cluster)
    for key, origin in of_cluster.origins.items():
        if key[0] in ("notify", "track"):
            values.put(key, of_cluster.get(key), origin)
    values.put(("name",), script.run_name(environment), "the script's job name")
    for name in _FILLED_IN:
        if name not in asked and not environment.get(f"SBATCH_{name.upper()}") and getattr(cluster, name) is not None:
            values.put(("resources", name), getattr(cluster, name), f"cluster {cluster.name}")
    for variable, name in SBATCH_VARIABLES.items():
        if environment.get(variable):
            values.put(("resources", name), environment[variable], f"environment {variable}")
    if indices := environment.get("SBATCH_ARRAY_INX"):
        values.put(ARRAY, indices, "environment SBATCH_ARRAY_INX")
    elif "array" in asked:
        values.put(ARRAY, asked["array"].value, f"{script.place}:{asked['array'].line}")
    for one in asked.values():
        key = ("resources", SCRIPT_KEYS.get(one.name, ""))
        if key[1] and not values.origin(key) and _is_valid(key[1], one.value):
            values.put(key, _typed(one.value), f"{script.place}:{one.line}")
    tasks, nodes = asked.get("ntasks"), values.get(("resources", "nodes")) or 1
    if tasks and tasks.value.isdecimal() and int(tasks.value) and int(tasks.value) % nodes == 0:
        key = ("resources", "tasks_per_node")
        values.put(key, int(tasks.value) // nodes, f"{script.place}:{tasks.line}")
    if sent_from:
        _place(values, script, cluster, settings, sent_from)
    return _script_job(script, values, cluster, settings, environment, Path(script.place))


def _place(values: Values, script: UserScript, cluster: Cluster, settings: tuple[str, ...], folder: Path) -> None:
    """Where a script starts that was sent from `folder` on another machine."""
    line = script.asked.get("chdir")
    typed = overrides_of(settings, SCRIPT).get(("resources", "sbatch", "chdir"))
    chdir = typed or (line.value if line else "")
    if not chdir:
        values.put(("code",), str(folder), "default: the current folder")
    elif not chdir.startswith("/"):
        where = f"{script.place}:{line.line}: " if line and not typed else ""
        named = f"name a folder of {cluster.host}: `resources.sbatch.chdir = /FOLDER`"
        hint = f"{named}\nor leave it out, to start in a copy of this folder"
        raise UsageError(f"{where}--chdir={chdir} is relative, but the script is sent to {cluster.host}", hint)


@functools.cache
def inherited() -> Mapping[str, str]:
    """What sbatch inherits: this process's environment, or for a command typed on another machine a login shell's here.

    Nothing of the other machine's environment is in it.
    """
    if client_data() is None:
        return os.environ
    user = pwd.getpwuid(os.geteuid())
    shell = user.pw_shell if os.path.basename(user.pw_shell) in _LOGIN_SHELLS else "/bin/bash"  # noqa: PTH119 - text
    begun = variables(Path("/proc/self/environ").read_bytes())  # by sshd; the request's own variables came later
    mark = os.urandom(16).hex()
    words = [shell, "-l", "-c", f"echo {mark}; exec env -0"]
    try:
        done = subprocess.run(
            words, env=begun, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SHELL_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"cannot start a login shell: {error}", f"try it there: {shell} -l -c env") from error
    return variables(done.stdout.partition(f"{mark}\n".encode())[2])


def variables(block: bytes) -> dict[str, str]:
    """The variables of an environment in the kernel's form."""
    entries = (entry.partition("=") for entry in block.decode(errors="surrogateescape").split("\0"))
    return {name: value for name, equals, value in entries if equals and name != "_"}


def resolve_script_again(
    script: UserScript,
    record: Mapping[str, Any],
    origins: Mapping[str, str],
    cluster: Cluster,
    settings: Iterable[str] = (),
    environment: Mapping[str, str] | None = None,
    run_json: Path = Path("run.json"),
) -> Resolved:
    """`resolve_again` for the batch script of a run."""
    values, environment = Values(), inherited() if environment is None else environment
    for key, value in leaves_as_written(dict(record)):
        origin = origins.get(".".join(key), "")
        if value is not None and key[0] in ("code", *_OF_SCRIPTS) and origin and not origin.startswith("cluster "):
            values.put(key, value, origin)
    for name in _FILLED_IN:
        if not values.origin(("resources", name)) and getattr(cluster, name) is not None:
            values.put(("resources", name), getattr(cluster, name), f"cluster {cluster.name}")
    bring_secrets(values, cluster, environment)
    again = _script_job(script, values, cluster, tuple(settings), environment, run_json)
    if not again.array.isdecimal() and again.array:
        hint = f"for one more array: clusterctl submit {script.place} --array {shlex.quote(again.array)}"
        raise UsageError(f"--array {again.array}: a run is one element", hint)
    return again


def _script_job(
    script: UserScript,
    values: Values,
    cluster: Cluster,
    settings: tuple[str, ...],
    environment: Mapping[str, str],
    file: Path,
) -> Resolved:
    overrides = overrides_of(settings, SCRIPT)
    for key in overrides.origins:
        if key[0] not in _OF_SCRIPTS or key in _NOT_OF_SCRIPTS:
            message = f"{'.'.join(key)} has no effect on a batch script"
            hint = f"arguments for the script follow --: clusterctl submit {script.place} -- ARGUMENTS"
            raise ConfigError(message, hint)
    values.layer(overrides)
    values.put(("workload",), SCRIPT, "the script")
    values.put(("argv",), [script.name, *script.arguments], ORIGIN)
    if values.origin(("restart", "limit")) != "--set":
        values.put(("restart", "limit"), 0, "default: Slurm alone starts a batch script again")
    job = read_values(Job, values, file)
    if job.restart.by == "successor":
        hint = "leave it out: its own job is requeued"
        raise ConfigError("restart.by: a batch script goes on only in its own job, which has its environment", hint)
    if job.restart.limit and (line := script.asked.get("no-requeue")):
        message = f"{script.place}:{line.line}: --no-requeue contradicts restart.limit={job.restart.limit}"
        raise ConfigError(message, "remove one of them")
    if reserved := next((name for name in job.env if name.startswith(RESERVED_PREFIXES)), None):
        raise ConfigError(f"env.{reserved}: Slurm or clusterctl sets this variable", "choose another name")
    if option := next((name for name in job.resources.sbatch if name in UNSUPPORTED), None):
        raise ConfigError(f"resources.sbatch.{option}: not supported for a batch script", UNSUPPORTED[option])
    secrets = secrets_of(job, cluster, environment).having(overrides.get(("env",)))
    origins = {".".join(key): origin for key, origin in values.origins.items()}
    return Resolved(job, cluster, origins, file, secrets, settings=settings, script=script)


def _is_valid(name: str, value: str) -> bool:
    """Whether a key accepts what sbatch would: not ranges of nodes, for example."""
    try:
        from_record(Resources, {name: _typed(value)}, parse=True)
    except InvalidRecord:
        return False
    return True


def _typed(value: str) -> int | str:
    return int(value) if re.fullmatch(r"[0-9]{1,9}", value) else value
