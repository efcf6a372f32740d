"""Builds the Python environments that jobs' lock files ask for: once each, for all runs and submissions.

ENVIRONMENTS/<key>/                 a venv; the key is that of its packages, Python and platform
ENVIRONMENTS/<key>/environment.json what is in it, written last
ENVIRONMENTS/.<key>.lease/          while it is built, in a folder inside; renamed when it is complete
ENVIRONMENTS/.users/<key>           links to the folders of runs that may refer to environments
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.launcher.config.environment import RECORD
from clusterctl.launcher.config.locks import without_credentials
from clusterctl.launcher.config.progress import SILENT
from clusterctl.launcher.containers.engine import follow
from clusterctl.shared.errors import ConfigError, reason
from clusterctl.shared.record.files import exists, write_json, write_text
from clusterctl.shared.record.interpreter import environment as environment_of_python
from clusterctl.shared.record.interpreter import isolated, with_packages
from clusterctl.shared.record.once import prepared_once
from clusterctl.shared.record.ownership import make_private, require_own
from clusterctl.shared.record.plain_text import plain
from clusterctl.shared.spec.values import plural

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.launcher.config.environment import Environment
    from clusterctl.launcher.config.locks import Pins
    from clusterctl.launcher.config.progress import ProgressListener

USERS = ".users"
_REQUIREMENTS = "requirements.txt"
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
_UV_FILES = ("/etc/uv/uv.toml", "~/.config/uv/uv.toml")


def build(environment: Environment, runs: Path, progress: ProgressListener = SILENT) -> None:
    """Build `environment` unless it exists, for runs in the folder `runs`; others that ask meanwhile wait.

    Raises ConfigError with the installer's words, and then leaves nothing behind.
    """
    root = environment.folder.parent
    hint = "choose a folder of your own for `environments` in the cluster file"
    try:
        make_private(root, hint)
        _note_user(root, runs)
        if environment.is_built:
            require_own(environment.folder, hint)
            os.utime(environment.folder)  # recent ones are kept although no run refers to them yet (api/clean.py)
            return
        prepared_once(
            environment.folder,
            lambda building: _build(environment, building, progress),
            whole=lambda folder: exists(folder / RECORD),
        )
    except OSError as error:
        message = f"environment: cannot build {environment.lock.name} in {root}: {reason(error)}"
        raise ConfigError(message, "is the disk full? see: df -h") from error


def _note_user(root: Path, runs: Path) -> None:
    """Note that runs in `runs` may refer to environments in `root`: `clean` looks there before it removes one."""
    link = make_private(root / USERS) / hashlib.sha256(os.fsencode(runs)).hexdigest()[:20]
    if not link.is_symlink():
        aside = link.with_name(f".{link.name}.{os.urandom(4).hex()}")
        aside.symlink_to(runs)
        aside.rename(link)


def _build(environment: Environment, building: Path, progress: ProgressListener) -> None:
    wanted, facts = environment.wanted, environment.facts
    if not wanted or not facts:  # of an earlier run
        raise ConfigError(f"environment: {environment.folder} was removed", "give its lock file again")
    begun = time.time()
    count = plural(len(wanted.packages), "package")
    progress.stage(f"building the environment of {wanted.file}: {count}, Python {facts.python}")
    _run("venv", isolated(facts.base, "-m", "venv", "--without-pip", str(building)), progress, environment_of_python())
    python = str(building / "bin" / "python")
    requirements = building / _REQUIREMENTS
    write_text(requirements, wanted.requirements)
    installer = _install(environment, python, requirements, progress)
    requirements.unlink()
    # Their bytecode, with the final names; ranks could not write it at the same time.
    jobs = str(min(4, os.cpu_count() or 1))
    words = ["-q", "-j", jobs, "-s", str(building), "-p", str(environment.folder), str(building / "lib")]
    follow(isolated(python, "-m", "compileall", *words), _silent, environment_of_python())
    for path in (building / "pyvenv.cfg", *(building / "bin").iterdir()):
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            moved = content.replace(os.fsencode(building), os.fsencode(environment.folder))
            if moved != content:  # programs and `activate` contain the path of the environment
                path.write_bytes(moved)
    record = {
        "lock": wanted.file,
        "python": facts.python,
        "platform": facts.platform,
        "base": facts.base,
        "installer": installer,
        "created": begun,
        "seconds": round(time.time() - begun, 3),
        "packages": {one.name: one.version or without_credentials(one.url) for one in wanted.packages},
    }
    write_json(building / RECORD, record)


def _install(environment: Environment, python: str, requirements: Path, progress: ProgressListener) -> str:
    """Install the requirements, by uv where it is, else by pip; returns which."""
    wanted = environment.wanted
    assert wanted
    variables = {name: value for name, value in environment_of_python().items() if name not in _MISLEADING}
    uv = shutil.which("uv")
    name = "uv" if uv else "pip"
    if uv:
        variables |= {"UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1", "NO_COLOR": "1"}
        pip = [uv, "--directory", str(requirements.parent), "pip"]  # not with the settings of a project
        install = [*pip, "install", "--python", python, "--quiet", "--link-mode", "copy"]
        install += ["--index-strategy", "unsafe-best-match"]  # as pip does; hashes decide
        check = [*pip, "check", "--python", python]
    else:
        pip = with_packages(
            sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--python", python
        )
        install = [*pip, "install", "--quiet", "--no-compile", "--no-warn-script-location"]
        check = [*pip, "check"]
    if wanted.index and not _has_own_index(name, variables):
        variables["UV_DEFAULT_INDEX" if uv else "PIP_INDEX_URL"] = wanted.index
    install += ["--no-deps", *([] if environment.builds else ["--only-binary", ":all:"])]
    _run(name, [*install, "-r", str(requirements)], progress, variables, wanted)
    if not wanted.complete:  # nobody has resolved them: they may lack something
        _run(name, check, progress, variables, wanted)
    return name


def _has_own_index(name: str, variables: Mapping[str, str]) -> bool:
    """Whether the user or the site has named a package index, such as a mirror, to the installer."""
    if name == "uv":
        if variables.get("UV_DEFAULT_INDEX") or variables.get("UV_INDEX_URL"):
            return True
        files = [Path(os.path.expanduser(one)) for one in _UV_FILES]  # noqa: PTH111 - total
        return any(
            re.search(r"(?m)^\s*(index-url\b|default\s*=\s*true)", one.read_text()) for one in files if one.is_file()
        )
    if variables.get("PIP_INDEX_URL"):
        return True
    pip = with_packages(sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list")
    _, output = follow(pip, _silent, variables)
    return any(re.match(r"\w+\.index-url=", line) for line in output)


def _run(
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
    again = (
        "uv lock" if not wanted or wanted.complete else f"uv pip compile requirements.in --output-file {wanted.file}"
    )
    hint = f"is it complete, and its index reachable? to lock it again: {again}"
    if "No module named pip" in said:
        what, hint = "environment: there is neither uv nor pip to build it with", "python -m ensurepip, or install uv"
    elif "No space left" in said or "Disk quota" in said:
        hint = "see: df -h"
    raise ConfigError(what, hint)


def _words(lines: Sequence[str]) -> str:
    """What an installer printed as its reason, on one line."""
    cleaned = [re.sub(r"^[\s×╰│├─▶]+", "", plain(line)).strip() for line in lines]
    kept = [line for line in cleaned if line and not _MINOR.match(line)]
    text = without_credentials(" ".join(re.sub(r"^(?i:error):\s*", "", line) for line in kept))
    return text if len(text) <= _MOST_WORDS else f"{text[:_MOST_WORDS]} ..."


def _silent(_: str) -> None:
    return
