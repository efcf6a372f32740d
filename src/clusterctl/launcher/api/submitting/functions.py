"""Submit a function of the project: a run whose program calls it, and whose result comes back as JSON.

The function is named, not pickled: a task imports it from the run's copy of the code, and nothing that a run wrote is
unpickled here.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.launcher.api.settings import settings
from clusterctl.launcher.api.submitting.start import submit
from clusterctl.launcher.config.progress import SILENT
from clusterctl.shared.errors import UsageError
from clusterctl.shared.spec.values import as_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from clusterctl.launcher.api.run import Run
    from clusterctl.launcher.api.settings import Overrides
    from clusterctl.launcher.config.progress import ProgressListener

_MOST_BYTES = 100_000  # of one word of a command line: the kernel takes 128 KiB
_LONGEST_NAME = 64


def submit_function(
    function: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    cluster: str | None = None,
    overrides: Overrides = (),
    progress: ProgressListener = SILENT,
) -> Run:
    """Submit a run that calls `function(*args, **kwargs)` in each of its tasks; `Run.result` returns that of rank 0.

    The function must be at the top of a module below the current folder, which is copied as the run's code. Arguments
    and result are JSON: numbers, texts, booleans, None, lists, and dicts with texts as keys; a tuple in a result comes
    back as a list. Other users of a node can see the arguments in its list of processes.

    Raises UsageError for a function or an argument that cannot be passed on, and what `submit` raises.
    """
    changes = settings(overrides)
    if any(one.startswith("code=") for one in changes):
        raise UsageError("overrides: code: a function comes from the current folder", "leave it out, or change there")
    name, given = _name_of(function, Path.cwd()), dict(kwargs or {})
    for label, value in [*((f"args[{place}]", one) for place, one in enumerate(args)), *given.items()]:
        _require_json(label, value)
    words = json.dumps({"args": args, "kwargs": given})
    if len(words) > _MOST_BYTES:
        hint = "write the data to a file, and pass its path"
        raise UsageError(f"the arguments of {name} take {len(words):,} bytes as JSON", hint)
    short = as_name(name.rpartition(":")[2])[:_LONGEST_NAME]
    if short and not any(one.startswith("name=") for one in changes):
        changes = [f"name={json.dumps(short)}", *changes]
    program = ["python", "-m", "clusterctl.call", name, words]
    return submit(cluster=cluster, program=program, overrides=changes, progress=progress)


def _name_of(function: Callable[..., Any], root: Path) -> str:
    """`MODULE:NAME`, by which a task finds the function in the project `root`. Raises UsageError if it would not."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not name:
        raise UsageError(f"not a function: {function!r}", "pass a function of a file of the project")
    if module == "__main__" or "<" in name:
        hint = "move it to the top of a file of the project, such as functions.py, and: from functions import ..."
        raise UsageError(f"a task cannot import {name}: it is defined in a notebook, a script or a function", hint)
    loaded = sys.modules.get(module)
    file = getattr(loaded, "__file__", None)
    place = root.joinpath(*module.split("."))
    places = (Path(f"{place}.py"), place / "__init__.py")
    if file is None or Path(file).resolve() not in (one.resolve() for one in places):
        where = f"{module} is {file}" if file else f"{module} has no file"
        raise UsageError(f"a task cannot import {name} from {root}: {where}", "work in the folder of the project")
    found: Any = loaded
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not function:
        raise UsageError(f"{module}.{name} is another object", "pass the function by the name that it has there")
    return f"{module}:{name}"


def _require_json(label: str, value: Any) -> None:
    """Raise UsageError unless `value` is the same after a journey as JSON."""
    try:
        same = json.loads(json.dumps(value, allow_nan=False)) == value
    except (TypeError, ValueError, RecursionError):
        same = False
    if not same:
        hint = "pass numbers, texts, lists, dicts with texts as keys, or the path of a file"
        raise UsageError(f"{label} cannot be passed as JSON: {type(value).__name__}", hint)
