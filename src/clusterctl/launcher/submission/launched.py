"""What the launcher of a program gets from its job. The tasks fill it in, as shown here before the run.

See `shared.node.launch_command` for the launchers, and docs/decisions/programs-and-their-environment.md for the rules.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from clusterctl.shared.node.launch_command import Job as LaunchedJob
from clusterctl.shared.node.launch_command import find_launch, shell_mentions
from clusterctl.shared.spec.values import plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.shared.node.launch_command import Launch
    from clusterctl.shared.spec import Job


def launch_of(job: Job) -> Launch | None:
    """The launcher that starts the workers of a node."""
    launch = find_launch(job.argv) if job.workload == "command" else None
    return launch if launch and launch.starts_workers else None


def workers_of_a_task(job: Job) -> int:
    """The number of processes that share the CPUs of a task."""
    launch = launch_of(job)
    return launch.workers(_seen(job)) if launch and job.resources.tasks_per_node == 1 else 1


def filled_in(job: Job) -> tuple[str, ...]:
    """The options that the tasks will add to the launcher's own, with variables for what is not known yet."""
    launch = launch_of(job)
    if launch is None or job.resources.tasks_per_node != 1:
        return ()
    return launch.filled_in(_seen(job), job.env)


def shown(job: Job) -> str:
    """What `--dry-run` shows of a launcher; empty for other programs."""
    if name := shell_mentions(job.argv):
        return f"{name} in the command line of a shell is not recognised: its options stay as they are"
    launch = launch_of(job)
    if launch is None:
        return ""
    added = filled_in(job)
    words = launch.completed([f'"{word}"' if "$" in word else word for word in added])
    words = [word if word.startswith('"-') else shlex.quote(word) for word in words]
    tasks = plural(job.resources.tasks_per_node or 1, "task")
    first = f"{launch.name} starts the workers of its node: {tasks} per node"
    return f"{first}; filled in: {' '.join(added) or 'nothing'}\neach task runs: {' '.join(words)}"


def problems(job: Job, *, tasks_are_given: bool) -> Iterator[tuple[str, str]]:
    """What the user should know before submitting: messages, each with a hint."""
    resources, launch = job.resources, launch_of(job)
    tasks = resources.tasks_per_node or 1
    if tasks > 1 and (name := shell_mentions(job.argv)) and not tasks_are_given:
        message = (
            f"each of the {tasks} tasks per node starts {name}: in the command line of a shell, it is not recognised"
        )
        yield (
            message,
            "add `resources.tasks_per_node = 1` if it starts the workers of a node, or name it without the shell",
        )
    if launch is None:
        return
    if tasks > 1:
        message = f"each of the {tasks} tasks per node starts {launch.name}, and nothing is filled in"
        yield message, "omit tasks_per_node: one task per node, and the number of workers, are the defaults"
    if "--standalone" in launch.given and resources.nodes > 1:
        yield f"--standalone: each of the {resources.nodes} nodes trains by itself", "leave it out to train together"
    nodes = launch.given.get("--nnodes") or launch.given.get("--num-machines") or ""
    if nodes.isdecimal() and int(nodes) != resources.nodes:
        message = f"{launch.name} expects {plural(int(nodes), 'node')}, and the job has {resources.nodes}"
        yield message, f"leave out the number, which is filled in, or add `resources.nodes = {nodes}`"


def _seen(job: Job) -> LaunchedJob:
    """What a launcher is told about its job. GPUs bound to single tasks do not count: all workers would share one."""
    resources = job.resources
    return LaunchedJob(resources.nodes, 0 if resources.gpus_per_task else int(resources.gpus_per_node or 0))
