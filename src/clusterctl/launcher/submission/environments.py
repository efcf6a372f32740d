"""Builds the Python environments that jobs' lock files ask for: once each, for all runs and submissions.

ENVIRONMENTS/<key>/                 a venv; the key is that of its packages, Python and platform
ENVIRONMENTS/<key>/environment.json what is in it, written last
ENVIRONMENTS/.<key>.lease/          while it is built, in a folder inside; renamed when it is complete
ENVIRONMENTS/.users/<key>           links to the folders of runs that may refer to environments
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from typing import TYPE_CHECKING

from clusterctl.launcher.config.client_data import client_data
from clusterctl.launcher.config.environment import RECORD
from clusterctl.launcher.config.locks import require_extras, without_credentials
from clusterctl.launcher.config.progress import SILENT
from clusterctl.launcher.containers.engine import follow
from clusterctl.launcher.submission.fetched_wheels import receive
from clusterctl.launcher.submission.installers import (
    has_own_pip_index,
    has_own_uv_index,
    installer_variables,
    pip_of,
    run_installer,
    silent,
)
from clusterctl.shared.errors import ConfigError, reason
from clusterctl.shared.record.files import exists, write_json, write_text
from clusterctl.shared.record.interpreter import environment as environment_of_python
from clusterctl.shared.record.interpreter import isolated
from clusterctl.shared.record.once import prepared_once
from clusterctl.shared.record.ownership import make_private, require_own
from clusterctl.shared.spec.values import plural

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from clusterctl.launcher.config.environment import Environment
    from clusterctl.launcher.config.progress import ProgressListener

USERS = ".users"
_REQUIREMENTS = "requirements.txt"
# Without internet, an answer should not take minutes.
_IMPATIENT = {"PIP_RETRIES": "1", "PIP_DEFAULT_TIMEOUT": "8", "UV_HTTP_TIMEOUT": "8", "UV_HTTP_RETRIES": "1"}


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
    progress.begin(f"building the environment of {wanted.file}: {count}, Python {facts.python}")
    words = isolated(facts.base, "-m", "venv", "--without-pip", str(building))
    run_installer("venv", words, progress, environment_of_python())
    python = str(building / "bin" / "python")
    requirements, wheels = building / _REQUIREMENTS, building / "wheels"
    write_text(requirements, wanted.requirements)
    client = client_data()
    try:
        installer = _install(environment, python, requirements, progress, _IMPATIENT if client else {})
    except ConfigError:
        if client is None:
            raise
        # Perhaps this machine has no internet: then the one where the command was typed gets the wheels.
        receive(environment, client, wheels, progress)
        write_text(requirements, wanted.offline(wheels))
        installer = _install(environment, python, requirements, progress, wheels=wheels)
        shutil.rmtree(wheels)
    requirements.unlink()
    # Their bytecode, with the final names; ranks could not write it at the same time.
    jobs = str(min(4, os.cpu_count() or 1))
    words = ["-q", "-j", jobs, "-s", str(building), "-p", str(environment.folder), str(building / "lib")]
    follow(isolated(python, "-m", "compileall", *words), silent, environment_of_python())
    for path in (building / "pyvenv.cfg", *(building / "bin").iterdir()):
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            moved = content.replace(os.fsencode(building), os.fsencode(environment.folder))
            if moved != content:  # programs and `activate` contain the path of the environment
                path.write_bytes(moved)
    for folder in (building, building / "bin"):
        folder.chmod(0o700)  # the batch script requires it, whatever the umask allows
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


def _install(
    environment: Environment,
    python: str,
    requirements: Path,
    progress: ProgressListener,
    more: Mapping[str, str] = {},
    *,
    wheels: Path | None = None,
) -> str:
    """Install the requirements, by uv where it is, else by pip; returns which. With `wheels`, from that folder only."""
    wanted = environment.wanted
    assert wanted
    variables = {**installer_variables(), **more}
    uv = shutil.which("uv")
    uv = uv if uv and uv.startswith("/") else None  # never one in the current folder
    name = "uv" if uv else "pip"
    if uv:
        variables |= {"UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1", "NO_COLOR": "1"}
        pip = [uv, "--directory", str(requirements.parent), "pip"]  # not with the settings of a project
        install = [*pip, "install", "--python", python, "--quiet", "--link-mode", "copy"]
        install += ["--index-strategy", "unsafe-best-match"]  # as pip does; hashes decide
        check = [*pip, "check", "--python", python]
    else:
        pip = [*pip_of(environment.facts), "--no-input", "--python", python]
        install = [*pip, "install", "--quiet", "--no-compile", "--no-warn-script-location"]
        check = [*pip, "check"]
    if wheels:
        install += ["--no-index", "--find-links", str(wheels)]
    elif wanted.index and not (has_own_uv_index(variables) if uv else has_own_pip_index(pip, variables)):
        variables["UV_DEFAULT_INDEX" if uv else "PIP_INDEX_URL"] = wanted.index
    install += ["--no-deps", *([] if environment.builds else ["--only-binary", ":all:"])]
    run_installer(name, [*install, "-r", str(requirements)], progress, variables, wanted)
    if not wanted.complete:  # nobody has resolved them: they may lack something
        run_installer(name, check, progress, variables, wanted)
        from importlib.metadata import distributions  # takes 20 ms

        assert environment.facts
        places = [str(one) for one in requirements.parent.glob("lib/python*/site-packages")]
        require_extras(wanted, distributions(path=places), environment.facts.markers)
    return name
