"""pip and uv: their environment, the index that they use, and their words when they refuse."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.launcher.config.locks import without_credentials
from clusterctl.launcher.containers.engine import follow
from clusterctl.shared.errors import ConfigError
from clusterctl.shared.record.files import exists, read_whole
from clusterctl.shared.record.interpreter import environment as environment_of_python
from clusterctl.shared.record.interpreter import with_packages
from clusterctl.shared.record.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.launcher.config.environment import Facts
    from clusterctl.launcher.config.locks import Pins
    from clusterctl.launcher.config.progress import ProgressListener

_MOST_WORDS = 800  # characters of an installer's explanation
# These would install elsewhere, or refuse to install in an environment that is not active.
_MISLEADING: tuple[str, ...] = (
    "PIP_TARGET",
    "PIP_PREFIX",
    "PIP_ROOT",
    "PIP_USER",
    "PIP_REQUIRE_VIRTUALENV",
    "PIP_PYTHON",
    "PIP_DRY_RUN",
)
_MISLEADING += ("UV_TARGET", "UV_PREFIX", "UV_SYSTEM_PYTHON", "UV_PYTHON", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONHOME")
_MINOR = re.compile(r"WARNING:|\[notice\]|Using Python|Checked \d|Found \d|Looking in |Collecting |Downloading ")
_PIP = ("-m", "pip", "--disable-pip-version-check")
_UV_FILES = ("/etc/uv/uv.toml", "~/.config/uv/uv.toml")


def installer_variables() -> dict[str, str]:
    """The environment of pip and uv, without what would make them install elsewhere."""
    return {name: value for name, value in environment_of_python().items() if name not in _MISLEADING}


def pip_of(facts: Facts | None = None) -> list[str]:
    """How to start pip: that of this interpreter or, without one, of that which an environment extends."""
    pips = [with_packages(sys.executable, *_PIP), *([with_packages(facts.base, *_PIP)] if facts else [])]
    for pip in pips:
        if follow([*pip, "--version"], silent, installer_variables())[0] == 0:
            return pip
    message = f"environment: there is neither uv nor pip to build it with: {' or '.join(pip[0] for pip in pips)}"
    raise ConfigError(message, f"{shlex.quote(sys.executable)} -m ensurepip, or install uv")


def has_own_pip_index(pip: Sequence[str], variables: Mapping[str, str]) -> bool:
    """Whether the user or the site has named a package index, such as a mirror, to pip."""
    _, output = follow([*pip, "config", "list"], silent, variables)
    return any(re.match(r"(?:\w+|:env:)\.index-url=", line) for line in output)


def has_own_uv_index(variables: Mapping[str, str]) -> bool:
    """The same for uv."""
    if variables.get("UV_DEFAULT_INDEX") or variables.get("UV_INDEX_URL"):
        return True
    files = (Path(os.path.expanduser(one)) for one in _UV_FILES)  # noqa: PTH111 - total
    named = re.compile(rb"(?m)^\s*(?:index-url\b|default\s*=\s*true)")
    return any(named.search(read_whole(one)) for one in files if exists(one))


def run_installer(
    name: str,
    words: Sequence[str],
    progress: ProgressListener,
    variables: Mapping[str, str],
    wanted: Pins | None = None,
) -> None:
    """Run one step. Raises ConfigError with the program's own words."""

    def output(line: str) -> None:
        progress.output(without_credentials(plain(line)))

    code, last = follow(words, output, variables)
    if code == 0:
        return
    said = _words(last) or f"exit code {code}"
    what = f"environment: {name} refuses {wanted.file}: {said}" if wanted else f"environment: {name}: {said}"
    again = "uv lock"
    if wanted and not wanted.complete:
        again = f"uv pip compile requirements.in --output-file {wanted.file}"
    hint = f"is it complete, and its index reachable? to lock it again: {again}"
    if re.search(r"(?i)no space left|disk quota", said):
        hint = "see: df -h"
    raise ConfigError(what, hint)


def _words(lines: Sequence[str]) -> str:
    """What an installer printed as its reason, on one line."""
    cleaned = [re.sub(r"^[\s×╰│├─▶]+", "", plain(line)).strip() for line in lines]
    kept = [line for line in cleaned if line and not _MINOR.match(line)]
    text = without_credentials(" ".join(re.sub(r"^(?i:error):\s*", "", line) for line in kept))
    return text if len(text) <= _MOST_WORDS else f"{text[:_MOST_WORDS]} ..."


def silent(_: str) -> None:
    return
