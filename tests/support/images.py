"""Images for tests: really built ones, a thin one, and archives made by hand.

The built image without torch takes seconds and is for `make test`; the one with torch takes minutes. Both are kept in
the user's cache under a hash of their inputs, so the next run of the tests finds them. The thin image has a few
kilobytes, its programs are mounted from this machine: for tests of what an image changes. Archives are in docker's or
OCI's format, with layers as lists of members.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from clusterctl.launcher.config import cache_folder, shipped_folder
from clusterctl.launcher.containers import unpacked
from clusterctl.launcher.containers.build import EXTRAS, BuildRequest, build
from clusterctl.launcher.containers.engine import Engine, find_engine
from clusterctl.launcher.containers.wheels import wanted, write_project_wheel
from clusterctl.shared.errors import ClusterctlError, ImageError
from clusterctl.shared.record.once import once

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_KEPT_SECONDS = 2 * 86400


class Quiet:
    """A listener that prints what it receives; pytest shows it with a failure."""

    def begin(self, text: str, total: int | None = None) -> None:
        print(f"{time.strftime('%T')} {text}")

    def output(self, line: str) -> None:
        print(f"  {line}")

    def advance(self, size: int) -> None:
        pass


@pytest.fixture(scope="session")
def image_engine() -> Engine:
    """The engine that builds images here. Without one, tests are skipped, and fail in CI."""
    return working_engine()


@pytest.fixture(scope="session")
def bare_image(image_engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A .sqsh with Python, submitit and this clusterctl, and its record: what a login node needs."""
    return _built("bare", (), image_engine, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def cpu_image(image_engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with PyG and torch for CPUs, as `make container` builds it."""
    return _built("cpu", EXTRAS, image_engine, tmp_path_factory.mktemp("wheel"))


def _built(kind: str, extras: tuple[str, ...], engine: Engine, place: Path) -> Path:
    folder = cache_folder() / "test-images"
    name = f"{kind}-{_content(place, extras)}"
    sqsh = folder / f"{name}.sqsh"

    def work(_: Path) -> None:
        request = BuildRequest(name=name, base="bootstrap", extras=extras)
        build(request, engine, folder, cache_folder(), PYTHON, Quiet())

    once(lambda: sqsh.exists(), sqsh, work)
    os.utime(sqsh)
    for old in folder.glob("*.sqsh"):
        if time.time() - old.stat().st_mtime > _KEPT_SECONDS:
            old.unlink(missing_ok=True)
            old.with_suffix(".json").unlink(missing_ok=True)
    return sqsh


def working_engine(chosen: str | None = None) -> Engine:
    """The engine, if everything that a build needs is installed."""
    try:
        for program, package in (("mksquashfs", "squashfs-tools"), ("mmdebstrap", "mmdebstrap")):
            if shutil.which(program) is None:
                raise ImageError(f"no {program} on PATH (package {package})")
        return find_engine(chosen)
    except ClusterctlError as error:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no image can be built: {error.message}")


def _content(place: Path, extras: tuple[str, ...]) -> str:
    """A hash of everything that the image is made from."""
    recipe = [path.read_bytes() for path in sorted((shipped_folder() / "containers").iterdir())]
    parts = [*recipe, write_project_wheel(place).read_bytes()]
    want = wanted(PYTHON, extras, own_torch=False)
    facts = [want.key, *(hashlib.sha256(part).hexdigest() for part in parts)]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


_PROFILE = """\
PATH=/usr/local/bin:/usr/bin:/bin
for file in /etc/profile.d/*.sh; do [ -r "$file" ] && . "$file"; done
export PATH
"""
_RC = """\
mkdir -p "/srv" 2> /dev/null
cd "/srv" && unset OLDPWD || exit 1
if [ $# -gt 0 ]; then
    exec /bin/sh -c 'echo entry point; exec "$@"' sh "$@"
else
    exec /bin/echo started by the image
fi
"""


@dataclass(frozen=True)
class ThinImage:
    """The image, and the mounts that it needs."""

    path: Path
    mounts: tuple[str, ...]

    @property
    def table(self) -> str:
        """The table [container] for a job or cluster file."""
        return f"[container]\nimage = '{self.path}'\nmounts = {list(self.mounts)}\n"


def make_thin(folder: Path, name: str = "thin.sqsh", pseudo: Sequence[str] = (), **files: str) -> Path:
    """Write the image to `folder`; `files` adds files (etc__environment="A=b"), `pseudo` mksquashfs's pseudo files."""
    root = folder / f"{name}.root"
    texts = {
        "etc/profile": _PROFILE,
        "etc/profile.d/zz-venv.sh": "PATH=/opt/venv/bin:$PATH\n",
        "etc/environment": "COLOUR=image\nSHAPE=image\nLANG=C.UTF-8\n",
        "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n",
        "etc/rc": _RC,
        "srv/own.txt": "the image's own\n",
    }
    for path, text in {**texts, **{key.replace("__", "/"): value for key, value in files.items()}}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    (root / "etc" / "rc").chmod(0o755)
    for top in ("bin", "sbin", "lib", "lib64"):
        (root / top).symlink_to(f"usr/{top}")
    (root / "usr").mkdir()
    (root / "opt").mkdir()
    (root / "opt" / "venv").symlink_to(sys.prefix)
    image = folder / name
    options = ["-all-root", "-noappend", "-quiet", "-no-progress", *(word for line in pseudo for word in ("-p", line))]
    subprocess.run(["mksquashfs", root, image, *options], check=True, capture_output=True)
    return image


def mounts_of_this_python() -> tuple[str, ...]:
    """This machine's programs and everything that this interpreter imports, read-only."""
    folders = {Path(folder).resolve() for folder in (sys.prefix, sys.base_prefix, *sys.path) if Path(folder).is_dir()}
    folders |= {Path(sys.prefix), Path("/usr")}
    outermost = [folder for folder in folders if not any(other in folder.parents for other in folders)]
    return tuple(f"{folder}:{folder}:ro" for folder in sorted(outermost))


@pytest.fixture(scope="session")
def thin_image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThinImage]:
    if os.geteuid() != 0 and subprocess.run(["unshare", "--user", "true"], capture_output=True, check=False).returncode:
        pytest.skip("cannot enter an image: not root, and the kernel refuses user namespaces")
    image = ThinImage(make_thin(tmp_path_factory.mktemp("image")), mounts_of_this_python())
    yield image
    unpacked.release(image.path)


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
