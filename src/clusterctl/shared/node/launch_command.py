"""Which launcher a program's command starts, and which of its options a job fills in; `shown` is the preview.

torchrun, accelerate and deepspeed start the workers of a node themselves, so a job starts one of them on each node, and
tells each what only the job knows: the number of nodes, the node's own, where the workers meet, the GPUs of a node.
Options that the user gave, on the command line or in torchrun's PET_* variables, are never replaced.

Sources: torch.distributed.run (torch 2.13), accelerate.commands.launch (1.15), and deepspeed.launcher.runner, which has
`--no_ssh` since 0.14.5.
"""

from __future__ import annotations

import itertools
import re
import shlex
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.shared.spec.values import plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from clusterctl.shared.spec import Job

TORCHRUN, ACCELERATE, DEEPSPEED, MPI = "torchrun", "accelerate", "deepspeed", "mpirun"
_PROGRAMS = {
    "torchrun": TORCHRUN,
    "accelerate-launch": ACCELERATE,
    "deepspeed": DEEPSPEED,
    **dict.fromkeys(("mpirun", "mpiexec", "orterun", "prterun"), MPI),
}
_MODULES = {
    **dict.fromkeys(("torch.distributed.run", "torch.distributed.launch"), TORCHRUN),
    "accelerate.commands.launch": ACCELERATE,
    "deepspeed.launcher.runner": DEEPSPEED,
}
# Their options without a value; `-` and `_` are the same here. Any other option has a value.
_FLAGS = {
    TORCHRUN: "-h --help --standalone -m --module --no-python --run-path --use-env --virtual-local-rank",
    ACCELERATE: """-h --help -q --quiet --cpu --multi-gpu --tpu --enable-cpu-affinity --dynamo-use-fullgraph
        --dynamo-use-dynamic --dynamo-use-regional-compilation --use-deepspeed --use-fsdp --use-parallelism-config
        --use-megatron-lm --same-network -m --module --no-python --tpu-cluster --no-tpu-cluster --tpu-use-sudo
        --downcast-bf16 --fp8-use-autocast-during-eval --debug --ipex --use-xpu""",
    DEEPSPEED: """-h --help --module --no-python --no-local-rank --no-ssh --no-ssh-check --force-multi --save-pid
        --elastic-training --bind-cores-to-rank -q --quiet""",
    MPI: "",
}
# Those with a value that may be abbreviated to an unambiguous beginning. accelerate takes no abbreviations.
_VALUED = {
    TORCHRUN: """--nnodes --nproc-per-node --rdzv-backend --rdzv-endpoint --rdzv-id --rdzv-conf --max-restarts
        --monitor-interval --start-method --event-log-handler --role --log-dir --redirects --tee --local-ranks-filter
        --duplicate-stdout-filters --duplicate-stderr-filters --node-rank --master-addr --master-port --local-addr
        --logs-specs --numa-binding --signals-to-handle --shutdown-timeout""",
    DEEPSPEED: """--hostfile --include --exclude --num-nodes --min-elastic-nodes --max-elastic-nodes --num-gpus
        --num-accelerators --master-port --master-addr --node-rank --launcher --launcher-args --enable-each-rank-log
        --autotuning --bind-core-list --ssh-port --venv-script --log-level""",
}
_LONG = {"-H": "--hostfile", "-i": "--include", "-e": "--exclude"}  # deepspeed's


class _Wrapper(NamedTuple):
    """A program that starts another: `valued` are its options with a value; `run` is the word before the program."""

    valued: str = ""
    run: str = ""
    operands: int = 0  # words before the program


_CONDA = _Wrapper("-n --name -p --prefix --cwd -r --root-prefix", "run")
_WRAPPERS = {
    "env": _Wrapper("-u --unset -C --chdir"),
    "nice": _Wrapper("-n --adjustment"),
    "ionice": _Wrapper("-c --class -n --classdata"),
    "nohup": _Wrapper(),
    "setsid": _Wrapper(),
    "stdbuf": _Wrapper("-i --input -o --output -e --error"),
    "taskset": _Wrapper(operands=1),
    "timeout": _Wrapper("-k --kill-after -s --signal", operands=1),
    "numactl": _Wrapper(
        "-i --interleave -m --membind -N --cpunodebind -C --physcpubind -p --preferred -P --preferred-many "
        "-w --weighted-interleave"
    ),
    "uv": _Wrapper(
        "--with --with-editable --with-requirements --extra --no-extra --group --no-group --only-group --env-file "
        "--package -p --python --project --directory --config-file --cache-dir --index "
        "--default-index -i --index-url --extra-index-url -f --find-links -P --upgrade-package --refresh-package "
        "--reinstall-package --resolution --prerelease --exclude-newer --link-mode --color --python-platform -w",
        "run",
    ),
    "poetry": _Wrapper("-C --directory -P --project", "run"),
    **dict.fromkeys(("conda", "mamba", "micromamba"), _CONDA),
}
_PYTHON = re.compile(r"python(?:\d+(?:\.\d+)?)?")
_MODULE = re.compile(r"-[bBdEIiOPqsSuvx]*m(?P<name>.*)")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_SHELL = re.compile(r"(?:ba|da|z|k)?sh")
_IN_SHELL = re.compile(
    r"(?:^|[\s;&|(/])(torchrun|torch\.distributed\.(?:run|launch)|accelerate[ -]launch|deepspeed|mpirun|mpiexec)\s"
)
# Node names of Slurm: "node1,node[03-05,7]".
_NAMES = re.compile(r"(?P<prefix>[^,\[\]]+)(?:\[(?P<ranges>[\d,-]+)\](?P<suffix>[^,\[\]]*))?")


class LaunchedJob(NamedTuple):
    """What a job knows that its launchers must know; texts, because variables take their place before it runs."""

    nodes: int
    gpus: int  # of each node
    node_rank: str = "$NODE_RANK"
    address: str = "$MASTER_ADDR"
    port: str = "$MASTER_PORT"
    hostfile: str = "$CLUSTERCTL_HOSTFILE"


@dataclass(frozen=True)
class Launch:
    """A command that starts a launcher, whose own words begin at `at`. `given` are its options, before its program."""

    name: str
    argv: tuple[str, ...]
    at: int
    given: Mapping[str, str] = field(default_factory=dict)

    @property
    def starts_workers(self) -> bool:
        """Whether one of it on each node starts all workers of that node."""
        return self.name != MPI

    def workers(self, job: LaunchedJob) -> int:
        """The number of workers on each node, as far as it is known; otherwise the launcher's default, 1."""
        names = {TORCHRUN: "--nproc-per-node", ACCELERATE: "--num-processes", DEEPSPEED: "--num-gpus"}
        text = self.given.get(names.get(self.name, ""), "")
        if not text.isdecimal():
            return max(1, job.gpus)
        return max(1, int(text) // (job.nodes if self.name == ACCELERATE else 1))

    def filled_in(self, job: LaunchedJob, environment: Mapping[str, str]) -> tuple[str, ...]:
        """The options that the user left out, with the values that they have in `job`."""
        fill = {TORCHRUN: _of_torchrun, ACCELERATE: _of_accelerate, DEEPSPEED: _of_deepspeed}.get(self.name)
        if fill is None:
            return ()
        given = {**self.given}
        if self.name == TORCHRUN:
            by_variable = {_name(f"--{one[4:].lower()}"): environment[one] for one in environment if one[:4] == "PET_"}
            given = by_variable | given
        wanted = fill(job, given)
        return tuple(f"{name}={value}" if value else name for name, value in wanted if _name(name) not in given)

    def completed(self, options: Sequence[str]) -> list[str]:
        """The command with more options for the launcher."""
        return [*self.argv[: self.at], *options, *self.argv[self.at :]]


def find_launch(argv: Sequence[str]) -> Launch | None:
    """The launcher that a command starts, also through programs that start another; None for anything else.

    A shell's command line is not analysed: see `shell_mentions`.
    """
    words, at = [str(word) for word in argv], 0
    while at < len(words):
        path = PurePath(words[at])
        if _PYTHON.fullmatch(path.name):
            return _of_python(words, at + 1)
        if (found := _launch_at(words, at)) is not None:
            return found
        if path.name not in _WRAPPERS:
            return None
        wrapper = _WRAPPERS[path.name]
        at = _skipped(words, at + 1, wrapper.valued)
        if wrapper.run:
            if words[at : at + 1] != [wrapper.run]:
                return None
            begin, at = at + 1, _skipped(words, at + 1, wrapper.valued)
            if path.name == "uv" and {"-m", "--module"} & {*words[begin:at]}:
                return _of_module(words, at)
        while path.name == "env" and at < len(words) and _ASSIGNMENT.fullmatch(words[at]):
            at += 1
        at += wrapper.operands
    return None


def shell_mentions(argv: Sequence[str]) -> str:
    """The launcher in the command line of a shell (`bash -c "torchrun ..."`); empty without one."""
    words = [str(word) for word in argv]
    if not words or not _SHELL.fullmatch(PurePath(words[0]).name):
        return ""
    line = next((after for word, after in itertools.pairwise(words) if re.fullmatch(r"-[a-z]*c", word)), "")
    found = _IN_SHELL.search(line)
    return found[1] if found else ""


def expanded(node_list: str) -> list[str]:
    """node1,node[03-05,7] -> node1, node03, node04, node05, node7"""
    found = []
    for part in _NAMES.finditer(node_list):
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", part["ranges"] or ""):
            numbers = range(int(first), int(last or first) + 1)
            found += [f"{part['prefix']}{number:0{len(first)}}{part['suffix']}" for number in numbers]
        found += [part["prefix"]] * (part["ranges"] is None)
    return found


def hostfile(names: Sequence[str], slots: int) -> str:
    """The nodes as deepspeed and MPI read them."""
    return "".join(f"{name} slots={slots}\n" for name in names)


def _launch_at(words: list[str], at: int) -> Launch | None:
    name = PurePath(words[at]).name
    if name == "accelerate":
        return _launch(ACCELERATE, words, at + 2) if words[at + 1 : at + 2] == ["launch"] else None
    return _launch(_PROGRAMS[name], words, at + 1) if name in _PROGRAMS else None


def _of_python(words: list[str], at: int) -> Launch | None:
    """The launcher that Python runs as a module, or as the script in an environment's `bin`."""
    while at < len(words) and words[at].startswith("-"):
        if (module := _MODULE.fullmatch(words[at])) is not None:
            if module["name"]:  # -mtorch.distributed.run
                return _of_module([*words[:at], module["name"], *words[at + 1 :]], at, words)
            return _of_module(words, at + 1)
        if words[at] in ("-c", "-", "--"):
            return None
        at += 2 if words[at] in ("-X", "-W") else 1
    return _launch_at(words, at) if at < len(words) and PurePath(words[at]).parent.name == "bin" else None


def _of_module(words: list[str], at: int, argv: list[str] | None = None) -> Launch | None:
    name = words[at] if at < len(words) else ""
    if name == "accelerate.commands.accelerate_cli" and words[at + 1 : at + 2] == ["launch"]:
        return _launch(ACCELERATE, argv or words, at + 2)
    return _launch(_MODULES[name], argv or words, at + 1) if name in _MODULES else None


def _skipped(words: list[str], at: int, valued: str) -> int:
    """The position after the options at `at`, which all begin with a dash."""
    names = valued.split()
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        if words[at] == "--":
            return at + 1
        at += 2 if words[at] in names else 1
    return at


def _launch(name: str, words: Sequence[str], at: int) -> Launch:
    """With the launcher's options by their full names, up to its program, whose arguments may look the same."""
    flags, rest, given = _FLAGS[name].split(), list(words[at:]), {}
    known = [*_VALUED.get(name, "").split(), *flags]
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        word, equals, value = rest.pop(0).partition("=")
        if not word.startswith("--") and len(word) > 2 and word[:2] not in flags:  # -r3
            word, equals, value = word[:2], "=", word[2:]
        option = _name(_LONG.get(word, word) if name == DEEPSPEED else word)
        if name in _VALUED and option not in known and option.startswith("--"):  # the beginning of a name is enough
            meant = [one for one in known if one.startswith(option)]
            option = meant[0] if len(meant) == 1 else option
        if not equals and option not in flags and rest:
            value = rest.pop(0)
        given["--num-gpus" if option == "--num-accelerators" else option] = value
    return Launch(name, tuple(words), at, given)


def _name(option: str) -> str:
    return option[:2] + option[2:].replace("_", "-")


def _of_torchrun(job: LaunchedJob, given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if "--standalone" not in given:
        yield "--nnodes", str(job.nodes)
        if given.get("--rdzv-backend", "static") != "static":
            yield "--rdzv-endpoint", f"{job.address}:{job.port}"
        else:
            yield "--node-rank", job.node_rank
            if "--rdzv-endpoint" not in given:
                yield "--master-addr", job.address
                yield "--master-port", job.port
    if job.gpus:
        yield "--nproc-per-node", str(job.gpus)


def _of_accelerate(job: LaunchedJob, given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if job.nodes > 1:
        yield "--num_machines", str(job.nodes)
        yield "--machine_rank", job.node_rank
        yield "--main_process_ip", job.address
        if "--use-deepspeed" in given:
            yield "--deepspeed_multinode_launcher", "standard"  # by default one node starts all others by ssh
    yield "--main_process_port", job.port
    if job.gpus and "--config-file" not in given:
        yield "--num_processes", str(job.nodes * job.gpus)
        kinds = {"--cpu", "--tpu", "--use-deepspeed", "--use-fsdp", "--use-megatron-lm"}
        if given.get("--num-processes", str(job.nodes * job.gpus)) != "1" and not kinds & {*given}:
            yield "--multi_gpu", ""


def _of_deepspeed(job: LaunchedJob, given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if job.nodes > 1:
        yield "--hostfile", job.hostfile
    if job.nodes > 1 or "--hostfile" in given:
        yield "--no_ssh", ""
        yield "--node_rank", job.node_rank
        yield "--master_addr", job.address
    yield "--master_port", job.port


# Before the run: what the tasks will fill in, for a job that is about to be submitted.


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
