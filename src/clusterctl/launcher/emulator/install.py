"""Write the stand-ins: six shell scripts that start this package's modules in a bare interpreter."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from threading import get_native_id
from typing import TYPE_CHECKING

import clusterctl
from clusterctl.shared.record.interpreter import isolated

if TYPE_CHECKING:
    from clusterctl.shared.spec import Emulator

COMMANDS = ("sbatch", "srun", "squeue", "sinfo", "scancel", "scontrol")


def ensure_stand_ins(state: Path, emulator: Emulator) -> Path:
    """The folder of stand-ins for `emulator`, written at first use. All stand-ins below `state` share their jobs."""
    root = state.absolute() / "emulator"
    package_parent = str(Path(clusterctl.__file__).absolute().parent.parent)
    settings = {"root": str(root), **asdict(emulator), "gpu_type": emulator.gpus_per_node.type}
    identity = json.dumps([sys.executable, package_parent, settings, clusterctl.__version__, _START])
    folder = root / f"bin-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    aside = folder.with_name(f".{folder.name}.{get_native_id()}")
    aside.mkdir(mode=0o700)
    (aside / "settings.json").write_text(json.dumps(settings, indent=1) + "\n")
    (aside / "start.py").write_text(_START.format(path=ascii(package_parent)))
    for command in COMMANDS:
        script = aside / command
        # A shell script, because a #! line cannot hold a path with spaces. An isolated start saves 20 ms.
        words = isolated(sys.executable, "-X", "utf8", str(folder / "start.py"), command)
        script.write_bytes(os.fsencode(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n'))
        script.chmod(0o700)
    try:
        aside.rename(folder)
    except OSError:  # another process or thread was faster
        shutil.rmtree(aside)
    return folder


_START = """\
import sys

sys.path.insert(0, {path})
from clusterctl.launcher.emulator.stand_in import main

sys.exit(main(__file__, sys.argv[1], sys.argv[2:]))
"""
