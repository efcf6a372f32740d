"""Building an image: after changing a file, if it already exists, and its conversion compared with tar and lzo.

python benchmarks/image.py            needs buildah, mmdebstrap and squashfs-tools; the first run downloads

The rival does what enroot does with its default compressor: unpack the layers in order, then mksquashfs -comp lzo.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from side_by_side import arguments

from clusterctl.launcher.config import cache_folder
from clusterctl.launcher.containers import build as building
from clusterctl.launcher.containers.archive import ImageConfig
from clusterctl.launcher.containers.build import BuildRequest, build, import_file
from clusterctl.launcher.containers.contents import PackageScan, publish
from clusterctl.launcher.containers.engine import find_engine
from clusterctl.launcher.containers.wheels import write_project_wheel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
CHANGES = 3


class Steps:
    """A listener that times the steps of a build."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._step, self._since = "", time.perf_counter()

    def begin(self, text: str, total: int | None = None) -> None:  # noqa: ARG002 - the listeners' signature
        self.end()
        self._step = text.split(" localhost")[0]

    def end(self) -> None:
        now = time.perf_counter()
        if self._step:
            self.seconds[self._step] = now - self._since
        self._since = now

    def output(self, line: str) -> None:
        pass

    def advance(self, size: int) -> None:
        pass


@contextmanager
def one_file_changed(number: int) -> Iterator[None]:
    """Add a file with new content to the project wheel."""

    def write(folder: Path) -> Path:
        import zipfile

        wheel = write_project_wheel(folder)
        with zipfile.ZipFile(wheel, "a") as changed:
            changed.writestr("clusterctl/changed.py", f"{time.time()} {number}\n")
        return wheel

    kept = building.write_project_wheel
    building.write_project_wheel = write
    try:
        yield
    finally:
        building.write_project_wheel = kept


def timed(title: str, work: Callable[[], object], aim: float | None = None) -> float:
    began = time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    verdict = f"   aim: at most {aim:g} s, {'reached' if seconds <= aim else 'NOT reached'}" if aim else ""
    print(f"  {title:<58} {seconds:8.2f} s{verdict}", flush=True)
    return seconds


def unpack_and_squash(archive: Path, place: Path) -> Path:
    """Unpack every layer with tar, remove whiteouts, and run mksquashfs as enroot does."""
    outer, root, target = place / "outer", place / "root", place / "rival.sqsh"
    for folder in (outer, root):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    target.unlink(missing_ok=True)
    subprocess.run(["tar", "-xf", archive, "-C", outer], check=True)
    (manifest,) = json.loads((outer / "manifest.json").read_text())
    for layer in manifest["Layers"]:
        subprocess.run(["tar", "-xpf", outer / layer, "-C", root], check=True)
        for whiteout in root.rglob(".wh.*"):
            subprocess.run(["rm", "-rf", whiteout, whiteout.with_name(whiteout.name[4:])], check=True)
    command = ["mksquashfs", root, target, "-all-root", "-comp", "lzo", "-no-progress", "-quiet"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return target


def main() -> None:
    arguments(__doc__).parse_args()
    engine, cache = find_engine(), cache_folder()
    with tempfile.TemporaryDirectory(prefix="image-", dir=cache) as scratch:
        place = Path(scratch)
        request = BuildRequest(name="benchmark", base="bootstrap")
        print(f"make container, with {engine.kind}")
        timed("everything not cached yet", lambda: build(request, engine, place, cache, PYTHON, Steps()))
        for number in range(CHANGES):
            steps = Steps()
            with one_file_changed(number):
                timed("one file changed", lambda: build(request, engine, place, cache, PYTHON, steps), aim=15)  # noqa: B023
            steps.end()
            print("    " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in steps.seconds.items()))

        print("\nexisting images")
        image = place / "benchmark.sqsh"
        copy = Path(shutil.copyfile(image, place / ".copy"))
        publish(copy, place, "python-3.11-slim", "python:3.11-slim", PackageScan(), ImageConfig(digest=""))
        command = [str(Path(sys.executable).with_name("clusterctl")), "image", "import", "python:3.11-slim"]
        for _ in range(3):
            timed("clusterctl image import, already imported", lambda: subprocess.run(
                [*command, "--output", scratch], check=True, capture_output=True), aim=0.2)  # fmt: skip

        print("\nconverting an archive to squashfs")
        archive = place / "saved.tar"
        subprocess.run([engine.program, "push", "-q", "localhost/benchmark", f"docker-archive:{archive}"], check=True)
        ours = timed("clusterctl image import", lambda: import_file(archive, "converted", place, Steps()))
        rival = timed("tar and mksquashfs -comp lzo", lambda: unpack_and_squash(archive, place))
        mine, theirs = ((place / name).stat().st_size / 2**20 for name in ("converted.sqsh", "rival.sqsh"))
        print(f"  time {ours / rival:.2f} of the rival's, size {mine:.0f} MiB compared with {theirs:.0f} MiB")


if __name__ == "__main__":
    main()
