"""Converts a user's batch script to a job: a pure function of its text that reports what it cannot convert.

`#SBATCH` options become [resources], preparatory lines become `setup` and `env`, and the one line that starts the
program becomes `argv`. Loops, several programs, here-documents and the like are reported, not guessed at.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import shlex
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterctl.launcher.config import user_script
from clusterctl.launcher.config.resolution import contradictions
from clusterctl.launcher.config.secrets import HIDDEN, written_secrets
from clusterctl.shared.node import script_srun
from clusterctl.shared.spec import Cluster, Job, Resources, from_record
from clusterctl.shared.spec.keys import as_toml, put
from clusterctl.shared.spec.records import InvalidRecord
from clusterctl.shared.spec.values import as_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_SETUP = frozenset({"module", "ml", "source", ".", "conda", "mamba", "micromamba", "spack", "ulimit", "umask", "unset"})
_STARTS = re.compile(r"(?:.*/)?(?:srun|torchrun|python[0-9.]*|accelerate|deepspeed|mpirun|mpiexec|horovodrun)")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_SUBSTITUTED = re.compile(r"""\w+="?(?:\$\(.*\)|`.*`)"?""", re.DOTALL)
# Redirections of the output, which the run's logs replace.
_OUTPUT = re.compile(
    r"\s(?:2>&1\s*)?(?:\|\s*tee\s+(?:-a\s+)?[^\s&|;<>]+|[12&]?>>?\s*[^\s&|;<>]+)(?:\s*2>(?:&1|\s*[^\s&|;<>]+))?\s*$"
)
_QUOTED = re.compile(r"""'[^']*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)
_SEVERAL = re.compile(r"[|;<>&]")
_FOR_A_SHELL = re.compile(r"[$`*?~{}()\[\]]")
_NUMBER_OF_TASKS = re.compile(r"#SBATCH.*\s(?:--ntasks[=\s]|-n)")
_OURS = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"})
_QUIET = {"set", "echo", "date", "hostname", "pwd", "printenv", "nvidia-smi", "whoami", "wait", "exit", "printf"}


@dataclass(frozen=True)
class CarriedLine:
    """A statement of the script and its conversion: keys with values, or the reason why there are none."""

    number: int
    text: str
    became: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class Converted:
    """The content of a job file, and the source of each value."""

    job: dict[str, Any]
    rows: tuple[CarriedLine, ...]

    @property
    def is_whole(self) -> bool:
        """Whether the job does all that the script does."""
        return not any(row.problem for row in self.rows)


def convert(text: str) -> Converted:
    """Convert the batch script `text` to a job."""
    script, conversion = [*statements(text)], _Conversion()
    starts = [one for one in script if not one.problem and _starts(one.text)]
    in_turn = sorted(script, key=lambda one: bool(_NUMBER_OF_TASKS.match(one.text)))  # depends on the number of nodes
    rows = sorted((conversion.row(one, several=len(starts) > 1) for one in in_turn), key=lambda row: row.number)
    if not starts:
        rows.append(CarriedLine(0, "", problem="no line starts a program; set argv in the job file"))
    return Converted(conversion.job, tuple(rows))


class _Conversion:
    """Builds the job statement by statement."""

    def __init__(self) -> None:
        self.job: dict[str, Any] = {"workload": "command"}

    def row(self, one: Statement, *, several: bool) -> CarriedLine:
        if secrets := written_secrets(one.text):
            hidden = one.text
            for secret in secrets.values():
                hidden = hidden.replace(secret, HIDDEN)
            problem = f"looks like a secret: {', '.join(secrets)}; a job file may be read by others"
            return CarriedLine(one.number, hidden, problem=problem)
        if one.problem:
            return _left_out(one, one.problem)
        try:
            if one.text.startswith("#SBATCH"):
                options, rest = split_options(words_of(one.text.removeprefix("#SBATCH")), srun=False)
                problem = f"not an option: {' '.join(rest)}" if rest else ""
                keys: dict[str, Any] = {}
                for name, value in options:
                    found, why = carried_option(name, value)
                    keys |= found
                    problem = problem or why
                return self._carried(one, keys, problem)
            if _starts(one.text):
                if several:
                    return CarriedLine(
                        one.number, one.text, problem="one of several programs; a job runs only one, see `after=`"
                    )
                return self._program(one)
            return self._preparation(one)
        except UnclearWords as error:
            return _left_out(one, str(error))

    def _preparation(self, one: Statement) -> CarriedLine:
        first = (one.text.split() or [""])[0]
        exported = first in ("export", "declare", "typeset")
        setup = [*self.job.get("setup", ()), one.text]
        if exported or _SUBSTITUTED.fullmatch(one.text) or all(map(_ASSIGNMENT.fullmatch, words_of(one.text))):
            text = one.text.removeprefix(first) if exported else one.text
            if _needs_shell(text) or _SEVERAL.search(_unquoted(text)):  # what a shell has to expand goes into `setup`
                names = {match[1] for match in map(_ASSIGNMENT.match, text.split()) if match}
                if names & _OURS:
                    return _left_out(one, "set by clusterctl for each rank")
                setup[-1] = one.text if one.text.startswith("export ") else f"export {one.text}"
                return self._carried(one, {"setup": setup})
            pairs = [_ASSIGNMENT.fullmatch(word) for word in words_of(text)]
            if not all(pairs):  # such as `export NAME`
                return self._carried(one, {"setup": setup})
            values = {pair[1]: pair[2] for pair in pairs if pair}  # constants become `env`
            ours = sorted(_OURS & {*values})
            problem = f"set by clusterctl for each rank: {', '.join(ours)}" if ours else ""
            keys = {f"env.{name}": value for name, value in values.items() if name not in ours}
            return self._carried(one, keys, problem)
        if first in _SETUP or one.text.startswith("eval "):
            return self._carried(one, {"setup": setup})
        if first == "cd":
            if re.fullmatch(r"""cd\s+["']?\$\{?SLURM_SUBMIT_DIR\}?["']?""", one.text):
                return CarriedLine(one.number, one.text, ("code: the folder you submit from",))
            if not _needs_shell(one.text) and not _SEVERAL.search(one.text) and len(words_of(one.text)) == 2:
                return self._carried(one, {"code": words_of(one.text)[1]})
        if first in _QUIET:
            return _left_out(one, "not needed to run the program; add it to `setup` if you need it")
        problem = "purpose unknown; put lines to run on the host into `setup`"
        return _left_out(one, problem)

    def _program(self, one: Statement) -> CarriedLine:
        output = _OUTPUT.search(_QUOTED.sub(lambda quoted: "q" * len(quoted[0]), one.text))
        text = one.text[: output.start()] if output else one.text
        problem = "the output goes to the run's logs: clusterctl logs RUN" if output else ""
        if _SEVERAL.search(_unquoted(text)):
            return CarriedLine(
                one.number, one.text, problem="more than one command, or a redirection: put it into a script"
            )
        words = words_of(text)
        keys: dict[str, Any] = {}
        while words and (pair := _ASSIGNMENT.fullmatch(words[0])):
            keys[f"env.{pair[1]}"] = pair[2]
            words.pop(0)
        if keys and _needs_shell(text):
            raise UnclearWords("an assignment that a shell has to expand, before a command")
        words = words[1:] if words[:1] in (["exec"], ["time"]) else words
        each_task = PurePath(words[0]).name == "srun"
        if each_task:
            options, words = split_options(words[1:], srun=True)
            for name, value in options:
                found, why = carried_option(name, value, srun=True)
                keys |= found
                problem = problem or why
        else:
            keys["resources.tasks_per_node"] = 1
            if self.job.get("resources", {}).get("nodes", 1) > 1:
                problem = problem or "without srun it ran only on the first node; here it runs once on every node"
        if not words:
            return _left_out(one, "srun has no program to start")
        if _needs_shell(text):
            words = ["bash", "-c", _as_written(text, words)]
            problem = problem or "expanded by a shell in each task"
        return self._carried(one, {"argv": words, **keys}, problem)

    def _carried(self, one: Statement, keys: dict[str, Any], problem: str = "") -> CarriedLine:
        """Add those `keys` to the job that it supports."""
        if (tasks := keys.pop("ntasks", None)) is not None:
            resources = {f"resources.{name}": value for name, value in self.job.get("resources", {}).items()} | keys
            if "resources.tasks_per_node" not in resources:
                found, why = total_tasks(tasks, resources.get("resources.nodes"))
                keys, problem = keys | found, problem or why
            elif not keys:
                problem = problem or f"resources.tasks_per_node is {resources['resources.tasks_per_node']} already"
        became = []
        for key, value in keys.items():
            if why := self._wrong(key, value):
                problem = problem or why
            else:
                put(self.job, tuple(key.split(".", 2)), value)
                became.append(key if key == "setup" else f"{key} = {as_toml(value)}")
        return CarriedLine(one.number, one.text, tuple(became), problem)

    def _wrong(self, key: str, value: Any) -> str:
        """Why a job cannot have this value; empty if it can."""
        if key == "code" and not value.startswith(("/", "~")):
            return "a folder below the current one; submit from there, or set `code`"
        trial: dict[str, Any] = {"name": "trial", "workload": "command", "argv": ["true"]}
        put(trial, tuple(key.split(".", 2)), value)
        try:
            job = from_record(Job, trial, parse=True)
        except InvalidRecord as error:
            return error.message
        return next((str(problem) for problem in contradictions(job, Cluster(name="trial"))), "")


def _left_out(one: Statement, problem: str) -> CarriedLine:
    return CarriedLine(one.number, one.text, problem=problem)


def _needs_shell(text: str) -> bool:
    return bool(_FOR_A_SHELL.search(re.sub(r"'[^']*'", "", text)))


def _unquoted(text: str) -> str:
    return _QUOTED.sub("", text)


def _starts(text: str) -> bool:
    """Whether a statement starts the training program."""
    try:
        words = words_of(text)
    except UnclearWords:
        return False
    named = itertools.dropwhile(lambda word: _ASSIGNMENT.fullmatch(word) or word in ("exec", "time"), words)
    return bool(_STARTS.fullmatch(next(named, "")))


def _as_written(text: str, words: list[str]) -> str:
    """The tail of `text` that consists of these words."""
    for blank in re.finditer(r"^|\s", text):
        with suppress(UnclearWords):
            if words_of(text[blank.end() :]) == words:
                return text[blank.end() :].strip()
    raise UnclearWords("cannot find where the command starts")


# Parses a user's batch script as text: options and statements with line numbers. Nothing is ever executed.


_HERE = re.compile(r"""(?<!<)<<-?\s*(["']?)(\w+)\1""")
_AT_COMMAND = r"(?:^|[;&|]|\b(?:do|then|else)\b)\s*"
_OPENS = re.compile(_AT_COMMAND + r"(?:for|while|until|select|if|case)\b|(?:^|\s)\{\s*$")
_FUNCTION = re.compile(r"^\s*(?:function\b|\w+\s*\(\))")
_CLOSES = re.compile(_AT_COMMAND + r"(?:done|fi|esac)\b|^\s*\}")
_CONTAINER_FLAGS = {"container-writable": "writable", "container-mount-home": "mount_home"}
_CONTAINER_FLAGS |= {"container-remap-root": "remap_root", "container-entrypoint": "entrypoint"}
# pyxis's options, which sbatch and srun have where it is installed.
_PYXIS = {f"container-{name}": "=" for name in ("image", "mounts", "name", "workdir")}
_PYXIS |= dict.fromkeys((*_CONTAINER_FLAGS, "no-container-mount-home"), "")
_SBATCH = user_script.KINDS | _PYXIS, user_script.LETTERS
# script_srun knows no options with which tasks must start untouched.
_SRUN = script_srun.KINDS | {"unbuffered": "", "pty": "?"} | _PYXIS, script_srun.LETTERS | {"u": "unbuffered"}


class Statement(NamedTuple):
    """One statement of a script, possibly of several lines, at line `number`. `problem`: why it is not analysed."""

    number: int
    text: str
    problem: str = ""


class UnclearWords(Exception):
    """Words that cannot be split into options and arguments, because an option is unknown."""


def statements(text: str) -> Iterator[Statement]:
    """The lines of the script without blanks and comments, but with `#SBATCH` lines; continued lines are joined."""
    lines = text.replace("\r\n", "\n").split("\n")
    position, begun = 0, False
    while position < len(lines):
        number, line = position + 1, lines[position]
        position += 1
        if line.startswith("#SBATCH"):
            yield Statement(number, line, "sbatch ignores options after the first command" if begun else "")
            continue
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        begun = True
        while position < len(lines) and _continues(line):
            line += "\n" + lines[position]
            position += 1
        problem, depth = "", _depth(line)
        if here := _HERE.search(line):
            problem, depth = "a here-document", 0
            while position < len(lines) and not line.endswith(f"\n{here[2]}"):
                line += "\n" + lines[position].strip("\t")
                position += 1
        elif _OPENS.search(line) or _FUNCTION.match(line):
            problem = "a loop, a condition or a function"
        while depth > 0 and position < len(lines):
            line += "\n" + lines[position]
            depth += _depth(lines[position])
            position += 1
        yield Statement(number, line.replace("\\\n", " ").strip(), problem)


def words_of(text: str) -> list[str]:
    """The words of one command. Raises UnclearWords for an open quote."""
    try:
        return shlex.split(text, comments=True)
    except ValueError as error:
        raise UnclearWords(str(error)) from error


def split_options(words: Sequence[str], *, srun: bool) -> tuple[list[tuple[str, str | None]], list[str]]:
    """The options at the beginning of `words`, by their long names, and the remaining words.

    sbatch's may be those of a site's plugins: the word after an unknown one is taken as its value unless it is an
    option too. Of srun, unknown options raise UnclearWords.
    """
    kinds, letters = _SRUN if srun else _SBATCH
    rest, options = list(words), list[tuple[str, str | None]]()
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        name, equals, value = user_script.parted_option(word, kinds, letters)
        if not name and word.startswith("--") and not srun:
            name = word[2:].partition("=")[0]
        if not name:
            raise UnclearWords(f"unknown option: {word}")
        kind = kinds.get(name)
        if kind not in ("=", "?", None) and value and not equals:  # -HQ
            rest.insert(0, f"-{value}")
            value = ""
        if rest and not equals and not value and (kind == "=" or (kind is None and not rest[0].startswith("-"))):
            equals, value = "=", rest.pop(0)
        options.append((name, value if equals or value else None))
    return options, rest


def _continues(text: str) -> bool:
    """Whether a statement continues on the next line: after a backslash, or in an open quote."""
    if re.search(r"(?<!\\)(?:\\\\)*\\$", text):
        return True
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return True
    return False


def _depth(line: str) -> int:
    return len(_OPENS.findall(line)) - len(_CLOSES.findall(line))


# Translates options of sbatch and srun into keys of a job.


_KEYS = {field.name.replace("_", "-"): field.name for field in dataclasses.fields(Resources)}
_KEYS |= {"mem": "memory", "ntasks-per-node": "tasks_per_node"}
for _own in ("memory", "tasks-per-node", "warning", "local-code", "numa", "sbatch"):  # no options of sbatch
    del _KEYS[_own]
_WHOLE_NUMBERS = {"nodes", "ntasks-per-node", "cpus-per-task", "cpus-per-gpu", "nice"}
_NUMBER = re.compile(r"[0-9]{1,9}")
_CONTAINER = {"container-image": "image", "container-workdir": "workdir"}
_REPLACED = {
    **dict.fromkeys(
        ("output", "error", "open-mode", "label", "unbuffered"), "each run keeps its logs: clusterctl logs RUN"
    ),
    "array": "a run is one job; to vary settings: clusterctl submit JOB --sweep KEY=VALUES",
    "hold": "hold a run when submitting: clusterctl submit JOB --hold",
    "wait": "wait for a run when submitting: clusterctl submit JOB --wait",
    "kill-on-bad-exit": "clusterctl already ends the other ranks when one fails",
    "mpi": "set `mpi` in the cluster file",
}

Keys = dict[str, Any]


def carried_option(name: str, value: str | None, *, srun: bool = False) -> tuple[Keys, str]:
    """The keys equivalent to an option, and what they do not cover or why there are none."""
    if name in _REPLACED:
        return {}, _REPLACED[name]
    if name in _CONTAINER:
        return {f"container.{_CONTAINER[name]}": value or ""}, ""
    if name in _CONTAINER_FLAGS:
        return {f"container.{_CONTAINER_FLAGS[name]}": True}, ""
    match name, value:
        case "container-mounts", str():
            return {"container.mounts": value.split(",")}, ""
        case "job-name", str():
            return {"name": as_name(value)}, ""
        case "chdir", str():
            return {"code": value}, ""
        case "ntasks", str() if _NUMBER.fullmatch(value):
            return {"ntasks": int(value)}, ""
        case "gres", str():
            return _gres(value)
        case "gpus-per-node", str():
            return {"resources.gpus_per_node": _gpus(value)}, ""
        case "no-requeue", None:
            return {"resources.requeue": False}, ""
        case "exclusive" | "requeue", None:
            return {f"resources.{name}": True}, ""
        case "signal", str() if seconds := re.fullmatch(r"(?:R|B|RB|BR)?:?\w+@([0-9]{1,9})", value):
            return {"resources.warning": int(seconds[1])}, "clusterctl sends its own: runs.stop_requested()"
        case "export", str():
            pairs = [part.partition("=") for part in value.split(",")]
            problem = "" if value.startswith("ALL") else "the tasks get the batch script's full environment"
            return {f"env.{name}": text for name, equals, text in pairs if equals}, problem
    if name in _KEYS and value is not None:
        whole = name in _WHOLE_NUMBERS and _NUMBER.fullmatch(value)
        return {f"resources.{_KEYS[name]}": int(value) if whole else value}, ""
    if srun:
        return {}, f"srun option: add --{name} to `srun_args` in the cluster file if you need it"
    return {f"resources.sbatch.{name}": value or ""}, ""


def total_tasks(tasks: int, nodes: object) -> tuple[Keys, str]:
    """Converts a total number of tasks to tasks per node."""
    if tasks == 1 and nodes is None:
        return {"resources.tasks_per_node": 1}, ""
    if isinstance(nodes, int) and nodes > 0 and tasks % nodes == 0:
        return {"resources.tasks_per_node": tasks // nodes}, ""
    return {}, "set resources.nodes and resources.tasks_per_node: ranks are counted by node"


def _gres(value: str) -> tuple[Keys, str]:
    """`gpu:a100:4,nvme:1` -> GPUs and the remaining resources."""
    parts = value.split(",")
    gpus = [part.removeprefix("gpu").removeprefix(":") for part in parts if re.fullmatch(r"gpu(?::.*)?", part)]
    others = [part for part in parts if not re.fullmatch(r"gpu(?::.*)?", part)]
    keys: Keys = {"resources.gpus_per_node": _gpus(gpus[0])} if gpus else {}
    keys |= {"resources.gres": ",".join(others)} if others else {}
    return keys, "several GPU types: a job has only one" if len(gpus) > 1 else ""


def _gpus(value: str) -> int | str:
    """4, "a100:4", or just a type, which means one GPU to sbatch."""
    if not value or _NUMBER.fullmatch(value):
        return int(value or 1)
    return value if ":" in value else f"{value}:1"
