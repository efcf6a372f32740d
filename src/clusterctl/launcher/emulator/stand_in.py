"""Entry point of every stand-in: load the settings next to it, run its command, print errors as Slurm does."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

from clusterctl.launcher.emulator.virtual_cluster import Machine
from clusterctl.shared.errors import SlurmError

VERSION = "slurm 22.05.0"  # the release that the emulator imitates


def main(start: str, command: str, arguments: list[str]) -> int:
    """Run `command` ("sbatch", ... or "supervisor") for the virtual cluster whose stand-ins are next to `start`."""
    if arguments in (["--version"], ["-V"]):
        print(VERSION)
        return 0
    machine = Machine.load(Path(start).parent)
    try:
        code: int = importlib.import_module(f"clusterctl.launcher.emulator.{command}").main(machine, arguments)
        sys.stdout.flush()
    except SlurmError as refusal:
        print(f"{command}: error: {refusal.message}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter complains when it flushes at exit
        return 1
    return code
