"""The batch script of a run or of an array as a pure function of the plan. Slurm and the emulator run the same script.

The run's values are placed between fixed parts: `shell.sh` before them; `warm.sh` (warm runs only), `spares.sh` (jobs
that may lose nodes), `work.sh`, `setup.sh`, `successor.sh`, `leave_out.sh`, `grow.sh` (with `restart.grow`) and
`batch.sh` after them.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.launcher.containers.runtimes import IMAGE_MARK
from clusterctl.launcher.submission.plan import ON_NODE
from clusterctl.shared.record.files import write_json
from clusterctl.shared.record.ownership import make_new

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clusterctl.launcher.submission.plan import Plan, RoleStart
    from clusterctl.shared.record.layout import ArrayDir

# Like `cctl_put_first` of batch.sh, but for an image's PATH. `sh` runs it with the interpreter and its arguments.
FIRST_IN_IMAGE = (
    'p=$(command -v "$0") && [ "$(command -v python3)" != "${p%/*}/python3" ] && PATH=${p%/*}:$PATH; exec "$0" "$@"'
)


# The roles of a job with images of their own: FIRST_NODE LAST_NODE FIRST_SLOT LAST_SLOT COUNT WORDS... for each place,
# then `--`, and the words for all other ranks. Runs on the host.
OF_ITS_ROLE = """while [ "$1" != -- ]; do
  ! ((SLURM_NODEID >= $1 && SLURM_NODEID <= $2 && SLURM_LOCALID >= $3 && SLURM_LOCALID <= $4)) || exec "${@:6:$5}"
  shift "$((5 + $5))"
done
shift; exec "$@\""""

# Before a task: import from the node's copies of the modules (shared/node/staging.py), if the user owns their folder.
STAGED = (
    f'{ON_NODE}; [ ! -L "$s" ] && [ -O "$s" ] && [ -d "$s/imports" ] && PYTHONPATH=$s/imports:$PYTHONPATH; exec "$@"'
)


def render(plan: Plan) -> str:
    """The whole script. All user input is quoted, both for the shell and for sbatch's parsing of #SBATCH lines."""
    if plan.script:
        return plan.script.frozen(plan.run)
    # squeue shows this folder, so that a job can be found even if its submitter was killed
    own = [("chdir", str(plan.run.path)), ("output", str(plan.slurm_log)), ("open-mode", "append")]
    srun = ["srun"]  # setup lines may define it as a function
    if plan.warm or plan.spares:
        srun = ["cctl_in_allocation" if plan.warm else "cctl_on_chosen_nodes", "srun"]
    task = _flag_by_flag(_started(plan, plan))
    if plan.role_starts:
        chosen = [["bash", "-c", OF_ITS_ROLE, "roles"]]
        for start in plan.role_starts:
            words = _started(plan, start)
            chosen += [
                line for block in start.blocks for line in ([*map(str, block), str(len(words))], *_flag_by_flag(words))
            ]
        task = [*chosen, ["--"], *task]
    setup = "".join(f"\n{line}" for line in plan.setup)
    staging = []
    if plan.staging:
        staging = [[*plan.staging.command, plan.staging.folder], *map(list, plan.staging.archives)]
    node_setup = []
    if plan.node_setup:
        node_setup = [["bash", "-c", part("node_setup.sh"), "node_setup"], *([line] for line in plan.node_setup)]
    environment = str(plan.environment.folder) if plan.environment else ""
    warm = []
    if plan.warm:
        warm = [
            f"cctl_node_list={quote(plan.warm.node_list)} # of allocation {plan.warm.job_id}: this is a step of it",
            f"cctl_image_mark={quote(plan.warm.image_mark)}",
            _array("cctl_on_each", _flag_by_flag(plan.warm.on_each)),
            _array("cctl_clearing", _flag_by_flag(plan.warm.clearing)),
            _array("cctl_importing", _flag_by_flag(plan.warm.importing)),
            "",
            part("warm.sh"),
        ]
    spares = []
    if plan.spares:
        spares = [
            f"cctl_wanted_nodes={plan.spares.nodes} # of those that the job holds",
            f"cctl_least_nodes={plan.spares.least}",
            f"cctl_tasks_on_each={plan.spares.tasks_per_node}",
            _array("cctl_guard", _flag_by_flag(plan.spares.guard)),
            "",
            part("spares.sh"),
        ]
    growing = []
    if plan.grow.wanted:
        percent = {name: "" if factor is None else round(100 * factor) for name, factor in vars(plan.grow).items()}
        growing = [
            *(f"cctl_grow_{name}={number}" for name, number in percent.items()),
            f"cctl_warning={plan.warning} # seconds before the time limit",
            "",
            part("grow.sh"),
        ]
    cancels = "yes" if plan.queue and plan.queue.cancels else ""
    return "\n".join(
        [
            "#!/bin/bash",
            *([] if plan.warm else sbatch_lines([("job-name", plan.name), *plan.options, *own])),
            f"# Rendered by clusterctl {plan.version}; the run directory is the record of what happened.",
            "",
            part("shell.sh"),
            f"cctl_run={quote(str(plan.run.path))}",
            f"cctl_ranks={plan.tasks}",
            f"cctl_restarts={plan.restarts} # how often the queue may start it again",
            f"cctl_by={plan.by or ''} # requeue or successor; empty: as the site has it",
            f"cctl_ahead={plan.successors} # how many the submission queues, where jobs may queue none",
            f"cctl_cancels={cancels} # yes: Slurm cancels the jobs that it preempts; empty: ask it",
            f"cctl_most_fruitless={'' if plan.again is None else plan.again} # restarts in a row on the same nodes",
            f"cctl_progress={quote(plan.progress or '')} # files that show it, of a program of the user's own",
            f"cctl_environment={quote(environment)} # built from a lock file" if environment else "cctl_environment=",
            _array("cctl_dropped", [[name] for name in plan.unset]),
            _array("cctl_exports", [[f"{name}={value}"] for name, value in plan.exports]),
            f"cctl_python={'' if plan.view else quote(plan.python)} # for tasks on the host",
            f"cctl_python_is_named={'yes' if plan.python_is_named else ''}",
            f"cctl_setup={quote(setup)} # the lines of the cluster file and of the job",
            _array("cctl_srun", _flag_by_flag([*srun, *plan.flags, f"--chdir={plan.run.work}"])),
            _array("cctl_task", task),
            _array("cctl_standby", _flag_by_flag(plan.standby)),
            f"cctl_in_image={IMAGE_MARK if plan.view and not plan.runner else ''} # what only a task in its image sees",
            _array("cctl_node_check", _flag_by_flag(plan.node_check)),
            _array("cctl_node_setup", node_setup),
            _array("cctl_staging", staging),
            _array("cctl_opening", _flag_by_flag(plan.opening)),
            _array("cctl_closing", _flag_by_flag(plan.closing)),
            _array("cctl_ending", _flag_by_flag(plan.ending)),
            _array("cctl_notifier", _flag_by_flag(plan.notifier)),
            _array("cctl_tracker", _flag_by_flag(plan.tracker)),
            "",
            *warm,
            *spares,
            part("work.sh"),
            part("setup.sh"),
            part("successor.sh"),
            part("leave_out.sh"),
            *growing,
            part("batch.sh"),
        ]
    )


def _started(plan: Plan, start: Plan | RoleStart) -> list[str]:
    """The command of a task, and what brings it into its image."""
    task = [*start.task]
    if start.view:
        task = ["sh", "-c", FIRST_IN_IMAGE, *task]
    if plan.staging:
        task = ["sh", "-c", STAGED, plan.staging.folder, *task]
    return [*start.runner, *task]


def sbatch_lines(options: Iterable[tuple[str, str | int | None]]) -> list[str]:
    return [f"#SBATCH --{name}" + ("" if value is None else f"={quote(str(value))}") for name, value in options]


@functools.cache
def part(name: str) -> str:
    """A fixed part of a script, from a file beside this one."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _array(name: str, lines: Iterable[list[str]]) -> str:
    """A bash array with its words on these lines."""
    quoted = ["\n  " + " ".join(map(quote, words)) for words in lines]
    return f"{name}=({''.join(quoted)}" + ("\n)" if quoted else ")")


def _flag_by_flag(words: Iterable[str]) -> list[list[str]]:
    """Split `words` into lines, with each long flag on its own line."""
    lines: list[list[str]] = []
    for word in words:
        if lines and not word.startswith("--"):
            lines[-1].append(word)
        else:
            lines.append([word])
    return lines


# A Slurm array, whose elements are runs of one sweep with the same resource request:
#
# .sweeps/<sweep>/<number>/     the folder of an array: shown by squeue, like a run's directory
#   array.json                  the run of each element, which executes that run's own script
#   logs/<index>.log            a link to the run's slurm.log, where Slurm writes


class SlurmRequest(NamedTuple):
    """The request to Slurm: runs with equal requests can be elements of one array."""

    options: tuple[tuple[str, str | int | None], ...]
    secrets: tuple[tuple[str, str], ...]  # all elements share sbatch's environment

    @classmethod
    def of(cls, plan: Plan) -> SlurmRequest:
        return cls((("job-name", plan.name), *plan.options), tuple(sorted(plan.secrets.items())))


def arrays_of(plans: Iterable[Plan], most: int) -> list[list[Plan]]:
    """Group `plans`, in order, into arrays of at most `most` elements with equal requests."""
    alike: dict[SlurmRequest, list[Plan]] = {}
    for plan in plans:
        alike.setdefault(SlurmRequest.of(plan), []).append(plan)
    return [group[start : start + most] for group in alike.values() for start in range(0, len(group), most)]


def render_array(array: ArrayDir, plans: Sequence[Plan], at_once: int | None = None) -> str:
    """The batch script; at most `at_once` elements run at the same time."""
    first = plans[0]
    throttle = f"%{at_once}" if at_once else ""
    own = [
        ("chdir", str(array.path)),
        ("output", f"{array.logs}/%a.log"),
        ("open-mode", "append"),
        ("array", f"0-{len(plans) - 1}{throttle}"),
    ]
    return "\n".join(
        [
            "#!/bin/bash",
            *sbatch_lines([*SlurmRequest.of(first).options, *own]),
            f"# Rendered by clusterctl {first.version}; the run directories are the record of what happened.",
            "",
            part("shell.sh"),
            f"runs={quote(str(first.run.path.parent))}",
            f"element=({' '.join(quote(plan.run.id) for plan in plans)})",
            "",
            part("array.sh"),
        ]
    )


def write_array(array: ArrayDir, plans: Sequence[Plan]) -> None:
    """Create the folder of an array, except for its script, which submitit writes. Raises OSError."""
    for folder in (array.path, array.pickles, array.logs):
        make_new(folder)
    for index, plan in enumerate(plans):
        (array.logs / f"{index}.log").symlink_to(os.path.relpath(plan.slurm_log, array.logs))
    write_json(array.array_json, {"runs": [plan.run.id for plan in plans]})
