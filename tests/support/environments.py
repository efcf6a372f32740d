"""Environments of users: venvs without pip, tiny packages to install, and locks that name them."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

# Venvs and conda environments, with stand-ins for installed programs.

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


# Tiny packages: wheels and an index on the disk, and locks that name them.


def make_wheel(
    folder: Path,
    name: str,
    version: str,
    requires: Sequence[str] = (),
    files: Mapping[str, str] = {},
    script: str = "",
    tag: str = "py3-none-any",
) -> Path:
    """Write a wheel with one module that knows its version, and a `script` that prints it if named."""
    info = f"{name}-{version}.dist-info"
    lines = [
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        *(f"Requires-Dist: {one}\n" for one in requires),
    ]
    content = {
        f"{name}.py": f"__version__ = {version!r}\ndef main():\n    print(__version__)\n",
        f"{info}/METADATA": "".join(lines),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n",
        **({f"{info}/entry_points.txt": f"[console_scripts]\n{script} = {name}:main\n"} if script else {}),
        **files,
    }
    record = ""
    for path, text in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(text.encode())}\n"
    wheel = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in {**content, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            archive.writestr(path, text)
    return wheel


def make_index(folder: Path, wheels: Sequence[Path]) -> str:
    """An index of these wheels in `folder`; returns its URL."""
    for wheel in wheels:
        name = wheel.name.partition("-")[0]
        page = folder / name / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        links = page.read_text() if page.exists() else ""
        page.write_text(f'{links}<a href="{wheel.as_uri()}#{digest_of(wheel).replace(":", "=")}">{wheel.name}</a>\n')
    return folder.as_uri()


def digest_of(wheel: Path) -> str:
    return f"sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}"


def uv_lock(index: str, wheels: Sequence[Path], requires_python: str = ">=3.11") -> str:
    """A uv.lock of a project that needs all these wheels."""
    text = f'version = 1\nrequires-python = "{requires_python}"\n'
    names = [(wheel, *wheel.name.split("-")[:2]) for wheel in wheels]
    needs = ", ".join(f'{{ name = "{name}" }}' for _, name, _ in names)
    text += f'[[package]]\nname = "project"\nversion = "0.1"\nsource = {{ virtual = "." }}\ndependencies = [{needs}]\n'
    for wheel, name, version in names:
        text += f'[[package]]\nname = "{name}"\nversion = "{version}"\nsource = {{ registry = {json.dumps(index)} }}\n'
        text += f'wheels = [{{ url = {json.dumps(wheel.as_uri())}, hash = "{digest_of(wheel)}" }}]\n'
    return text


def pylock(index: str, wheels: Sequence[Path]) -> str:
    text = 'lock-version = "1.0"\n'
    for wheel in wheels:
        name, version = wheel.name.split("-")[:2]
        hashes = f'hashes = {{ sha256 = "{digest_of(wheel).partition(":")[2]}" }}'
        text += f'[[packages]]\nname = "{name}"\nversion = "{version}"\nindex = {json.dumps(index)}\n'
        text += f"wheels = [{{ url = {json.dumps(wheel.as_uri())}, {hashes} }}]\n"
    return text


def requirements(index: str, wheels: Sequence[Path]) -> str:
    hashes: dict[str, str] = {}
    for wheel in wheels:
        pinned = "==".join(wheel.name.split("-")[:2])
        hashes[pinned] = f"{hashes.get(pinned, '')} \\\n    --hash={digest_of(wheel)}"
    return f"--index-url {index}\n" + "".join(f"{pinned}{each}\n" for pinned, each in hashes.items())
