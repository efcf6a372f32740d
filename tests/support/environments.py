"""Environments of users: venvs without pip, with stand-ins for installed programs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

WORDS = ("python", "python3", "torchrun", "pip", "accelerate")
_SHOW_PREFIX = "import sys; print(sys.prefix)"


def make_environment(folder: Path) -> Path:
    """A venv in `folder` whose every program prints `folder`, or runs Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    for word in WORDS[2:]:
        program = folder / "bin" / word
        program.write_text(f"#!{folder}/bin/python\n{_SHOW_PREFIX}\n")
        program.chmod(0o755)
    return folder


def make_conda(folder: Path) -> Path:
    """A conda that only has `activate`, which sets PATH and its variables; the environments are in envs/."""
    activate = folder / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.write_text(
        f'own="{folder}/envs/$1"\n'
        # replaces the active environment, if there is one
        'if [ -n "$CONDA_SHLVL" ]; then PATH=${PATH/"$CONDA_PREFIX/bin"/"$own/bin"}; else PATH=$own/bin:$PATH; fi\n'
        'export CONDA_SHLVL=1 CONDA_DEFAULT_ENV="$1" CONDA_PREFIX="$own"\n'
    )
    return folder


def asking() -> str:
    """A Python program that prints the environment of each program in WORDS, run directly and by bash."""
    return f"""
import subprocess, sys
print(sys.prefix)
for word in {WORDS!r}:
    argv = [word] + (["-c", {_SHOW_PREFIX!r}] if word.startswith("python") else [])
    for words in (argv, ["bash", "-c", 'exec "$0" "$@"', *argv]):
        print(subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip())
"""
