"""How clusterctl starts Python for itself, so that nothing is imported from the current folder.

Python imports from there with `-m` and `-c`, and, even with -P, for each empty or relative entry of PYTHONPATH. The
current folder may be /tmp, or an archive unpacked a minute ago. None of this applies to users' own programs:
`python -m package` works in their folder.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # like typing's; shell completion waits for imports
if TYPE_CHECKING:
    from collections.abc import Mapping

_NAMES_FOLDERS = ("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONPYCACHEPREFIX")
# `sys` is built in: this runs before anything is imported. Python before 3.11 knows no -P.
_NOT_FROM_HERE = "import sys; getattr(sys.flags, 'safe_path', False) or sys.path.pop(0)\n"


def isolated(python: str, *words: str) -> list[str]:
    """Start a program that needs only the standard library: its path, or `-c` and its text, and its arguments."""
    return [python, "-I", "-S", *words]


def with_packages(python: str, *words: str) -> list[str]:
    """Start a program that needs packages: `-m` and its name, for example. `python` must be 3.11 or later."""
    return [python, "-P", *words]


def of_any_version(python: str, program: str, *options: str) -> list[str]:
    """Start the text of a program with an interpreter that may be older than 3.11."""
    return [python, *options, "-c", _NOT_FROM_HERE + program]


def environment(given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment for an interpreter that is not isolated: `given` without relative paths for Python."""
    found = dict(given)
    for name in _NAMES_FOLDERS:
        if name in found:
            found[name] = os.pathsep.join(filter(os.path.isabs, found[name].split(os.pathsep)))
            if not found[name]:  # an empty value may have a meaning, too
                del found[name]
    return found


def adding(*packages: str) -> str:
    """The command to type that installs packages of others beside this Python.

    clusterctl itself is never named: an index may have another project's package of that name.
    """
    import shlex
    import shutil
    import sys
    from importlib.util import find_spec

    if find_spec("pip") is None and shutil.which("uv"):  # as in the environment that `uv tool install` makes
        return shlex.join(["uv", "pip", "install", "--python", sys.executable, *packages])
    pip = shlex.join([sys.executable, "-m", "pip", "install", *packages])
    return pip if find_spec("pip") else f"{shlex.join([sys.executable, '-m', 'ensurepip'])} && {pip}"
