"""Image archives, as `docker save` and `buildah push oci-archive:` write them: configuration, layers, merged root.

Archives are not unpacked: members are read in place, and compressed layers are decompressed into unnamed temporary
files. Sources: https://github.com/moby/docker-image-spec, https://github.com/opencontainers/image-spec
"""

from __future__ import annotations

import gzip
import hashlib
import json
import posixpath
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, cast

from clusterctl.shared.errors import ImageError
from clusterctl.shared.record.files import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_MOST_JSON = 16 * 2**20
_MEBIBYTE = 2**20
_OCI_REFERENCE = "org.opencontainers.image.ref.name"


@dataclass(frozen=True, kw_only=True)
class ImageConfig:
    """How an image wants to be run."""

    digest: str  # of the configuration, which names every layer; docker calls it the image ID
    environment: tuple[str, ...] = ()  # NAME=VALUE
    volumes: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/"
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()

    @classmethod
    def of(cls, config: Mapping[str, Any], digest: str) -> ImageConfig:
        """From the `config` table of an image configuration, docker's or OCI's."""
        return cls(
            digest=digest,
            environment=tuple(map(str, config.get("Env") or ())),
            volumes=tuple(sorted(config.get("Volumes") or ())),
            labels={str(key): str(value) for key, value in (config.get("Labels") or {}).items()},
            workdir=str(config.get("WorkingDir") or "/"),
            entrypoint=tuple(map(str, config.get("Entrypoint") or ())),
            command=tuple(map(str, config.get("Cmd") or ())),
        )


@dataclass(frozen=True)
class Archive:
    """An open archive: its configuration and one readable tar file per layer, the lowest first."""

    config: ImageConfig
    layers: Sequence[tarfile.TarFile]


@contextmanager
def open_archive(path: Path) -> Iterator[Archive]:
    """Open the archive at `path` and check its layers against the digests in its configuration.

    Raises ImageError, naming `path`, if this is not an archive of a single image, or if it is damaged.
    """
    try:
        with ExitStack() as stack:
            outer = stack.enter_context(_tar(stack.enter_context(_plain(open_regular(path), path.parent))))
            found = _Members(outer)
            try:
                config, names, diff_ids = _described(found)
            except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
                raise BadArchive(f"it does not describe an image: {error}") from error
            layers = []
            for name, diff_id in zip(names, diff_ids, strict=True):
                layer = stack.enter_context(_plain(found.open(name), path.parent))
                digest = hashlib.file_digest(cast("Any", layer), "sha256").hexdigest()
                if diff_id != f"sha256:{digest}":
                    raise BadArchive(f"damaged layer: {name}")
                layer.seek(0)
                layers.append(stack.enter_context(_tar(layer)))
            yield Archive(config, layers)
    except BadArchive as error:
        raise BadArchive(error.reason, path) from error
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadArchive(str(error), path) from error


class _Members:
    """The members of the outer archive by name. Links are followed only to other members."""

    def __init__(self, outer: tarfile.TarFile) -> None:
        self._outer = outer
        self._members = {str(PurePosixPath(member.name)): member for member in outer}

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def open(self, name: str) -> IO[bytes]:
        member = self._members.get(name)
        for _ in range(8):  # `docker save` writes a repeated layer once and links to it
            if member is None or not (member.issym() or member.islnk()):
                break
            base = posixpath.dirname(member.name) if member.issym() else ""
            member = self._members.get(posixpath.normpath(f"/{base}/{member.linkname}").lstrip("/"))
        if member is None or not member.isfile():
            raise BadArchive(f"missing file: {name}")
        return cast("IO[bytes]", self._outer.extractfile(member))

    def json(self, name: str) -> Any:
        with self.open(name) as file:
            return json.loads(file.read(_MOST_JSON))


def _described(found: _Members) -> tuple[ImageConfig, list[str], list[str]]:
    """The configuration, the names of the layers, and the digests of their contents."""
    if "manifest.json" in found:
        images = found.json("manifest.json")
        if len(images) != 1:
            tags = [tag for image in images for tag in image.get("RepoTags") or ()]
            raise BadArchive(f"expected one image, found {len(images)}: {', '.join(tags)}")
        config_name, layers = images[0]["Config"], images[0]["Layers"]
    elif "index.json" in found:
        config_name, layers = _oci(found)
    else:
        raise BadArchive("it has neither manifest.json nor index.json")
    with found.open(config_name) as file:
        content = file.read(_MOST_JSON)
    config = json.loads(content)
    diff_ids = config["rootfs"]["diff_ids"]
    if len(diff_ids) != len(layers):
        raise BadArchive(f"{len(layers)} layers, but its configuration lists {len(diff_ids)}")
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return ImageConfig.of(config.get("config") or {}, digest), layers, diff_ids


def _oci(found: _Members) -> tuple[str, list[str]]:
    import platform

    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    listed = found.json("index.json")["manifests"]
    for _ in range(4):  # an index may hold another index, with one manifest per platform
        if len(listed) != 1:
            of_each = [(one, one.get("platform", {})) for one in listed]
            ours = [one for one, of in of_each if (of.get("os"), of.get("architecture")) == ("linux", machine)]
            listed = ours or listed
        if len(listed) != 1:
            tags = [one.get("annotations", {}).get(_OCI_REFERENCE, one["digest"]) for one in listed]
            raise BadArchive(f"expected one image, found {len(listed)}: {', '.join(tags)}")
        manifest = found.json(_blob(listed[0]["digest"]))
        if "manifests" not in manifest:
            return _blob(manifest["config"]["digest"]), [_blob(layer["digest"]) for layer in manifest["layers"]]
        listed = manifest["manifests"]
    raise BadArchive("indexes are nested too deeply")


def _blob(digest: str) -> str:
    algorithm, _, value = digest.partition(":")
    return f"blobs/{algorithm}/{value}"


def _tar(file: IO[bytes]) -> tarfile.TarFile:
    return tarfile.open(fileobj=file, mode="r:", encoding="utf-8", errors="surrogateescape")


@contextmanager
def _plain(file: IO[bytes], folder: Path) -> Iterator[IO[bytes]]:
    """`file`, decompressed into a temporary file in `folder` if it is compressed."""
    with file:
        magic = file.read(4)
        file.seek(0)
        if not magic.startswith((_GZIP, _ZSTD)):
            yield file
            return
        with tempfile.TemporaryFile(dir=folder) as plain:
            if magic.startswith(_GZIP):
                with gzip.open(file) as reader:
                    shutil.copyfileobj(reader, plain, _MEBIBYTE)
            else:
                _unzstd(file, plain)
            plain.seek(0)
            yield plain


def _unzstd(file: IO[bytes], plain: IO[bytes]) -> None:
    if shutil.which("zstd") is None:
        raise ImageError("a layer is compressed with zstd, but zstd is not on PATH", "apt install zstd")
    with subprocess.Popen(["zstd", "-dcq"], stdin=subprocess.PIPE, stdout=plain, stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        try:
            with process.stdin:
                shutil.copyfileobj(file, process.stdin, _MEBIBYTE)
        except BrokenPipeError:
            pass  # the exit code tells why
    if process.returncode:
        raise BadArchive("zstd cannot read a layer")


# Layers of an image, merged into one root: a pure function over names. Nothing is written, so nothing can escape.


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
    waiting = [(name, root.children[name]) for name in sorted(root.children, reverse=True)]
    while waiting:  # no recursion: a path may be deep
        path, node = waiting.pop()
        yield path, node.content
        waiting += [(f"{path}/{name}", node.children[name]) for name in sorted(node.children, reverse=True)]


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
    content = Content(layer, member)
    if member.islnk():
        target = _find(root, parts_of(member, link=True))
        if target is None or target.content is None or target.is_folder:
            raise BadArchive(f"a hard link has no target: {member.name} -> {member.linkname}")
        content = target.content
    there = folder.children.get(parts[-1])
    if there is not None and there.is_folder and content.member.isdir():
        there.content, there.layer = content, layer
    else:
        folder.children[parts[-1]] = _Node(content, layer=layer)


def _find(root: _Node, parts: list[str]) -> _Node | None:
    node: _Node | None = root
    for part in parts:
        if node is None:
            return None
        node = node.children.get(part)
    return node
