"""Tiny packages for tests of environments: wheels and an index on the disk, and locks that name them."""

from __future__ import annotations

import base64
import hashlib
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def make_wheel(
    folder: Path, name: str, version: str, requires: Sequence[str] = (), files: Mapping[str, str] = {}, script: str = ""
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
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        **({f"{info}/entry_points.txt": f"[console_scripts]\n{script} = {name}:main\n"} if script else {}),
        **files,
    }
    record = ""
    for path, text in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(text.encode())}\n"
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
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
    lines = []
    for wheel in wheels:
        name, version = wheel.name.split("-")[:2]
        lines.append(f"{name}=={version} \\\n    --hash={digest_of(wheel)}\n")
    return f"--index-url {index}\n" + "".join(lines)
