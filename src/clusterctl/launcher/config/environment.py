"""Which Python environment a job's lock file leads to: one folder per content, Python and platform.

It is built by `launcher/submission/environments.py`; this decides its name, without writing anything.
"""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.launcher.config.locks import (
    lock_text,
    older_than_project,
    read_pins,
    require_wheels,
    without_credentials,
)
from clusterctl.launcher.config.places import expanded, runs_folder
from clusterctl.shared.errors import ConfigError, reason
from clusterctl.shared.record.files import exists
from clusterctl.shared.record.interpreter import environment as environment_of_python
from clusterctl.shared.record.interpreter import of_any_version
from clusterctl.shared.record.layout import BUILT, ENVIRONMENT_RECORD, own_place
from clusterctl.shared.spec.values import plural

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from clusterctl.launcher.config.locks import Pins
    from clusterctl.shared.record.layout import RunDir
    from clusterctl.shared.spec import Cluster, Job

OLDEST = (3, 11)  # of the process beside a program
_FORMAT = 1  # of the folder: another one makes another name
_NEEDED = ("torch", "torch-geometric", "numpy", "scipy")  # by clusterctl's own workloads
_SECONDS = 30
_ASK = """
import json, os, platform, sys
implementation = sys.implementation
version = "%d.%d.%d" % implementation.version[:3]
if implementation.version[3] != "final":
    version += implementation.version[3][0] + str(implementation.version[4])
libc = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else ""
print(json.dumps({
    "base": getattr(sys, "_base_executable", None) or sys.executable,
    "libc": libc or "",
    "markers": {
        "implementation_name": implementation.name,
        "implementation_version": version,
        "os_name": os.name,
        "platform_machine": platform.machine(),
        "platform_python_implementation": platform.python_implementation(),
        "platform_release": platform.release(),
        "platform_system": platform.system(),
        "platform_version": platform.version(),
        "python_full_version": platform.python_version(),
        "python_version": "%d.%d" % sys.version_info[:2],
        "sys_platform": sys.platform,
    },
}))
"""


@dataclass(frozen=True)
class Facts:
    """The interpreter that an environment extends, and its platform."""

    base: str
    libc: str  # such as "glibc 2.36"; empty for musl
    markers: Mapping[str, str]  # those of PEP 508

    @property
    def python(self) -> str:
        return self.markers["python_full_version"]

    @property
    def platform(self) -> str:
        return " ".join(filter(None, (self.markers["sys_platform"], self.markers["platform_machine"], self.libc)))


@dataclass(frozen=True)
class Environment:
    """A job's environment. `wanted` is None for that of an earlier run, which was built then."""

    folder: Path
    lock: Path
    wanted: Pins | None = None
    facts: Facts | None = None
    builds: bool = False  # whether packages without a wheel may be built

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    @property
    def is_built(self) -> bool:
        return exists(self.folder / ENVIRONMENT_RECORD)

    def __str__(self) -> str:
        if not self.wanted or not self.facts:
            return f"environment: as built for the earlier run, in {self.folder}"
        left_out = f"; not installed: {', '.join(self.wanted.left_out)}" if self.wanted.left_out else ""
        place = f"{'built in' if self.is_built else 'to be built in'} {self.folder}"
        packages = plural(len(self.wanted.packages), "package")
        return f"environment: {packages} of {self.wanted.file} for Python {self.facts.python}, {place}{left_out}"


def environments_folder(cluster: Cluster) -> Path:
    """The folder of this user's environments: in the cluster's `environments`, else in its folder of runs."""
    root = expanded(cluster.environments).absolute() if cluster.environments else runs_folder(cluster)
    return own_place(root, BUILT)


def environment_of(job: Job, path: Path, cluster: Cluster) -> Environment:
    """The environment that the lock file at `path` leads to.

    Raises ConfigError if the file does not name exact packages that can be installed here.
    """
    text = lock_text(path)
    facts = facts_of(cluster.python or sys.executable)
    wanted = _pins(path.name, text, facts)
    if missing := older_than_project(path, text):
        message = f"environment: {path.name} is older than pyproject.toml, and lacks {', '.join(missing)}"
        raise ConfigError(message, "uv lock")
    if not job.environment_builds:
        require_wheels(wanted)
    names = {one.name for one in wanted.packages}
    if job.workload != "command" and (lacking := [name for name in _NEEDED if name not in names]):
        message = f'environment: workload "{job.workload}" needs {", ".join(lacking)}, which {path.name} does not have'
        raise ConfigError(message, f"add them to the project: uv add {' '.join(lacking)}")
    content = [_FORMAT, facts.base, facts.python, facts.platform, job.environment_builds]
    content += [[*one[:4]] for one in wanted.packages]
    if not all(one.hashes for one in wanted.packages):  # then the index decides what is installed
        content += [without_credentials(one) for one in wanted.options]
    key = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:20]
    return Environment(environments_folder(cluster) / key, path, wanted, facts, job.environment_builds)


def environment_of_earlier(run: RunDir, path: Path, cluster: Cluster) -> Environment:
    """The environment of an earlier run. Raises ConfigError if it is gone, or on another cluster's disk."""
    hint = 'build it from the lock file: `environment = "/path/to/uv.lock"`'
    try:
        folder = run.venv.readlink()
    except OSError as error:
        raise ConfigError(f"environment: {run.id} has none: {reason(error)}", hint) from error
    if folder.parent != environments_folder(cluster):
        raise ConfigError(f"environment: that of {run.id} is not in {environments_folder(cluster)}", hint)
    if not exists(folder / ENVIRONMENT_RECORD):
        raise ConfigError(f"environment: that of {run.id} was removed: {folder}", hint)
    return Environment(folder, path)


@functools.lru_cache(8)  # runs of a sweep share it
def _pins(name: str, text: str, facts: Facts) -> Pins:
    return read_pins(name, text, facts.markers)


@functools.cache
def facts_of(python: str) -> Facts:
    """What an environment of the interpreter `python` depends on. Raises ConfigError if it cannot be run here."""
    path = python if "/" in python else shutil.which(python) or python
    hint = "set `python` in the cluster file to one that the login node has, too: it builds the environment"
    try:
        words = of_any_version(path, _ASK, "-E", "-S")
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
            env=environment_of_python(),
        )
        answer = json.loads(done.stdout.splitlines()[-1])
        facts = Facts(answer["base"], answer["libc"], _Markers(answer["markers"]))
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError, KeyError, TypeError) as error:
        why = reason(error) if isinstance(error, OSError) else "no answer"
        raise ConfigError(f"environment: cannot start {path}: {why}", hint) from error
    if tuple(map(int, facts.markers["python_version"].split("."))) < OLDEST:
        raise ConfigError(
            f"environment: {path} is Python {facts.python}", "set `python` in the cluster file to 3.11 or later"
        )
    return facts


class _Markers(dict[str, str]):
    """Hashable, so that what depends on it can be cached."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(sorted(self.items())))
