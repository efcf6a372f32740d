"""Layers of an image, merged into one root: a pure function over names. Nothing is written, so nothing can escape.

Follows overlayfs (as do docker, podman, buildah and enroot): an entry replaces the same entry of lower layers; a folder
over a folder merges their contents; `.wh.NAME` removes NAME from lower layers, `.wh..wh..opq` everything that they have
in a folder. Symbolic links are copied as text and never followed.
Source: https://github.com/opencontainers/image-spec/blob/main/layer.md
"""

from __future__ import annotations

import tarfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clusterctl.errors import ImageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"
_HINT = "save it again: docker save IMAGE -o FILE, or buildah push IMAGE oci-archive:FILE; trust no unknown source"
_ESCAPE = "an entry escapes the root: "
DEVICES = (tarfile.CHRTYPE, tarfile.BLKTYPE)


class BadArchive(ImageError):
    """An archive that is damaged or tries to escape the root; the message names the entry."""

    def __init__(self, reason: str, path: Path | None = None) -> None:
        super().__init__(f"{path}: bad archive: {reason}" if path else f"bad archive: {reason}", _HINT)
        self.reason = reason


@dataclass(frozen=True, eq=False)
class Content:
    """The layer member behind a name. Hard links to one file share one Content."""

    layer: int
    member: tarfile.TarInfo


@dataclass(eq=False, slots=True)
class _Node:
    content: Content | None = None  # None: a folder that no layer describes
    children: dict[str, _Node] = field(default_factory=dict)
    layer: int = -1  # the highest layer that touched it

    @property
    def is_folder(self) -> bool:
        return self.content is None or self.content.member.isdir()


def merge(layers: Sequence[Iterable[tarfile.TarInfo]]) -> Iterator[tuple[str, Content | None]]:
    """Every path of the merged root with its content, folders before their entries, names sorted.

    Device nodes are left out; a folder without an entry of its own has None. Raises BadArchive, naming the entry, for
    an archive that would escape the root: `..`, absolute names, a name below a link of the same layer.
    """
    root = _Node()
    for number, layer in enumerate(layers):
        members = [(parts_of(member), member) for member in layer]
        for parts, member in members:  # wherever they are in the layer, whiteouts apply to the layers below
            _take_away(root, parts, member.name)
        for parts, member in members:
            if parts and not parts[-1].startswith(WHITEOUT) and member.type not in DEVICES:
                _put(root, parts, member, number)
    return _walk(root)


def parts_of(member: tarfile.TarInfo, *, link: bool = False) -> list[str]:
    """The components of an entry's name, or of its hard link's target; empty for the root itself.

    Raises BadArchive for a name that escapes the root.
    """
    name = member.linkname if link else member.name
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or "\0" in name or ".." in parts:
        raise BadArchive(_ESCAPE + member.name + (f" -> {name}" if link else ""))
    return parts


def _take_away(root: _Node, parts: list[str], name: str) -> None:
    if not parts or not parts[-1].startswith(WHITEOUT):
        return
    folder = _find(root, parts[:-1])
    if parts[-1] == OPAQUE:
        if folder:
            folder.children.clear()
        return
    hidden = parts[-1].removeprefix(WHITEOUT)
    if hidden.startswith(WHITEOUT):  # AUFS metadata
        return
    if hidden in ("", ".", ".."):
        raise BadArchive(_ESCAPE + name)
    if folder:
        folder.children.pop(hidden, None)


def _put(root: _Node, parts: list[str], member: tarfile.TarInfo, layer: int) -> None:
    folder = root
    for part in parts[:-1]:
        below = folder.children.get(part)
        if below is None or not below.is_folder:
            if below is not None and below.layer == layer:
                raise BadArchive(f"an entry is below a file or link: {member.name}")
            below = folder.children[part] = _Node(layer=layer)
        below.layer = layer
        folder = below
    content = _linked(root, member) if member.islnk() else Content(layer, member)
    there = folder.children.get(parts[-1])
    if there is not None and there.is_folder and content.member.isdir():
        there.content, there.layer = content, layer
    else:
        folder.children[parts[-1]] = _Node(content, layer=layer)


def _linked(root: _Node, member: tarfile.TarInfo) -> Content:
    """The content that a hard link points to."""
    target = _find(root, parts_of(member, link=True))
    if target is None or target.content is None or target.is_folder:
        raise BadArchive(f"a hard link has no target: {member.name} -> {member.linkname}")
    return target.content


def _find(root: _Node, parts: list[str]) -> _Node | None:
    node: _Node | None = root
    for part in parts:
        if node is None:
            return None
        node = node.children.get(part)
    return node


def _walk(root: _Node) -> Iterator[tuple[str, Content | None]]:
    waiting = [(name, root.children[name]) for name in sorted(root.children, reverse=True)]
    while waiting:  # no recursion: a path may be deep
        path, node = waiting.pop()
        yield path, node.content
        waiting += [(f"{path}/{name}", node.children[name]) for name in sorted(node.children, reverse=True)]
