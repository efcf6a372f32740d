"""The image folder: NAME.sqsh with NAME.json beside it. What is new is written aside, then renamed."""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from clusterctl.containers.image_record import ImageRecord, read_record, record_path, write_record
from clusterctl.containers.references import name_of
from clusterctl.errors import ImageError, NotFoundError, UsageError
from clusterctl.spec.records import nearest

SUFFIX = ".sqsh"
MAGIC = b"hsqs"
_AT_WORK_SECONDS = 3600  # what has not been written for so long belongs to nobody
_UNFIT = frozenset(",:+%\\\n /")  # in a name: pyxis's flags, Slurm's patterns and paths could not carry it


@dataclass(frozen=True)
class Image:
    """One image of the folder; no record where somebody else put the file there, or it is damaged."""

    path: Path
    record: ImageRecord | None
    problem: str = ""  # of the record

    @property
    def name(self) -> str:
        return self.path.stem


def check_name(name: str) -> str:
    """`name` if it can be a file's name that every flag carries. Raises UsageError."""
    if not name or name.startswith((".", "-")) or _UNFIT & set(name) or not name.isprintable():
        raise UsageError(f"not a name for an image: {name!r}", "use letters, digits, '-', '_' and '.'")
    return name


def images_in(folder: Path) -> list[Image]:
    """All images, by name."""
    if not folder.is_dir():
        return []
    return [_looked_at(path) for path in sorted(folder.glob(f"[!.]*{SUFFIX}")) if path.is_file()]


def _looked_at(path: Path) -> Image:
    try:
        return Image(path, read_record(path))
    except ImageError as error:
        return Image(path, None, error.message)


def find_image(folder: Path, name: str) -> Image:
    """The image that `name` names in `folder`, or the file that it is the path of. Raises NotFoundError."""
    path = Path(name) if "/" in name else folder / f"{name.removesuffix(SUFFIX)}{SUFFIX}"
    if not path.is_file():
        close = nearest(name.removesuffix(SUFFIX), [image.name for image in images_in(folder)])
        hint = f"did you mean {close}?" if close else "see what there is with: clusterctl image list"
        raise NotFoundError(f"no such image: {path}", hint)
    return _looked_at(path)


def imported(folder: Path, reference: str, name: str | None = None) -> Image | None:
    """The image that was imported from `reference` before, as `name`; None where there is none."""
    path = folder / f"{name or name_of(reference)}{SUFFIX}"
    found = _looked_at(path) if path.is_file() else None
    return found if found and found.record and found.record.source == reference else None


def publish(sqsh: Path, record: ImageRecord, folder: Path) -> Image:
    """Give the finished file `sqsh` its name in `folder`, the same file system; its record goes first.

    Whoever sees the image sees its record too; between the two renames an older image has the newer record.
    """
    target = folder / f"{record.name}{SUFFIX}"
    write_record(record_path(target), record)
    with sqsh.open("rb+") as file:
        os.fsync(file.fileno())
    sqsh.replace(target)
    return Image(target, record)


def is_squashfs(path: Path) -> bool:
    """Whether `path` begins as a squashfs does."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(cast("Any", file), "sha256").hexdigest()


def verify(image: Image) -> list[str]:
    """What is wrong with `image`; nothing if it is what its record says, to the last byte."""
    problems = []
    if not is_squashfs(image.path):
        return ["it is no squashfs"]
    if image.record is None:
        return [image.problem or f"no record beside it: {record_path(image.path)}"]
    size = image.path.stat().st_size
    if size != image.record.size:
        problems.append(f"it has {size} bytes, its record says {image.record.size}")
    elif sha256_of(image.path) != image.record.sqsh:
        problems.append("its content is not what its record says")
    return problems


def leftovers(folder: Path, now: float) -> list[Path]:
    """What builds and imports that were killed left in `folder`, and records without an image; `now` as time.time()."""
    if not folder.is_dir():
        return []
    aside = [
        path for path in folder.iterdir() if path.name.startswith(".") and now - _last_written(path) > _AT_WORK_SECONDS
    ]
    orphans = [path for path in folder.glob("[!.]*.json") if not path.with_suffix(SUFFIX).exists()]
    return sorted([*aside, *orphans])


def remove(path: Path) -> None:
    """Remove an image with its record, or one of the leftovers."""
    if path.is_dir():
        shutil.rmtree(path)
        return
    path.unlink(missing_ok=True)
    if path.suffix == SUFFIX:
        record_path(path).unlink(missing_ok=True)


def _last_written(path: Path) -> float:
    """When something in `path` was last written: a build at work writes its squashfs, not its folder."""
    newest = path.stat().st_mtime
    for one in path.rglob("*") if path.is_dir() else ():
        newest = max(newest, one.stat().st_mtime)
    return newest
