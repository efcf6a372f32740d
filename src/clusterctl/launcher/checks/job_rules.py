"""Data, code and request: whether the job's files exist and its request fits the nodes, or which settings would fit.

Also the checks of a batch script of the user's own, and sbatch's refusals in terms of its lines.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.launcher.checks.look import data_folder
from clusterctl.launcher.checks.surroundings import NO_DATA, Check, NodeSize, Verdict, fail, ok, warn
from clusterctl.launcher.config import load_cluster, shipped_folder
from clusterctl.launcher.config.client_data import client_data
from clusterctl.launcher.config.program import parted, with_interpreter
from clusterctl.launcher.config.script_resolution import inherited
from clusterctl.launcher.config.secrets import written_secrets
from clusterctl.launcher.config.user_script import missing_program
from clusterctl.launcher.slurm.nodes import asked_of
from clusterctl.launcher.submission.sbatch import SlurmRefused
from clusterctl.shared.errors import ClusterctlError, SlurmError
from clusterctl.shared.node.launch_command import launch_of, problems
from clusterctl.shared.spec import WORKLOADS, from_record, to_record
from clusterctl.shared.spec.job import EXPEDITE
from clusterctl.shared.spec.values import GpuCount, plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from clusterctl.launcher.checks.surroundings import Surroundings
    from clusterctl.launcher.config import Resolved
    from clusterctl.launcher.config.user_script import UserScript
    from clusterctl.launcher.submission.plan import Plan
    from clusterctl.shared.spec import Batches, Cluster, Job, Resources


GOES_ON = "restarts through the queue:"  # how a run is started again follows
_GIBIBYTE = 1024  # MiB
_EXPEDITED_SINCE = (25, 11)  # Slurm
_EXPEDITED = "enable_expedited_requeue"  # slurm.conf(5)


def data_rules(found: Surroundings) -> Iterator[Check]:
    wanted = found.wanted
    if wanted is None:
        return
    if data := wanted.data:
        if data.visible and not data.there:
            yield fail("data", f"no data: {data.path}: no such folder", NO_DATA)
        elif data.there and data.missing:
            missing = ", ".join(data.missing)
            yield fail("data", f"no data: {data.path} lacks {missing}", "set data.root to the data set's folder")
        return
    job = wanted.resolved.job
    layouts, data_set, example, loads = WORKLOADS[job.workload][1:]
    if not layouts or job.data.load or getattr(job.train, "generated", None):
        return
    message = f'no data: workload "{job.workload}" needs {" and ".join(layouts[0])}, but data.root is not set'
    folder = data_folder(job.workload)
    if folder is None:  # no command provides it, or it is shipped with clusterctl
        changes = {"data.root": str(shipped_folder() / "data" / example)}
        hint = NO_DATA
        hint += ", or data.load to a function of your code" if loads else ""
        yield Check("data", Verdict.FAIL, message, hint, changes)
        return
    python = wanted.resolved.cluster.python
    where = f" --cluster {shlex.quote(wanted.resolved.cluster.name)}" if python else ""
    first = "" if wanted.data_here else f"clusterctl data generate {data_set} --root {folder}{where}"
    hint = f"or download the real data set first: clusterctl data prepare {data_set} --root DIR{where}"
    yield Check("data", Verdict.FAIL, message, hint, {"data.root": folder}, first)


def code_rules(found: Surroundings) -> Iterator[Check]:
    program = found.wanted.program if found.wanted else None
    if program and not program.there:
        key = "program" if found.wanted and found.wanted.resolved.job.role else "argv"
        hint = f"paths in {key} are relative to the job's `code` folder, by default the current one"
        yield fail("program", f"{key}: no such file: {program.path}", hint)
    if found.wanted and (wrong := found.wanted.program_problem):
        hint = wrong.hint or _by_interpreter(found.wanted.resolved, wrong.argv)
        yield (fail if wrong.certain else warn)("program", wrong.problem, hint)
    for key, module in found.wanted.modules if found.wanted else ():
        if not module.there:
            hint = "unless the Python of the ranks has such a package; another folder: `code = FOLDER`"
            yield warn("program", f"{key}: no such file: {module.path}", hint)
    if found.wanted and found.wanted.forward and (problem := found.wanted.forward.problem):
        what, hint = problem
        yield fail("program", f"train.model = {getattr(found.wanted.resolved.job.train, 'model', '')}: {what}", hint)


def _by_interpreter(resolved: Resolved, argv: Sequence[str]) -> str:
    """The command, or the key of the job file, that starts a script by its interpreter."""
    ours, program = parted(resolved.typed)
    if not program:
        return (
            f"`{'program' if resolved.job.role else 'argv'} = {json.dumps(with_interpreter(argv), ensure_ascii=False)}`"
        )
    kept = [word for setting in resolved.secrets.hide_typed(resolved.settings) for word in ("--set", setting)]
    options = [*(cluster_flag(resolved.cluster) or ()), *kept]
    return shlex.join(["clusterctl", *ours, *options, "--", *with_interpreter(program[1:])])


def cluster_flag(cluster: Cluster) -> tuple[str, ...] | None:
    """The flag that names the cluster, unless it is the default; None if it has only a path."""
    for name in (None, cluster.name):
        with suppress(ClusterctlError):
            if load_cluster(name) == cluster:
                return ("--cluster", name) if name else ()
    return None


def launcher_rules(found: Surroundings) -> Iterator[Check]:
    if found.wanted and not found.wanted.resolved.script:
        resolved = found.wanted.resolved
        are_given = not resolved.origins.get("resources.tasks_per_node", "").startswith("default")
        for message, hint in problems(resolved.job, tasks_are_given=are_given):
            yield warn("launcher", message, hint)


def request_rules(found: Surroundings) -> Iterator[Check]:
    wanted = found.wanted
    if not wanted:
        return
    resources, configured = wanted.resolved.job.resources, wanted.configured
    if wanted.nodes and (check := misfit(wanted.resolved, wanted.nodes, wanted.where, wanted.gpu_types)):
        if configured is not None and configured < resources.nodes:  # Slurm would let it wait forever
            asked = f"{wanted.resolved.job.name} requests {plural(resources.nodes, 'node')}"
            yield replace(check, message=f"{asked}; {wanted.where} has {configured}, with those that are down or off")
        else:  # the inventory may be out of date; Slurm itself refuses nodes larger than it has
            hint = check.hint or "list the nodes: clusterctl nodes"
            yield replace(check, verdict=Verdict.WARN, hint=hint) if found.cluster.is_slurm else check
    tasks, gpus = resources.tasks_per_node or 1, resources.gpus_per_node or 0
    if 1 < tasks < gpus:  # a single task may be torchrun, which starts a process per GPU
        message = f"{tasks} tasks per node use {tasks} of its {gpus} GPUs"
        yield warn("size", message, "omit tasks_per_node for one task per GPU, or lower gpus_per_node")
    if not wanted.nodes_have_names:
        message = "the names of the virtual nodes (node1 ...) do not resolve on this machine"
        yield warn(
            "names", message, "let the program connect to $MASTER_ADDR, not to a name from scontrol show hostnames"
        )


def requeue_rules(found: Surroundings) -> Iterator[Check]:
    if not found.wanted or found.wanted.resolved.job.resources.requeue != EXPEDITE:
        return
    answer = found.wanted.slurm_version
    version = re.match(r"slurm\S* (\d+)\.(\d+)", str(answer))
    if not version or (int(version[1]), int(version[2])) < _EXPEDITED_SINCE:
        message = f'requeue = "{EXPEDITE}" needs Slurm 25.11 or later; sbatch --version: {str(answer).strip()}'
        yield Check("requeue", Verdict.FAIL, message, changes={"resources.requeue": "true"})
    elif isinstance(config := found.wanted.slurm_config, str) and config and _EXPEDITED not in config:
        message = f'requeue = "{EXPEDITE}" is switched off in this Slurm: SlurmctldParameters lacks {_EXPEDITED}'
        hint = f"or ask your administrator for SlurmctldParameters={_EXPEDITED}"
        yield Check("requeue", Verdict.FAIL, message, hint, changes={"resources.requeue": "true"})


def restart_rules(plan: Plan) -> Iterator[Check]:
    """Whether Slurm cancels the run's job when it preempts it, so that the run needs another one."""
    if plan.queue and plan.queue.cancels and plan.by == "requeue":
        message = 'Slurm cancels the jobs that it preempts here: with `restart.by = "requeue"` the run ends then'
        yield warn("restarts", message, "remove restart.by, so that the run goes on in a job of its own instead")
    elif plan.queue and plan.queue.cancels and not plan.by:
        yield ok("restarts", f"{GOES_ON} {plan.queue.words}")


def batch_rules(found: Surroundings) -> Iterator[Check]:
    if found.wanted:
        yield from large_batch(found.wanted.batches)


def large_batch(batches: Batches | None) -> Iterator[Check]:
    """A warning if the global batch is larger than the training set."""
    if batches and batches.too_large:
        yield warn("batch", batches.too_large, batches.remedy)


def changed_batch(before: Batches | None, now: Batches | None) -> Iterator[Check]:
    """A warning if a different number of ranks changes the global batch, and thus the training."""
    if before and now and before.ranks != now.ranks and before.size != now.size:
        message = f"the global batch changes from {before.size:,} on {before.ranks:,} ranks to {now.size:,}"
        yield warn("batch", message, f"keep it with: `train.global_batch_size = {before.size}`")


def misfit(resolved: Resolved, nodes: Sequence[NodeSize], where: str, gpu_types: Sequence[str] = ()) -> Check | None:
    """The failed check if `nodes` can never run the job; `where` names them, as in "local" or "main partition".

    `nodes` count only GPUs of the type that the job requests; `gpu_types` are all existing types.
    """
    resources = resolved.job.resources
    if _fits(resources, nodes):
        return None
    size, count = _size(resources), resources.held_nodes
    fewer = len(nodes) < count
    least = min(count, len(nodes))
    enough = {name: sum(getattr(node, name) >= getattr(size, name) for node in nodes) for name in NodeSize._fields}
    short = [name for name, number in enough.items() if number < least]
    if not short and not fewer:  # every resource exists, but not on the same nodes
        short = [name for name in NodeSize._fields if getattr(size, name)]
    kind = asked_of(resources).gpu_type
    asked = _in_words(short, size, kind)
    best = NodeSize(*map(max, zip(*nodes, strict=True))) if nodes else NodeSize(0, 0, 0)
    there = ("at most " if len(set(nodes)) > 1 else "") + _in_words(short, best, kind)
    if not fewer:
        message = f"requests {asked} per node; {where} nodes have {there}"
    elif short:
        message = f"requests {plural(count, 'node')} with {asked} each; {where} has {len(nodes)} with {there}"
    else:
        message = f"requests {plural(count, 'node')}; {where} has {len(nodes)}"
    other_types = gpu_types if kind and not best.gpus else ()
    changes = {} if other_types else _smaller(resolved, nodes)
    there_is = f"available GPU types: {', '.join(other_types)}" if other_types else "list nodes: clusterctl nodes"
    hint = "" if changes else there_is
    return Check("size", Verdict.FAIL, f"{resolved.job.name} {message}", hint, changes, error=SlurmError)


def _smaller_role(job: Job, nodes: Sequence[NodeSize]) -> dict[str, str]:
    """The number of nodes of one role with which a job that has too many fits; empty if there is none."""
    excess = job.resources.nodes - len(nodes)
    if excess <= 0 or not _fits(replace(job.resources, nodes=len(nodes)), nodes):
        return {}
    needed: dict[str, int] = {}  # by the roles that have nodes of their own, and those that share them
    for name, role in job.role.items():
        host = [*needed][-1] if role.share else name
        needed[host] = max(needed.get(host, 1), role.nodes if role.share else 1)
    left = {
        name: job.role[name].nodes - excess for name, least in needed.items() if job.role[name].nodes - excess >= least
    }
    largest = max(left, key=left.__getitem__, default=None)
    return {} if largest is None else {f"role.{largest}.nodes": str(left[largest])}


def _size(resources: Resources) -> NodeSize:
    asked = asked_of(resources)
    return NodeSize(asked.gpus, asked.cpus, asked.memory or 0)


def _fits(resources: Resources, nodes: Sequence[NodeSize]) -> bool:
    size = _size(resources)
    return sum(all(map(int.__ge__, node, size)) for node in nodes) >= resources.held_nodes


def _in_words(names: Sequence[str], size: NodeSize, gpu_type: str) -> str:
    """4 a100 GPUs, 16 CPUs and 64 GiB."""
    words = {
        "gpus": plural(size.gpus, f"{gpu_type} GPU".strip()),
        "cpus": plural(size.cpus, "CPU"),
        "memory": f"{round(size.memory / _GIBIBYTE, 1):g} GiB",
    }
    *most, last = [words[name] for name in names] or [""]
    return f"{', '.join(most)} and {last}" if most else last


def _smaller(resolved: Resolved, nodes: Sequence[NodeSize]) -> dict[str, str]:
    """The settings with which the job fits on the requested number of nodes; empty if there are none."""
    before = resolved.job.resources
    if not nodes:
        return {}
    if resolved.job.role:
        return _smaller_role(resolved.job, nodes)
    spares = min(before.spare_nodes, len(nodes) - 1)
    size, count = _size(before), min(before.held_nodes, len(nodes))
    usable = sorted((NodeSize(*map(min, node, size)) for node in nodes), reverse=True)[:count]
    most = NodeSize(*map(min, zip(*usable, strict=True)))
    by_default = resolved.origins.get("resources.tasks_per_node", "").startswith("default")
    follows_gpus = by_default and launch_of(resolved.job) is None
    asked = GpuCount(before.gpus_per_node or 0)
    gpus = asked.of_same_type(min(asked, most.gpus))
    wanted = (int(gpus) or 1) if follows_gpus else before.tasks_per_node or 1
    tasks = max(1, min(wanted, most.cpus))
    cpus = max(1, min(before.cpus_per_task, most.cpus // tasks))
    after = replace(
        before, nodes=count - spares, spare_nodes=spares, gpus_per_node=gpus, tasks_per_node=tasks, cpus_per_task=cpus
    )
    after = _with_memory(after, before, most)
    if not _fits(after, nodes):
        return {}
    changes = {
        f"resources.{name}": str(value)
        for name, value in vars(after).items()
        if value != vars(before)[name] and not (name == "tasks_per_node" and follows_gpus and tasks == wanted)
    }
    on_cpu = not gpus and getattr(resolved.job.train, "device", "") == "cuda"
    return changes | ({"train.device": "auto"} if on_cpu else {})


def _with_memory(after: Resources, before: Resources, most: NodeSize) -> Resources:
    """`after` with memory limited to what the nodes have if `before` requests more; in whole GiB if at least 1."""
    if most.memory >= _size(before).memory:
        return after
    shares = {
        "memory": 1,
        "mem_per_cpu": (after.tasks_per_node or 1) * after.cpus_per_task,
        "mem_per_gpu": max(1, after.gpus_per_node or 0),
    }
    name = next(key for key in shares if getattr(before, key))
    share = most.memory // shares[name]
    text = f"{share // _GIBIBYTE}G" if share >= _GIBIBYTE else f"{share}M"
    return from_record(type(after), to_record(after) | {name: text})


_UNKNOWN = re.compile(
    r"(?:unrecognized|ambiguous) option '--(?P<name>[\w-]+)|Invalid directive found in batch script: (?P<word>.*)"
)


def script_rules(
    plan: Plan, resolved: Resolved, folder: Path, environment: Mapping[str, str] = os.environ
) -> Iterator[Check]:
    """What is lost if the script cannot be started by ours, and folders for its output that do not exist."""
    script, typed = resolved.script, resolved.job.resources.sbatch
    if not script or not plan.script:
        return
    if plan.script.lost:
        other = "set CLUSTERCTL_RUNS to another folder"
        if client_data():  # that of the other machine does not count here
            other = f"set `runs` of cluster {resolved.cluster.name} to another folder"
        hint = f"logs, why and status then know only what Slurm tells; {other}"
        if resolved.job.restart.limit:
            hint = f"{other}, or leave restart.limit out"
            yield fail("script", f"restart.limit needs a start that is recorded: {plan.script.lost}", hint)
        yield warn("script", f"its start cannot be recorded: {plan.script.lost}", hint)
    path = resolved.job.env.get("PATH") or inherited().get("PATH", "")
    if client_data() and (missing := missing_program(script.text, path)):
        number, program = missing
        message = f"{script.place}:{number}: a login shell on {platform.node()} has no {program} on its PATH"
        if resolved.cluster.setup:
            message += f"; `setup` of cluster {resolved.cluster.name} is not run for batch scripts"
        hint = (
            "load its module or activate its environment in the script: what only an interactive shell sets is missing"
        )
        yield warn("script", message, hint)
    for number, line in enumerate(script.text.split("\n"), 1):
        if found := written_secrets(line):
            message = (
                f"{script.place}:{number}: {', '.join(found)} looks like a secret, for all who may read the script"
            )
            yield warn("secrets", message, "remove it, and export it before you type submit: the script inherits it")
    asked = {one.name: one.value for one in script.asked.values()}
    asked |= {
        name: environment[f"SBATCH_{name.upper()}"] for name in _FILES if environment.get(f"SBATCH_{name.upper()}")
    }
    asked |= typed
    if plan.script.copies_code:  # it is still to be made
        return
    if plan.script.folder and not plan.script.folder.is_dir():
        hint = f"name a folder of {platform.node()}, or leave it out, to start in a copy of the current folder"
        yield fail("chdir", f"--chdir: no such folder: {plan.script.folder}", hint)
    start = folder / asked.get("chdir", environment.get("SBATCH_CHDIR", ""))
    for name in _FILES:
        written = asked.get(name, "").rpartition("/")[0]
        if not written or "%" in written:
            continue
        place = Path(os.path.normpath(start / written))
        if place.is_dir():
            continue
        message = f"--{name}: no such folder: {place}"
        if place.parent.is_dir() or resolved.cluster.nodes_are_here:
            hint = f"Slurm would end the job without a word: mkdir -p {shlex.quote(str(place))}"
            yield fail("output", message, hint)
        else:
            yield warn("output", message, "if the nodes do not have it either, Slurm ends the job without a word")


_FILES = ("output", "error")


def explain_refusal(refused: SlurmRefused, resolved: Resolved, script: UserScript) -> SlurmRefused:
    """sbatch's own words, with the line of the script that it refuses, if one is named."""
    hint, match = "correct the script; sbatch(1) lists its options", _UNKNOWN.search(refused.words)
    if "job array" in refused.words:
        indices = "indices such as 0-9 or 1,3,7-15:2, below MaxArraySize of `scontrol show config`"
        hint = f"correct {resolved.array_typed}: {indices}"
    if match:
        wanted = match["name"] or match["word"].split()[0]
        lines = enumerate(script.text.split("\n"), 1)
        found = [number for number, line in lines if line.startswith("#SBATCH") and wanted in line]
        hint = f"remove it from {script.place}:{found[0]}" if found else hint
    return SlurmRefused("sbatch refused the job", refused.words, hint)
