"""Image archives made by hand, in docker's or OCI's format, with layers as lists of members; and a root's content."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import stat
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Layer = list[tuple[tarfile.TarInfo, bytes]]


def file(name: str, content: bytes = b"", mode: int = 0o644) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(content), mode, 1_700_000_000
    return member, content


def folder(name: str, mode: int = 0o755) -> tuple[tarfile.TarInfo, bytes]:
    return _special(name, tarfile.DIRTYPE, mode)


def symlink(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return _special(name, tarfile.SYMTYPE, 0o777, target)


def hardlink(name: str, target: str, mode: int = 0o644) -> tuple[tarfile.TarInfo, bytes]:
    return _special(name, tarfile.LNKTYPE, mode, target)  # with its target's mode, as every engine writes it


def device(name: str) -> tuple[tarfile.TarInfo, bytes]:
    member, content = _special(name, tarfile.CHRTYPE, 0o666)
    member.devmajor, member.devminor = 1, 3  # 0, 0 would be overlayfs's own whiteout
    return member, content


def _special(name: str, kind: bytes, mode: int, target: str = "") -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.type, member.mode, member.linkname, member.mtime = kind, mode, target, 1_700_000_000
    return member, b""


def tar_of(members: Iterable[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT, errors="surrogateescape") as archive:
        for member, content in members:
            archive.addfile(member, io.BytesIO(content) if content else None)
    return buffer.getvalue()


def write_archive(path: Path, layers: Sequence[Layer], form: str = "docker", **config: Any) -> Path:
    """Write an archive to `path`; `form` is docker, oci or oci-gzip, `config` the image's config."""
    tars = [tar_of(layer) for layer in layers]
    diff_ids = [f"sha256:{hashlib.sha256(one).hexdigest()}" for one in tars]
    text = {
        "architecture": "amd64",
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    }
    described = json.dumps(text).encode()
    if form == "docker":
        names = [f"{number}/layer.tar" for number in range(len(tars))]
        manifest = json.dumps([{"Config": "config.json", "RepoTags": ["made:latest"], "Layers": names}]).encode()
        members = {"manifest.json": manifest, "config.json": described, **dict(zip(names, tars, strict=True))}
    else:
        members = _oci(tars if form == "oci" else [gzip.compress(one, 1) for one in tars], described, form)
    path.write_bytes(tar_of(file(name, content) for name, content in members.items()))
    return path


def _oci(blobs: list[bytes], config: bytes, form: str) -> dict[str, bytes]:
    members = {}

    def put(content: bytes, kind: str) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        members[f"blobs/sha256/{digest}"] = content
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

    layer = "layer.v1.tar" + ("+gzip" if form == "oci-gzip" else "")
    layers = [put(blob, layer) for blob in blobs]
    manifest = {"schemaVersion": 2, "config": put(config, "config.v1+json"), "layers": layers}
    index = {"schemaVersion": 2, "manifests": [put(json.dumps(manifest).encode(), "manifest.v1+json")]}
    members["oci-layout"] = b'{"imageLayoutVersion": "1.0.0"}'
    members["index.json"] = json.dumps(index).encode()
    return members


Described = dict[str, tuple[str, int, int, str, tuple[str, ...], int]]
_MODE = 0o7777 if os.geteuid() == 0 else 0o1777  # only for root does unsquashfs create setuid files


def described(root: Path) -> Described:
    """Path -> type, mode, size, link target or digest, hard links, mtime, as on disk."""
    names: dict[int, list[str]] = {}
    found: dict[str, tuple[os.stat_result, str]] = {}
    for parent, folders, files in os.walk(root):
        for name in [*folders, *files]:
            path = Path(parent, name)
            status = os.lstat(path)
            relative = os.path.relpath(path, root)
            if stat.S_ISLNK(status.st_mode):
                content = os.fspath(path.readlink())
            elif stat.S_ISREG(status.st_mode):
                if not os.access(path, os.R_OK):  # only root could read it; its mode is recorded above
                    path.chmod(0o400)
                content = hashlib.sha256(path.read_bytes()).hexdigest()
                names.setdefault(status.st_ino, []).append(relative)
            else:
                content = ""
            found[relative] = status, content
    return {
        path: (
            stat.filemode(status.st_mode)[0],
            0o777 if stat.S_ISLNK(status.st_mode) else (status.st_mode | _owner(status)) & _MODE,
            status.st_size if stat.S_ISREG(status.st_mode) else 0,
            content,
            tuple(sorted(names.get(status.st_ino, ()))) if stat.S_ISREG(status.st_mode) else (),
            int(status.st_mtime) if stat.S_ISREG(status.st_mode) else 0,
        )
        for path, (status, content) in found.items()
    }


def _owner(status: os.stat_result) -> int:
    """The permissions that the converter gives the owner."""
    return 0o700 if stat.S_ISDIR(status.st_mode) else 0o600


OURS = {"etc/environment", "etc/fstab", "etc/rc", "etc/rc.local"}
CRAFTED: list[Layer] = [
    [
        folder("etc"), folder("usr"), folder("usr/bin"), symlink("bin", "usr/bin"), folder("root", 0o700),
        file("usr/bin/sh", b"#!", 0o755), file("usr/bin/su", b"su", 0o4755), file("usr/bin/wall", b"w", 0o2755),
        folder("tmp", 0o1777), hardlink("usr/bin/bash", "usr/bin/sh", 0o755), file("etc/shadow", b"secret", 0o0),
        folder("gone"), file("gone/a", b"a"), file("gone/deep/b", b"b"), file("removed", b"r"),
        folder("opaque", 0o711), file("opaque/old", b"old"), file("opaque/sub/old", b"old"),
        folder("becomes-file"), file("becomes-file/x", b"x"), file("becomes-folder", b"f"),
        symlink("link", "/etc/passwd"),
        hardlink("hard/first", "usr/bin/su", 0o4755), symlink("dangling", "../../../outside"),
        folder("dev"), device("dev/null"),
    ],
    [
        file(".wh.removed"), file("gone/.wh.a"), folder("opaque", 0o711), file("opaque/.wh..wh..opq"),
        file("opaque/new", b"new"),
        file("becomes-file", b"now a file"), folder("becomes-folder"), file("becomes-folder/inside", b"i"),
        folder("opaque/sub"), file("opaque/sub/new", b"new"), file("link", b"no link any more"),
        file("same-layer/kept", b"k"), file("same-layer/.wh.kept"), file("usr/bin/.wh.bash"),
        file("é/ключ 鍵", b"letters"), file("n" * 200 + "/" + "m" * 150, b"long"), symlink("long-link", "t" * 300),
        file("with space\nand newline", b"s"), file("etc/hosts", b"", 0o644), file("not\udcffutf8", b"bytes"),
    ],
    [
        file(".wh.usr-nothing"), folder("root", 0o750), hardlink("again", "opaque/new"),
        file("usr/bin/su", b"newer", 0o755),
        file(".wh.becomes-folder"), folder("becomes-folder"), file("big", os.urandom(300_000)),
    ],
]  # fmt: skip
