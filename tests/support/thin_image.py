"""A real image of a few kilobytes, except that its programs are mounted from this machine.

For tests of what an image changes, which do not need one with torch inside.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from clusterctl.launcher.containers import unpacked

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
