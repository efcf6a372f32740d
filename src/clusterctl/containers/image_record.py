"""NAME.json beside NAME.sqsh: what is known of an image without opening it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clusterctl.errors import ImageError
from clusterctl.runs.files import read_json, write_text
from clusterctl.spec.records import to_record

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SCHEMA_VERSION = 1
# Where an image's interpreter is looked for, the first that there is; its version is in the name of its library.
_LIBRARIES = ("opt/venv", "opt/conda", "usr/local", "usr")
_LIBRARY = re.compile(rf"({'|'.join(_LIBRARIES)})/lib/python(3\.\d+)(?:/(?:site|dist)-packages(?:/([^/]+))?)?")
_INSTALLED = re.compile(r"([A-Za-z0-9][\w.]*)-([^-/]+)\.dist-info")
_REPORTED = ("clusterctl", "submitit", "torch", "torch_geometric", "numpy", "scipy", "numba")


@dataclass(frozen=True, kw_only=True)
class ImageRecord:
    """An image of the image folder."""

    name: str
    digest: str  # sha256 of the image's configuration, or of the .sqsh where it has none: what identifies it
    sqsh: str  # sha256 of the .sqsh
    size: int  # of the .sqsh, in bytes
    source: str  # a reference, a file's name, or how it was built
    created: float  # seconds since the epoch
    python: str | None = None  # minor version, such as "3.11"
    versions: Mapping[str, str] = field(default_factory=dict)  # of the packages that training needs
    environment: Mapping[str, str] = field(default_factory=dict)  # what the image will impose on a task
    labels: Mapping[str, str] = field(default_factory=dict)


class PackageScan:
    """Finds Python and its packages among the paths of a root file system, shown one by one."""

    def __init__(self) -> None:
        self._pythons: dict[str, str] = {}  # prefix -> minor version
        self._packages: dict[str, dict[str, str]] = {}  # prefix -> package -> version

    def see(self, path: str) -> None:
        """Take note of `path`, relative to the root."""
        match = _LIBRARY.fullmatch(path)
        if not match:
            return
        prefix, minor, entry = match.groups()
        self._pythons.setdefault(prefix, minor)
        if entry and (package := _INSTALLED.fullmatch(entry)):
            self._packages.setdefault(prefix, {})[package[1].lower().replace("-", "_")] = package[2]

    @property
    def python(self) -> str | None:
        return next((self._pythons[prefix] for prefix in _LIBRARIES if prefix in self._pythons), None)

    @property
    def versions(self) -> dict[str, str]:
        """Of each package the version that the first interpreter would import."""
        merged: dict[str, str] = {}
        for prefix in reversed(_LIBRARIES):
            merged |= self._packages.get(prefix, {})
        return {name: merged[name] for name in _REPORTED if name in merged}


def environment_of(lines: tuple[str, ...] | list[str]) -> dict[str, str]:
    """NAME=VALUE lines as a mapping."""
    return {name: value for name, equals, value in (line.partition("=") for line in lines) if equals}


def record_path(sqsh: Path) -> Path:
    return sqsh.with_suffix(".json")


def write_record(path: Path, record: ImageRecord) -> None:
    """Write `record` to `path`, for everybody who may read the image."""
    text = json.dumps({"schema_version": SCHEMA_VERSION, **to_record(record)}, indent=1)
    write_text(path, f"{text}\n", mode=0o644)


def read_record(sqsh: Path) -> ImageRecord | None:
    """What is known of the image at `sqsh`; None where nobody wrote it down. Raises ImageError for a damaged one."""
    path = record_path(sqsh)
    try:
        found: Any = read_json(path)
        if found is None:
            return None
        if found.pop("schema_version") != SCHEMA_VERSION:
            raise ImageError(f"written by another version: {path}", f"clusterctl image verify {sqsh.stem}")
        return ImageRecord(**found)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ImageError(f"damaged: {path}", f"import or build the image again; or remove it: rm {path}") from error
