"""A stand-in for Apptainer, which Debian 12 has no package for: options, variables and mounts as documented.

See apptainer-exec(1), and "Environment and Metadata" and "Bind Paths and Mounts" in the user guide. clusterctl's own
runner enters the image.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import NoReturn

import clusterctl

_SWITCHES = {"--nv", "--no-home", "--no-eval", "--writable-tmpfs", "--fakeroot"}
_VALUES = {"--bind", "--no-mount", "--pwd"}
_PREFIX = "APPTAINERENV_"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # unless the image sets PATH


def install(folder: Path) -> Path:
    """Write `apptainer` to `folder`, for PATH; `records/<rank>.json` gets the arguments of each task's call."""
    (folder / "records").mkdir(parents=True)
    program = folder / "apptainer"
    parent = str(Path(__file__).resolve().parents[1])
    source = f"import sys; sys.path[:0] = {[parent, *sys.path]!r}\nfrom support.apptainer import main\nmain()\n"
    (folder / "start.py").write_text(source)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -I {folder}/start.py "$@"\n')
    program.chmod(0o755)
    return folder


def main() -> NoReturn:
    action, *words = sys.argv[1:]
    record = Path(sys.argv[0]).parent / "records" / f"{os.environ.get('SLURM_PROCID', 0)}.json"
    record.write_text(json.dumps(sys.argv[1:]))
    switches: set[str] = set()
    values: dict[str, list[str]] = {name: [] for name in _VALUES}
    while words and words[0].startswith("-"):
        name, _, value = words.pop(0).partition("=")
        if name in _VALUES:
            values[name].append(value)
        elif name in _SWITCHES:
            switches.add(name)
        else:
            fail(f"unknown flag: {name}")
    if action not in ("exec", "run") or len(words) < (2 if action == "exec" else 1):
        fail("requires at least 2 arg(s)")
    image, *command = words
    if not Path(image).is_file():
        fail(f"could not open image {image}: failed to retrieve path for {image}: no such file or directory")
    named = [name.removeprefix(_PREFIX) for name in os.environ if name.startswith(_PREFIX)]
    for name in named:
        os.environ[name] = os.environ.pop(_PREFIX + name)
    binds = [bind for value in values["--bind"] for bind in value.split(",")]
    flags = [
        f"--container-image={image}",
        f"--container-mounts={','.join(['/tmp:/tmp', *binds])}",
        *(f"--container-workdir={folder}" for folder in values["--pwd"]),
        "--container-writable" if "--writable-tmpfs" in switches else "--container-readonly",
        "--no-container-mount-home" if "--no-home" in switches else "--container-mount-home",
        "--container-remap-root" if "--fakeroot" in switches else "--no-container-remap-root",
        "--container-entrypoint" if action == "run" else "--no-container-entrypoint",
        *([f"--container-env={','.join(named)}"] if named else []),
    ]
    runner = str(Path(clusterctl.__file__).parent / "launcher" / "containers")
    os.execv(sys.executable, [sys.executable, "-I", "-S", runner, *flags, "--", "env", f"PATH={_PATH}", *command])


def fail(words: str) -> NoReturn:
    print(f"FATAL:   {words}", file=sys.stderr)
    raise SystemExit(255)
