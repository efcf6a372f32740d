"""Parses a user's batch script as text: options and statements with line numbers. Nothing is ever executed."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_HERE = re.compile(r"""(?<!<)<<-?\s*(["']?)(\w+)\1""")
_AT_COMMAND = r"(?:^|[;&|]|\b(?:do|then|else)\b)\s*"
_OPENS = re.compile(_AT_COMMAND + r"(?:for|while|until|select|if|case)\b|(?:^|\s)\{\s*$")
_FUNCTION = re.compile(r"^\s*(?:function\b|\w+\s*\(\))")
_CLOSES = re.compile(_AT_COMMAND + r"(?:done|fi|esac)\b|^\s*\}")
# From sbatch(1) and srun(1): the short options, and the long options without a value, or with one only after "=".
_LETTERS = {
    "A": "account",
    "a": "array",
    "b": "begin",
    "c": "cpus-per-task",
    "C": "constraint",
    "d": "dependency",
    "D": "chdir",
    "e": "error",
    "G": "gpus",
    "i": "input",
    "J": "job-name",
    "L": "licenses",
    "M": "clusters",
    "m": "distribution",
    "n": "ntasks",
    "N": "nodes",
    "o": "output",
    "p": "partition",
    "q": "qos",
    "S": "core-spec",
    "t": "time",
    "w": "nodelist",
    "x": "exclude",
    "F": "nodefile",
    "B": "extra-node-info",
}
_FLAG_LETTERS = {"H": "hold", "k": "no-kill", "K": "kill-on-bad-exit", "l": "label", "O": "overcommit"}
_FLAG_LETTERS |= {"Q": "quiet", "s": "oversubscribe", "u": "unbuffered", "v": "verbose", "W": "wait"}
_FLAGS = frozenset(
    {"contiguous", "exact", "exclusive", "get-user-env", "hold", "ignore-pbs", "kill-on-bad-exit", "label", "no-kill"}
    | {"no-requeue", "overcommit", "overlap", "oversubscribe", "parsable", "pty", "quiet", "reboot", "requeue"}
    | {"spread-job", "test-only", "unbuffered", "use-min-nodes", "verbose", "wait", "container-writable"}
    | {"container-mount-home", "container-remap-root", "container-entrypoint", "no-container-mount-home"}
)
# Long options with a value and no short form.
_VALUED = frozenset(
    {"container-image", "container-mounts", "container-name", "container-workdir", "cpu-bind", "cpus-per-gpu", "export"}
    | {"gpu-bind", "gpus-per-node", "gpus-per-socket", "gpus-per-task", "gres", "hint", "mem", "mem-bind"}
    | {"mem-per-cpu", "mem-per-gpu", "mpi", "ntasks-per-core", "ntasks-per-node", "ntasks-per-socket", "open-mode"}
    | {"reservation", "signal", "switches", "threads-per-core", "tres-per-task", "wckey"}
)


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


def split_options(words: Sequence[str], *, guess: bool) -> tuple[list[tuple[str, str | None]], list[str]]:
    """The options at the beginning of `words`, by their long names, and the remaining words.

    With `guess`, the word after an unknown option is taken as its value unless it is an option too; without it,
    unknown options raise UnclearWords.
    """
    rest = list(words)
    options: list[tuple[str, str | None]] = []
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        if not word.startswith("--"):
            letter, attached = word[1], word[2:]
            if letter in _FLAG_LETTERS:
                options.append((_FLAG_LETTERS[letter], None))
            elif letter in _LETTERS and (attached or rest):
                options.append((_LETTERS[letter], attached or rest.pop(0)))
            else:
                raise UnclearWords(f"unknown option: {word}")
            continue
        name, equals, value = word[2:].partition("=")
        if equals or name in _FLAGS:
            options.append((name, value if equals else None))
        elif guess or name in _LETTERS.values() or name in _VALUED:
            options.append((name, rest.pop(0) if rest and not rest[0].startswith("-") else None))
        else:
            raise UnclearWords(f"unknown option: {word}")
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
