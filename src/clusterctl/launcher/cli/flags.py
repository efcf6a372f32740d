"""The flags for the arguments and keys that messages name.

Messages serve Python programs, too. They name an argument as "`large_code=True`" and a key of the job as
"`resources.nodes = 2`"; the command line shows the flags that do the same: --large-code, --set resources.nodes=2.
"""

from __future__ import annotations

import json
import re
import shlex

# Arguments whose flag has another name.
_OTHER = {"overrides": "--set", "axes": "--sweep", "file": "--sweep-file", "replacing": "--with", "script": "--from"}
_ARRAY = "resources.sbatch.array"  # other keys get --set, which every command has that may show such a message
_STRING = r'"(?:[^"\\\n]|\\.)*"'  # of JSON: a value that may contain anything
_MARKED = re.compile(rf"`(?P<name>[a-z]\w*(?:\.[\w-]+)*)(?P<equals> ?= ?)(?P<value>(?:{_STRING}|[^`\"\n])*)`")


def flag_of(argument: str) -> str:
    """The flag that corresponds to an argument of the Python API."""
    return _OTHER.get(argument) or f"--{argument.replace('_', '-')}"


def with_flags(text: str) -> str:
    """`text` with flags in place of the arguments and keys that it names."""
    return _MARKED.sub(_flag, text)


def _flag(found: re.Match[str]) -> str:
    name, equals, value = found.group("name", "equals", "value")
    if re.fullmatch(_STRING, value):
        try:
            value = json.loads(value)
        except ValueError:  # a user's own text
            return found[0]
    if equals == "=":
        words = [flag_of(name), *([] if value in ("", "True") else [value])]
    elif equals == " = ":
        words = ["--array", value] if name == _ARRAY else ["--set", f"{name}={value}"]
    else:
        return found[0]
    return shlex.join(words)
