"""Commands that a command types itself: the monitor cancels and resumes in a user's very words, in a process apart.

What they print cannot tear the screen, and they behave as they do when somebody types them.
"""

from __future__ import annotations

import os
import subprocess
import sys

from clusterctl.cli import COMMANDS
from clusterctl.errors import ClusterctlError

TIMEOUT_SECONDS = 60.0


def offered(command: str) -> bool:
    """Whether this version has `command`."""
    return command in COMMANDS


def typed(*words: str, cluster: str | None = None) -> list[str]:
    """Run `clusterctl WORDS` and return the lines of its stdout; runs are looked for where `cluster` keeps them.

    Raises ClusterctlError with the command's own error and hint where it fails, or takes longer than a minute.
    """
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    if cluster is not None:
        environment["CLUSTERCTL_CLUSTER"] = cluster
    command = [sys.executable, "-m", "clusterctl", *words]
    shown = " ".join(["clusterctl", *words])
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,  # nobody can answer: what would be asked was asked before
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ClusterctlError(f"no answer within {TIMEOUT_SECONDS:.0f} s: {shown}", "type it by hand") from error
    if done.returncode:
        message, _, hint = done.stderr.strip().removeprefix("error: ").partition("\nhint: ")
        raise ClusterctlError(message or f"exit code {done.returncode}: {shown}", hint)
    return done.stdout.splitlines()
