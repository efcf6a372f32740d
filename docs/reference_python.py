"""The reference page of the Python API: every public name with its signature and docstring."""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import TYPE_CHECKING, Any

import clusterctl
import clusterctl.program
from clusterctl.launcher.api.run import MetricRecords, Output, Runs
from clusterctl.launcher.api.several_clusters import Offer, Offers
from clusterctl.launcher.api.submitting.verify import Examination
from clusterctl.launcher.diagnosis.diagnose import Diagnosis
from clusterctl.launcher.observe.comparison import Comparison
from clusterctl.launcher.observe.state import Status
from clusterctl.launcher.observe.sweeps import SweepSummary

if TYPE_CHECKING:
    from collections.abc import Iterator

# Heading -> names of the package.
_GROUPS = {
    "Submit": ("submit", "submit_stages", "submit_function", "sweep", "load", "plan", "offers", "rerun", "resume"),
    "Find and watch": ("runs", "find", "find_sweep", "jobs", "nodes", "alloc", "give_back", "notify", "track"),
    "Explain and compare": ("why", "diff", "report", "doctor"),
    "Keep": ("export", "usage", "clean", "images", "init"),
    "Runs and sweeps": ("Run", "Sweep", "DryRun"),
}
_RETURNED = (Status, Diagnosis, Comparison, SweepSummary, Examination, Offer, Offers, Runs, MetricRecords, Output)
_INTRODUCTION = """# Python

What `import clusterctl` offers, generated from its docstrings. [From Python](../guides/from-python.md) is the guide.
`print` shows a value as the command line does, a notebook as its table.
"""
_PROGRAM = """
## In your training program

`import clusterctl.program` needs the standard library only.
"""
_UNQUOTED = re.compile(r"'([^']*)'")


def python_page() -> str:
    """The text of the page. Raises KeyError for a public name that is in no group."""
    errors = [
        name
        for name in clusterctl.__all__
        if inspect.isclass(one := getattr(clusterctl, name)) and issubclass(one, Exception)
    ]
    if missing := set(clusterctl.__all__) - {name for names in _GROUPS.values() for name in names} - {*errors}:
        raise KeyError(f"in no group of the reference: {sorted(missing)}")
    lines = [_INTRODUCTION]
    for title, names in _GROUPS.items():
        lines.append(f"## {title}\n")
        for name in names:
            lines += _entry(f"clusterctl.{name}", _of(name))
    lines.append("## What they return\n")
    for cls in _RETURNED:
        lines += _entry(cls.__name__, cls)
    lines.append("## Errors\n")
    lines.append("Each has a `message`, a `hint` and an `exit_code`. A traceback shows the hint, too.\n")
    lines.append("| error | exit code | meaning |\n| --- | --- | --- |")
    for name in errors:
        cls = getattr(clusterctl, name)
        lines.append(f"| `{name}` | {cls.exit_code} | {_first_line(cls)} |")
    lines.append(_PROGRAM)
    for name in ("log", "checkpoint", "latest_checkpoint", "phase", "stop_requested", "request_restart"):
        lines += _entry(f"clusterctl.program.{name}", getattr(clusterctl.program, name))
    return "\n".join(lines).rstrip() + "\n"


def _of(name: str) -> Any:
    """The object of that name; `clusterctl.runs` is a module that can be called."""
    if name == "runs":
        from clusterctl.launcher.api import find

        return find.runs
    return getattr(clusterctl, name)


def _entry(name: str, found: Any) -> Iterator[str]:
    """A function, or a class with its public attributes, which are entries of their own."""
    yield f"### `{name}`\n"
    if not inspect.isclass(found):
        yield _signature(name, found)
        yield _text(found)
        return
    yield _text(found)
    rows = []
    for attribute in _attributes(found):
        one = inspect.getattr_static(found, attribute)
        if isinstance(one, property):
            kind = one.fget and inspect.get_annotations(one.fget).get("return", "")
            rows.append(f"- `{attribute}`: {_plain(kind)}. {_one_line(one)}".rstrip())
        elif not callable(one):
            continue
        else:
            yield f"#### `{name.rpartition('.')[2]}.{attribute}`\n"
            yield _signature(attribute, one)
            yield _text(one)
    known = [f"- `{key}`: {_plain(kind)}" for key, kind in _fields(found)]
    if known or rows:
        yield f"Attributes of `{name.rpartition('.')[2]}`:\n"
        yield "\n".join([*known, *rows]) + "\n"


def _fields(cls: type) -> Iterator[tuple[str, str]]:
    for key, kind in inspect.get_annotations(cls).items():
        if not key.startswith("_") and "ClassVar" not in str(kind):
            yield key, str(kind)


def _attributes(cls: type) -> list[str]:
    return [name for name in vars(cls) if not name.startswith("_") and name not in inspect.get_annotations(cls)]


def _signature(name: str, function: Any) -> str:
    """The call, one parameter per line if it is long."""
    signature = inspect.signature(function)
    kept = [one for key, one in signature.parameters.items() if key not in ("self", "cls")]
    text = _UNQUOTED.sub(r"\1", str(signature.replace(parameters=kept)))
    text = re.sub(r"= <.*? at 0x[0-9a-f]+>", "= ...", text)  # a default without a value that could be typed
    line = f"{name}{text}"
    if len(line) > 100:
        inner, _, after = text[1:].rpartition(")")
        parts = re.split(r", (?=[*\w]+(?::|,|$|\)| =))", inner)
        line = f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){after}"
    return f"```python\n{line}\n```\n"


def _text(found: Any) -> str:
    return textwrap.dedent(inspect.getdoc(found) or "") + "\n"


def _one_line(found: Any) -> str:
    return " ".join((inspect.getdoc(found) or "").split())


def _first_line(found: Any) -> str:
    return (inspect.getdoc(found) or "").split("\n\n")[0].replace("\n", " ")


def _plain(kind: object) -> str:
    return f"`{kind}`" if kind else ""
