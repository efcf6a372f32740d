"""A program on the command line instead of a job file's `argv`: `clusterctl submit -- python train.py --lr 1`.

Its words are passed on unchanged: nothing here splits, quotes or expands them.
"""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import PurePath
from typing import TYPE_CHECKING

from clusterctl.launcher.config.source import Values
from clusterctl.shared.spec.values import as_name

if TYPE_CHECKING:
    from collections.abc import Sequence

ORIGIN = "command line"
_SCRIPT = re.compile(r".+\.(py|sh|bash|pl|R|jl)")
LONGEST_NAME = 64
_INTERPRETERS = {".py": "python", ".sh": "bash"}


def without_job_file(program: Sequence[str]) -> Values:
    """The values of a job file that would only run `program`."""
    values = Values()
    values.put(("workload",), "command", ORIGIN)
    values.put(("name",), program_name(program), "program name")
    return values


def program_name(program: Sequence[str]) -> str:
    """A run name for `program`: from its script, its module, or the executable."""
    words = [str(word) for word in program]
    scripts = (PurePath(word).stem for word in words if _SCRIPT.fullmatch(word))
    modules = (module.rpartition(".")[2] for flag, module in itertools.pairwise(words) if flag == "-m")
    found = next(itertools.chain(scripts, modules, (PurePath(word).name for word in words[:1])), "")
    return as_name(found)[:LONGEST_NAME] or "command"


def with_interpreter(program: Sequence[str]) -> list[str]:
    """The command that runs `program`, which may begin with a script."""
    words = [str(word) for word in program]
    interpreter = _INTERPRETERS.get(PurePath(words[0]).suffix) if words else None
    return [interpreter, *words] if interpreter else words


def needs_interpreter(program: Sequence[str]) -> bool:
    """Whether `program` begins with the bare name of a script, which is looked up on PATH like any program."""
    return [*program[:1]] != with_interpreter(program)[:1] and "/" not in program[0]


def command_of(program: Sequence[str]) -> str:
    """The command to type that submits `program`."""
    return shlex.join(["clusterctl", "submit", "--", *with_interpreter(program)])


def parted(typed: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split a command line at `--` into clusterctl's part and the program."""
    end = typed.index("--") if "--" in typed else len(typed)
    return [*typed[:end]], [*typed[end:]]


def with_options(typed: Sequence[str], options: Sequence[str]) -> list[str]:
    """The command line `typed` with more options, inserted before its program if it has one."""
    ours, program = parted(typed)
    return [*ours, *options, *program]
