"""clusterctl as a wheel, made from the files that run here: no build tool, no network, same files same bytes.

Format: https://packaging.python.org/en/latest/specifications/binary-distribution-format/
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from importlib import metadata
from pathlib import Path

import clusterctl
from clusterctl import __version__
from clusterctl.config import shipped_folder

_SHIPPED = ("jobs", "cluster", "data", "containers")
_TIME = (1980, 1, 1, 0, 0, 0)  # the first that a zip file can hold
_WHEEL = "Wheel-Version: 1.0\nGenerator: clusterctl\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_ENTRY_POINTS = "[console_scripts]\nclusterctl = clusterctl.__main__:main\n"


def write_project_wheel(folder: Path) -> Path:
    """Write the wheel of this clusterctl into `folder`; its path."""
    info = f"clusterctl-{__version__}.dist-info"
    files = _package_files() | {
        f"{info}/METADATA": _metadata().encode(),
        f"{info}/WHEEL": _WHEEL.encode(),
        f"{info}/entry_points.txt": _ENTRY_POINTS.encode(),
    }
    record = [f"{name},sha256={_hash(content)},{len(content)}" for name, content in sorted(files.items())]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    path = folder / f"clusterctl-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as wheel:
        for name, content in sorted(files.items()):
            entry = zipfile.ZipInfo(name, _TIME)
            entry.external_attr = 0o644 << 16
            wheel.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return path


def _package_files() -> dict[str, bytes]:
    package = Path(clusterctl.__file__).resolve().parent
    found = {f"clusterctl/{path.relative_to(package)}": path for path in _files(package)}
    for kind in _SHIPPED:
        top = shipped_folder() / kind
        found |= {f"clusterctl/shipped/{kind}/{path.relative_to(top)}": path for path in _files(top)}
    return {name: path.read_bytes() for name, path in found.items()}


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]


def _metadata() -> str:
    """Name, version and requirements as they are installed here, without the long description."""
    found = metadata.metadata("clusterctl")
    lines = [("Metadata-Version", "2.1"), ("Name", "clusterctl"), ("Version", __version__)]
    for header in ("Requires-Python", "Requires-Dist", "Provides-Extra"):
        lines += [(header, value) for value in found.get_all(header) or ()]
    return "".join(f"{header}: {value}\n" for header, value in lines)


def _hash(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
