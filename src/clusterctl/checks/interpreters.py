"""Asks the tasks' Python for its version and packages, without importing any of them."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from clusterctl.checks.surroundings import Interpreter

if TYPE_CHECKING:
    from clusterctl.checks.surroundings import Seen

PACKAGES = ("torch", "submitit")
VERSION_SECONDS = 10
PACKAGES_SECONDS = 30  # a package without metadata is imported, perhaps from a slow file system
_ASK_VERSION = "import json, sys; print(json.dumps({'version': sys.version_info[:3]}))"
_ASK_PACKAGES = f"""
import importlib, json, sys
from importlib import metadata
packages = {{}}
for name in {PACKAGES!r}:
    try:
        packages[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        try:
            packages[name] = importlib.import_module(name).__version__
        except Exception:
            packages[name] = ""
print(json.dumps({{"version": sys.version_info[:3], "packages": packages}}))
"""


def ask_version(seen: Seen) -> Interpreter:
    """The version alone: it costs milliseconds, and nothing for this interpreter."""
    if seen.path == sys.executable:
        return Interpreter(seen, sys.version_info[:3])
    return _ask(seen, ["-E", "-S", "-c", _ASK_VERSION], VERSION_SECONDS)


def ask_packages(seen: Seen) -> Interpreter:
    """The version, and those of `PACKAGES`."""
    return _ask(seen, ["-c", _ASK_PACKAGES], PACKAGES_SECONDS)


def _ask(seen: Seen, words: list[str], seconds: float) -> Interpreter:
    try:
        done = subprocess.run(
            [seen.path, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
        answer = json.loads(done.stdout.splitlines()[-1])
        return Interpreter(seen, tuple(answer["version"]), answer.get("packages"))
    except subprocess.TimeoutExpired:
        return Interpreter(seen, problem=f"no answer within {seconds} s")
    except OSError as error:
        return Interpreter(seen, problem=str(error.strerror))
    except (ValueError, IndexError, KeyError, TypeError):
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return Interpreter(seen, problem=last)
