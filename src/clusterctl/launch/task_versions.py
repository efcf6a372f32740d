"""Which torch and which image a run's tasks will use, as far as folder names and an image's record show.

Recorded on submission: the environment may be upgraded later, and the image replaced under the same name.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.containers.folder import SUFFIX, ImageRecord, read_record
from clusterctl.errors import ImageError
from clusterctl.launch.programs import activated_environments

if TYPE_CHECKING:
    from clusterctl.launch.plan import Plan

_PACKAGE = "torch"
_INSTALLED = f"lib/python3*/*-packages/{_PACKAGE}-*.dist-info"
_DIGEST = re.compile(r"@(sha256:[0-9a-f]{64})$")


def task_versions(plan: Plan) -> dict[str, str]:
    """The version of torch installed for the tasks; empty if it is not visible from here."""
    if plan.view:
        record = _image(plan.view.image)
        return {_PACKAGE: record.versions[_PACKAGE]} if record and _PACKAGE in record.versions else {}
    folders = [*activated_environments(plan.python, plan.setup)]
    if plan.python_is_named:
        del folders[1:]  # it takes precedence over environments that the setup lines activate
    found = [path.name for folder in folders[-1:] for path in Path(folder).glob(_INSTALLED)]
    return {_PACKAGE: found[0].removeprefix(f"{_PACKAGE}-").removesuffix(".dist-info")} if len(found) == 1 else {}


def image_digest(plan: Plan) -> str | None:
    """The digest of the tasks' image, from its record or its reference; None if neither has one."""
    if not plan.view:
        return None
    if named := _DIGEST.search(plan.view.image):
        return named[1]
    record = _image(plan.view.image)
    return record.digest if record else None


def _image(image: str) -> ImageRecord | None:
    """The record beside an image file."""
    if not image.startswith("/") or not image.endswith(SUFFIX):
        return None
    try:
        return read_record(Path(image))
    except (ImageError, OSError):
        return None
