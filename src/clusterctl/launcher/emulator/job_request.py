"""Parse command lines as getopt_long(3) does, and what sbatch is asked for there and in the script's #SBATCH lines."""

from __future__ import annotations

import re
import shlex
import signal
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.shared.errors import SlurmError

if TYPE_CHECKING:
    from collections.abc import Mapping

# Command lines as getopt_long(3) reads them: `--name=value`, `--name value`, `--na value`, `-Nvalue`, `-N value`.


class Options:
    """One command's options, from words like "nodes=/N": `=` requires a value, `?` allows one, `/N` is short."""

    def __init__(self, known: str) -> None:
        self._kinds: dict[str, str] = {}
        self._letters: dict[str, str] = {}
        for word in known.split():
            name, _, letter = word.partition("/")
            kind = name[-1] if name[-1] in "=?" else ""
            name = name.removesuffix(kind)
            self._kinds[name] = kind
            if letter:
                self._letters[letter] = name

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._kinds)

    def parse(self, arguments: list[str], *, permute: bool = False) -> tuple[dict[str, str], list[str]]:
        """Options by long name, and positional words; the first of those ends the options unless `permute`.

        Raises SlurmError.
        """
        values: dict[str, str] = {}
        others: list[str] = []
        words = arguments[::-1]
        while words:
            word = words.pop()
            if word == "--":
                return values, others + words[::-1]
            if word.startswith("--"):
                name, equals, value = word[2:].partition("=")
                matches = [name] if name in self._kinds else [known for known in self._kinds if known.startswith(name)]
                if len(matches) != 1:
                    problem = f"option '--{name}' is ambiguous" if matches else f"unrecognized option '--{name}'"
                    raise SlurmError(problem)
                name = matches[0]
                if equals and not self._kinds[name]:
                    raise SlurmError(f"option '--{name}' doesn't allow an argument")
                values[name] = value if equals else self._value(name, "", words)
            elif word.startswith("-") and len(word) > 1:
                name = self._letters.get(word[1], "")
                if not name:
                    raise SlurmError(f"invalid option -- '{word[1]}'")
                if word[2:] and not self._kinds[name]:
                    words.append(f"-{word[2:]}")
                    values[name] = ""
                else:
                    values[name] = self._value(name, word[2:], words)
            else:
                others.append(word)
                if not permute:
                    return values, others + words[::-1]
        return values, others

    def _value(self, name: str, attached: str, words: list[str]) -> str:
        if attached or self._kinds[name] != "=":
            return attached
        if not words:
            raise SlurmError(f"option '--{name}' requires an argument")
        return words.pop()


_EFFECTIVE = """
    job-name=/J nodes=/N ntasks=/n ntasks-per-node= cpus-per-task=/c gpus-per-node= gres= exclusive? time=/t signal=
    chdir=/D output=/o error=/e open-mode= requeue no-requeue hold/H parsable test-only partition=/p comment=
    dependency=/d kill-on-invalid-dep= array=/a no-kill?/k
"""
_WITHOUT_EFFECT = """
    account=/A qos=/q constraint=/C mem= mem-per-cpu= mem-per-gpu= cpus-per-gpu= licenses=/L switches= nice? wckey=
    mail-user= mail-type= gpu-bind= export= quiet/Q verbose/v input=/i distribution=/m overcommit/O hint=
    threads-per-core= mem-bind= get-user-env?
"""
_UNSUPPORTED = """
    begin=/b deadline= reservation= nodelist=/w exclude=/x gpus-per-task= gpus=/G wrap= clusters=/M
"""
SBATCH = Options(_EFFECTIVE + _WITHOUT_EFFECT + _UNSUPPORTED)
_REFUSED = Options(_UNSUPPORTED).names
DEFAULT_PARTITION = "main"
PREEMPTABLE = "preemptable"  # jobs of any other partition can preempt its jobs
# The sandbox's partitions; any other name behaves like the default one.
TIERS = {PREEMPTABLE: 1, DEFAULT_PARTITION: 10, "urgent": 100}


_VARIABLES = {"SBATCH_TIMELIMIT": "time", "SBATCH_JOBID": "", "SBATCH_ARRAY_INX": "array"}
_WITHOUT_VALUE = ("exclusive", "requeue", "no-requeue", "hold")


def environment_options(environment: Mapping[str, str]) -> dict[str, str]:
    """The options in SBATCH_*, which override those of the script's lines."""
    found = {}
    for variable, value in environment.items():
        name = _VARIABLES.get(variable, variable.removeprefix("SBATCH_").lower().replace("_", "-"))
        if variable.startswith("SBATCH_") and name in SBATCH.names:
            found[name] = "" if name in _WITHOUT_VALUE else value
    return found


class JobRequest(NamedTuple):
    """A job as requested, with every default filled in."""

    name: str
    nodes: int
    tasks: int
    tasks_per_node: int | None
    cpus_per_task: int | None
    gpus_per_node: int
    exclusive: bool
    time_limit: int | None  # seconds; not rounded up to the next minute, as Slurm does
    warning_signal: int  # 0: none
    warning_lead: int  # seconds before the time limit
    warn_batch_only: bool
    folder: str
    submit_folder: str
    output: str
    error: str
    append: bool
    requeue: bool
    partition: str
    comment: str
    arguments: list[str]
    kill_on_invalid_dependency: bool = False
    gpu_type: str = ""  # empty: any
    array: str = ""  # the argument of --array
    no_kill: bool = False  # it goes on when it loses a node

    @property
    def tier(self) -> int:
        """The priority of the job's partition."""
        return TIERS.get(self.partition, TIERS[DEFAULT_PARTITION])

    @property
    def tasks_on_nodes(self) -> list[int]:
        return spread(self.tasks, self.nodes)

    @property
    def cpus_on_each(self) -> int:
        return max(self.tasks_on_nodes) * (self.cpus_per_task or 1)


def spread(tasks: int, nodes: int) -> list[int]:
    """How many tasks each node gets: as even as possible, the first nodes get one more."""
    return [tasks // nodes + (node < tasks % nodes) for node in range(nodes)]


def script_options(script: str) -> dict[str, str]:
    """The options in the #SBATCH lines before the first command, and names for other systems. Raises SlurmError."""
    values: dict[str, str] = {}
    for line in script.split("\n"):
        if named := re.match(r"#(?:PBS\s+-N|BSUB\s+-J)\s+(\S+)", line):
            values["job-name"] = named[1]
        elif line.startswith("#SBATCH"):
            try:
                words = shlex.split(line.removeprefix("#SBATCH"), comments=True)
            except ValueError as error:
                raise SlurmError(f"Invalid directive found in batch script: {error}") from None
            values.update(SBATCH.parse(words)[0])
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    return values


def make_request(options: dict[str, str], arguments: list[str], name: str, folder: str) -> JobRequest:
    """Interpret `options`. `name` is the default job name, `folder` where sbatch was called. Raises SlurmError."""
    if unsupported := sorted(set(options) & _REFUSED):
        raise SlurmError(f"the emulator does not support --{unsupported[0]}")
    per_node = count(options, "ntasks-per-node")
    nodes = count(options, "nodes") or 1
    tasks = count(options, "ntasks") or nodes * (per_node or 1)
    output = options.get("output", "slurm-%A_%a.out" if options.get("array") else "slurm-%j.out")
    kill_on_invalid = options.get("kill-on-invalid-dep", "no").lower()
    gpus, gpu_type = _gpus(options)
    number, lead, batch_only = _signal(options.get("signal", ""))
    if kill_on_invalid not in ("yes", "no"):
        raise SlurmError("Invalid --kill-on-invalid-dep specification")
    return JobRequest(
        name=options.get("job-name", name),
        nodes=min(nodes, tasks),
        tasks=tasks,
        tasks_per_node=per_node,
        cpus_per_task=count(options, "cpus-per-task"),
        gpus_per_node=gpus,
        gpu_type=gpu_type,
        exclusive="exclusive" in options,
        time_limit=parse_time(options["time"]) if "time" in options else None,
        warning_signal=number,
        warning_lead=lead,
        warn_batch_only=batch_only,
        folder=str(Path(folder, options.get("chdir", ""))),
        submit_folder=folder,
        output=output,
        error=options.get("error", output),
        append=options.get("open-mode", "truncate").startswith("a"),
        requeue="no-requeue" not in options,
        partition=options.get("partition", DEFAULT_PARTITION),
        comment=options.get("comment", ""),
        kill_on_invalid_dependency=kill_on_invalid == "yes",
        arguments=arguments,
        array=options.get("array", ""),
        no_kill=options.get("no-kill", "off") != "off",
    )


def parse_time(text: str) -> int | None:
    """Seconds from M, M:S, H:M:S, D-H, D-H:M or D-H:M:S; None for no limit. Raises SlurmError."""
    if text.upper() in ("UNLIMITED", "INFINITE", "-1", "0"):
        return None
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text, re.ASCII)
    if not match:
        raise SlurmError(f"Invalid --time specification: {text}")
    numbers = [int(part) for part in match.groups()[1:] if part]
    units = [3600, 60, 1] if match[1] or len(numbers) == 3 else [60, 1]
    return int(match[1] or 0) * 86400 + sum(number * unit for number, unit in zip(numbers, units, strict=False))


def parse_signal(text: str) -> int:
    """The number of the signal "USR1", "SIGUSR1" or "10". Raises SlurmError."""
    name = text.upper()
    try:
        return signal.Signals(int(name)) if name.isdigit() else signal.Signals[f"SIG{name.removeprefix('SIG')}"]
    except (KeyError, ValueError):
        raise SlurmError(f"Unknown job signal: {text}") from None


def count(options: dict[str, str], name: str) -> int | None:
    """The positive whole number in an option, or None. Raises SlurmError."""
    if name not in options:
        return None
    text = options[name]
    if not (text.isascii() and text.isdigit() and int(text)):
        raise SlurmError(f'Invalid numeric value "{text}" for --{name}.')
    return int(text)


def _signal(text: str) -> tuple[int, int, bool]:
    """[B:]SIGNAL[@SECONDS]; 60 seconds by default, as in Slurm."""
    if not text:
        return 0, 0, False
    scope, _, rest = text.rpartition(":")
    name, _, lead = rest.partition("@")
    if scope.upper() not in ("", "B") or not (lead or "0").isdigit():
        raise SlurmError(f"Invalid signal specification: {text}")
    return int(parse_signal(name)), int(lead or 60), scope.upper() == "B"


def _gpus(options: dict[str, str]) -> tuple[int, str]:
    """Number and type from --gpus-per-node=[type:]N, else --gres=gpu[:type][:N]."""
    if "gpus-per-node" in options:
        kind, _, number = options["gpus-per-node"].rpartition(":")
    else:
        words = [word.partition(":") for word in options.get("gres", "").split(",")]
        kind, _, number = next((rest or "1" for name, _, rest in words if name == "gpu"), "0").rpartition(":")
    if not (number.isascii() and number.isdigit()):
        raise SlurmError(f"Invalid GPU specification: {number}")
    return int(number), kind
