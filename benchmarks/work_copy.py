"""Creating the working directory of a run, as its batch script does, compared with `cp -r` of the same code.

With a project of 200 files, and with the largest that `submit` accepts: 20,000 files, 382 MB. The cost for a sweep of
1,000 runs is extrapolated: each run creates its own, on its own node.

python benchmarks/work_copy.py [--folder RUNS]
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from side_by_side import arguments, compare

from clusterctl.launcher.submission.script import part
from clusterctl.launcher.submission.snapshot import find_code, take_snapshot
from clusterctl.shared.record.layout import RunDir

if TYPE_CHECKING:
    from side_by_side import Timed

SIZES = {"a typical project": (200, 2 * 2**20), "the largest": (20_000, 382 * 2**20)}
FILES_A_FOLDER = 50
SWEEP = 1000


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--folder", help="folder on the file system to measure")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    for title, (files, size) in SIZES.items():
        with tempfile.TemporaryDirectory(dir=options.folder) as name:
            folder = Path(name)
            write_project(folder / "project", files, size)
            run = RunDir(folder / "runs" / "measured")
            run.path.mkdir(parents=True)
            run.code.symlink_to(take_snapshot(find_code(folder / "runs", folder / "project")))
            script = f"run={quote(str(run.path))} number=0 signal=\n{part('work.sh')}\nmake_work"
            ours = seconds_of(["bash", "-c", script], run.work)
            rival = seconds_of(["cp", "-r", str(folder / "project"), str(folder / "copy")], folder / "copy")
            compare(f"{title}: {files} files", ("work/", ours), ("cp -r", rival), bound=2.0, runs=options.runs)
            subprocess.run(["bash", "-c", script], check=True)
            used = sum(path.lstat().st_blocks * 512 for path in (run.work, *run.work.rglob("*")))
            total = f"{SWEEP * used / 2**30:.1f} GiB, {SWEEP * files} files"
            print(f"  on the disk {used / 2**20:.1f} MiB; of {SWEEP} runs {total}\n")
            subprocess.run(["chmod", "-R", "u+w", folder], check=True)


def seconds_of(words: list[str], made: Path) -> Timed:
    """Time `words`, which create a folder; removing the old folder is not timed."""

    def once() -> float:
        subprocess.run(["rm", "-rf", made], check=True)
        began = time.perf_counter()
        subprocess.run(words, check=True)
        return time.perf_counter() - began

    return once


def write_project(folder: Path, files: int, size: int) -> None:
    content = os.urandom(size // files)
    for number in range(files):
        path = folder / f"package_{number // FILES_A_FOLDER:03}" / f"module_{number:05}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


if __name__ == "__main__":
    main()
