"""Converts a user's batch script to a job: a pure function of its text that reports whatever it cannot convert.

`#SBATCH` options become [resources], preparatory lines become `setup` and `env`, and the one line that starts the
program becomes `argv`. Loops, several programs, here-documents and the like are reported, not guessed at.
"""

from __future__ import annotations

import itertools
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from clusterctl.config.resolution import contradictions
from clusterctl.launch.batch_lines import Statement, UnclearWords, split_options, statements, words_of
from clusterctl.launch.batch_options import carried_option, total_tasks
from clusterctl.spec import Cluster, Job, from_record
from clusterctl.spec.keys import as_toml
from clusterctl.spec.overrides import put
from clusterctl.spec.records import InvalidRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def convert(text: str) -> Converted:
    """Convert the batch script `text` to a job."""
    return _Conversion(tuple(statements(text))).result()


class _Conversion:
    """Builds the job statement by statement."""

    def __init__(self, script: Sequence[Statement]) -> None:
        self.job: dict[str, Any] = {"workload": "command"}
        self.script = script

    def result(self) -> Converted:
        starts = [one for one in self.script if not one.problem and _starts(one.text)]
        in_turn = sorted(self.script, key=lambda one: bool(_NUMBER_OF_TASKS.match(one.text)))
        rows = sorted((self._row(one, several=len(starts) > 1) for one in in_turn), key=lambda row: row.number)
        if not starts:
            rows.append(CarriedLine(0, "", problem="no line starts a program; set argv in the job file"))
        return Converted(self.job, tuple(rows))

    def _row(self, one: Statement, *, several: bool) -> CarriedLine:
        if one.problem:
            return _left_out(one, one.problem)
        try:
            if one.text.startswith("#SBATCH"):
                return self._options(one)
            if _starts(one.text):
                if several:
                    return CarriedLine(
                        one.number, one.text, problem="one of several programs; a job runs only one, see `--after`"
                    )
                return self._program(one)
            return self._preparation(one)
        except UnclearWords as error:
            return _left_out(one, str(error))

    def _options(self, one: Statement) -> CarriedLine:
        options, rest = split_options(words_of(one.text.removeprefix("#SBATCH")), guess=True)
        problem = f"not an option: {' '.join(rest)}" if rest else ""
        keys: dict[str, Any] = {}
        for name, value in options:
            found, why = carried_option(name, value)
            keys |= found
            problem = problem or why
        return self._carried(one, keys, problem)

    def _preparation(self, one: Statement) -> CarriedLine:
        first = (one.text.split() or [""])[0]
        exported = first in ("export", "declare", "typeset")
        if exported or _SUBSTITUTED.fullmatch(one.text) or all(map(_ASSIGNMENT.fullmatch, words_of(one.text))):
            return self._assignments(one, one.text.removeprefix(first) if exported else one.text)
        if first in _SETUP or one.text.startswith("eval "):
            return self._carried(one, {"setup": [*self.job.get("setup", ()), one.text]})
        if first == "cd":
            if re.fullmatch(r"""cd\s+["']?\$\{?SLURM_SUBMIT_DIR\}?["']?""", one.text):
                return CarriedLine(one.number, one.text, ("code: the folder you submit from",))
            if not _needs_shell(one.text) and not _SEVERAL.search(one.text) and len(words_of(one.text)) == 2:
                return self._carried(one, {"code": words_of(one.text)[1]})
        if first in _QUIET:
            return _left_out(one, "not needed to run the program; add it to `setup` if you need it")
        problem = "purpose unknown; put lines to run on the host into `setup`"
        return _left_out(one, problem)

    def _assignments(self, one: Statement, text: str) -> CarriedLine:
        """Constants become `env`; values that a shell has to expand become exports in `setup`."""
        if _needs_shell(text) or _SEVERAL.search(_unquoted(text)):
            names = {match[1] for match in map(_ASSIGNMENT.match, text.split()) if match}
            if names & _OURS:
                return _left_out(one, "set by clusterctl for each rank")
            line = one.text if one.text.startswith("export ") else f"export {one.text}"
            return self._carried(one, {"setup": [*self.job.get("setup", ()), line]})
        pairs = [_ASSIGNMENT.fullmatch(word) for word in words_of(text)]
        if not all(pairs):  # such as `export NAME`
            return self._carried(one, {"setup": [*self.job.get("setup", ()), one.text]})
        values = {pair[1]: pair[2] for pair in pairs if pair}
        ours = sorted(_OURS & {*values})
        problem = f"set by clusterctl for each rank: {', '.join(ours)}" if ours else ""
        return self._carried(one, {f"env.{name}": value for name, value in values.items() if name not in ours}, problem)

    def _program(self, one: Statement) -> CarriedLine:
        output = _OUTPUT.search(_QUOTED.sub(lambda quoted: "q" * len(quoted[0]), one.text))
        text = one.text[: output.start()] if output else one.text
        problem = "the output goes to the run's logs: clusterctl logs" if output else ""
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
            options, words = split_options(words[1:], guess=False)
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
            resources = {**self.job.get("resources", {}), **_below("resources", keys)}
            if "tasks_per_node" not in resources:
                found, why = total_tasks(tasks, resources.get("nodes"))
                keys, problem = keys | found, problem or why
            elif not keys:
                problem = problem or f"resources.tasks_per_node is {resources['tasks_per_node']} already"
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


def _below(table: str, keys: dict[str, Any]) -> dict[str, Any]:
    return {key.partition(".")[2]: value for key, value in keys.items() if key.startswith(f"{table}.")}


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
