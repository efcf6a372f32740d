"""Runs the checks: `doctor` shows all results, `submit` and `resume` refuse if one is fatal.

The rules for notifications, local copies of code and trackers are here, too; RULES lists all of them in order.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from clusterctl.launcher.checks.data_size import batches
from clusterctl.launcher.checks.interpreters import interpreter_rules, program_rules
from clusterctl.launcher.checks.job_rules import (
    batch_rules,
    cluster_flag,
    code_rules,
    data_rules,
    explain_refusal,
    launcher_rules,
    misfit,
    request_rules,
    requeue_rules,
)
from clusterctl.launcher.checks.look import INVENTORY_SECONDS, look_around, look_at_cluster, sizes
from clusterctl.launcher.checks.machine_rules import cluster_rules, machine_rules
from clusterctl.launcher.checks.memory import estimate, memory_rules
from clusterctl.launcher.checks.surroundings import Check, fail, warn
from clusterctl.launcher.config.program import with_options
from clusterctl.launcher.submission.sbatch import SlurmRefused
from clusterctl.shared.errors import ConfigError, SlurmError
from clusterctl.shared.record.files import LOCAL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from clusterctl.launcher.checks.surroundings import Surroundings
    from clusterctl.launcher.config import Resolved
    from clusterctl.launcher.slurm import Slurm
    from clusterctl.launcher.submission.plan import Plan
    from clusterctl.shared.spec import Cluster


def notify_rules(found: Surroundings) -> Iterator[Check]:
    """Whether notifications about the run can be sent to its webhook, whose URL is not shown."""
    wanted = found.wanted
    if wanted is None or (name := wanted.resolved.job.notify.url_variable) is None:
        return
    if not wanted.webhook:
        hint = f"export {name}=https://..., or remove notify.url_variable"
        yield fail("notify", f"notify.url_variable: {name} is not set in the environment", hint)
    elif not _is_url(wanted.webhook):
        yield fail("notify", f"notify.url_variable: {name} is not a URL", "it must start with https:// or http://")


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and text.isprintable() and " " not in text


def staging_rules(found: Surroundings) -> Iterator[Check]:
    """For `resources.local_code`: the nodes' local disk, and the Python environments to copy there."""
    scratch, elsewhere = found.scratch, "set `local_scratch` in the cluster file to a folder on each node's local disk"
    slower = "ranks import from the shared file system"
    if scratch and not scratch.exists and not found.cluster.nodes_are_here:
        yield warn("scratch", f"not on this machine: {scratch.path}", "the nodes must have it; they were not checked")
    elif scratch and not scratch.exists:
        yield warn("scratch", f"no such folder: {scratch.path}: {slower}", elsewhere)
    elif scratch and not scratch.writable:
        yield warn("scratch", f"cannot write to {scratch.path}: {slower}", elsewhere)
    elif scratch and scratch.file_system and scratch.file_system not in LOCAL:
        yield warn("scratch", f"{scratch.path} is on {scratch.file_system}, not on a local disk", elsewhere)
    for environment in found.environments:
        if not environment.there:
            hint = "set `python_environments` in the cluster file to folders of venvs or conda environments"
            yield fail("environments", f"not a Python environment: {environment.path}", hint)


def tracker_rules(found: Surroundings) -> Iterator[Check]:
    """The library of each tracker, where the metrics are copied. The run itself does not need them."""
    if found.wanted is None:
        return
    for name in found.wanted.missing_trackers:
        package = {"mlflow": "mlflow-skinny"}.get(name, name)
        hint = f"pip install {package}, or set track.where=login and use: clusterctl track RUN"
        yield warn("track", f"track.{name}: {name} is not installed in the Python that copies the metrics", hint)


def _container_rules(found: Surroundings) -> Iterator[Check]:
    if found.containers:
        from clusterctl.launcher.checks.container_rules import container_rules

        for facts in found.containers:
            yield from container_rules(facts)


# In the order in which one would fix the problems.
RULES: tuple[Callable[[Surroundings], Iterator[Check]], ...] = (
    *(machine_rules, cluster_rules, _container_rules, interpreter_rules, staging_rules),
    *(program_rules, code_rules, launcher_rules, data_rules, batch_rules, request_rules, memory_rules, requeue_rules),
    *(notify_rules, tracker_rules),
)
_SHORT = {f"resources.{key}": f"--{key.replace('_', '-')}" for key in ("nodes", "gpus_per_node", "tasks_per_node")}


def judge(found: Surroundings) -> tuple[Check, ...]:
    """Every check that applies to `found`."""
    return tuple(check for rule in RULES for check in rule(found))


def with_job(found: Surroundings, resolved: Resolved) -> Surroundings:
    """`found` for a job that differs only in its training settings: the surroundings are the same."""
    job = resolved.job
    wanted = found.wanted and replace(found.wanted, resolved=resolved, batches=batches(job), memory=estimate(job))
    return replace(found, wanted=wanted)


def check_cluster(cluster: Cluster) -> tuple[Check, ...]:
    """The checks of `doctor`: this machine and `cluster`."""
    return judge(look_at_cluster(cluster))


def verify(resolved: Resolved, plan: Plan, slurm: Slurm) -> tuple[Check, ...]:
    """Every check of the run of `plan` that is possible from this machine."""
    return judge(look_around(resolved, plan, slurm))


def refuse(checks: Iterable[Check], resolved: Resolved) -> None:
    """Raise one error for all fatal checks, if any; its hint is the command that would pass."""
    fatal = list({check.message: check for check in checks if check.fatal}.values())
    if not fatal:
        return
    error = SlurmError if all(check.error is SlurmError for check in fatal) else ConfigError
    message = fatal[0].message
    if len(fatal) > 1:
        message = "\n".join([f"{len(fatal)} problems would make the run fail", *(check.message for check in fatal)])
    raise error(message, _hint(fatal, resolved))


def explained(refused: SlurmRefused, resolved: Resolved, slurm: Slurm) -> SlurmRefused:
    """Slurm's refusal; if it was about the job's size, with the request, the available nodes, and a size that fits.

    The nodes may be cached for an hour, as before every submission: all users share the controller.
    """
    if resolved.script:
        return explain_refusal(refused, resolved, resolved.script)
    if not refused.for_size:
        return refused
    try:
        where, nodes, gpu_types = sizes(resolved.job.resources, slurm.nodes(max_age=INVENTORY_SECONDS))
    except SlurmError:
        return refused
    if not nodes or not (check := misfit(resolved, nodes, where, gpu_types)):
        return refused
    return SlurmRefused("sbatch refused the job", check.message, _hint([check], resolved))


def _hint(fatal: Sequence[Check], resolved: Resolved) -> str:
    """The command that would pass, or the settings to add if the typed command is unknown; and the checks' hints."""
    changes = {key: value for check in fatal for key, value in check.changes.items()}
    first = [check.first for check in fatal if check.first] if changes else []
    cluster, remedy = cluster_flag(resolved.cluster) if changes else None, ""
    if changes and resolved.typed and cluster is not None and all(check.changes for check in fatal):
        settings = [setting for setting in resolved.settings if setting.partition("=")[0].strip() not in changes]
        kept = [word for setting in resolved.secrets.hide_typed(settings) for word in ("--set", setting)]
        flags: list[str] = []
        for key, value in changes.items():
            flags += [_SHORT[key], value] if key in _SHORT else ["--set", f"{key}={value}"]
        typed = with_options(["clusterctl", *resolved.typed], [*cluster, *kept, *flags])
        remedy = " && ".join([*first, shlex.join(typed)])
    elif changes:
        added = " ".join(f"`{key} = {value}`" for key, value in changes.items())
        remedy = ", then ".join([*first, f"add {added}"])
    return "\n".join(dict.fromkeys(filter(None, [remedy, *(check.hint for check in fatal)])))
