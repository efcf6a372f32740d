"""The load of starting ranks on a slow file system, with and without `resources.local_code`.

Ranks on four emulated nodes import a generated package of 1,300 modules, and a project of 40, from a file system that
delays each operation: a FUSE passthrough, which counts the operations. Run directories and copies of the code are on
it, too; submitting is not counted. The emulated nodes share one kernel and its caches, so without copies real nodes do
more operations than are counted here.

python benchmarks/scale_staging.py [--ranks 64] [--milliseconds 0.5]

Needs root or fusermount3, and `mfusepy` (pip install mfusepy) with Debian's fuse3; without them, the exit code is 2.
"""

from __future__ import annotations

import argparse
import compileall
import importlib.util
import inspect
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from side_by_side import arguments

if TYPE_CHECKING:
    from collections.abc import Callable

NODES, FOLDERS, MODULES, OF_PROJECT = 4, 100, 1300, 40
GROUPS = {"read": ("read",), "open": ("open", "create"), "list": ("readdir",), "look up": ("getattr", "readlink")}
JOB = """
workload = "command"
argv = ["python", "start.py"]
setup = ["source {slow}/env/bin/activate"]
[resources]
nodes = {nodes}
tasks_per_node = {tasks}
time = "2h"
local_code = {staged}
"""
CLUSTER = """
kind = "emulator"
polling_floor = "1s"
python_environments = ["{slow}/env"]
local_scratch = "{scratch}"
[emulator]
nodes = {nodes}
cpus_per_node = {tasks}
"""
PROGRAM = """
import json, time
began, processor = time.time(), time.process_time()
import generated, project.all
print(json.dumps([began, time.time(), time.process_time() - processor]), flush=True)
"""


class Passthrough:
    """FUSE operations, passed through to the folder `below`."""

    use_ns = True

    def __init__(self, below: str) -> None:
        self.below = below

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        status = os.lstat(self.below + path)
        times = {f"st_{name}time": getattr(status, f"st_{name}time_ns") for name in "amc"}
        names = ("mode", "nlink", "size", "uid", "gid", "ino")
        return times | {f"st_{name}": getattr(status, f"st_{name}") for name in names}

    def statfs(self, path: str) -> dict[str, int]:
        status = os.statvfs(self.below + path)
        return {f"f_{name}": getattr(status, f"f_{name}") for name in ("bsize", "frsize", "blocks", "bfree", "bavail")}

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *os.listdir(self.below + path)]

    def readlink(self, path: str) -> str:
        return os.readlink(self.below + path)

    def open(self, path: str, flags: int) -> int:
        return os.open(self.below + path, flags & ~os.O_APPEND)  # FUSE passes the offset of each write

    def create(self, path: str, mode: int, fi: object = None) -> int:
        return os.open(self.below + path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, mode)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        return os.pwrite(fh, data, offset)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        return os.truncate(self.below + path, length) or 0

    def release(self, path: str, fh: int) -> int:
        return os.close(fh) or 0

    def mkdir(self, path: str, mode: int) -> int:
        return os.mkdir(self.below + path, mode) or 0

    def rmdir(self, path: str) -> int:
        return os.rmdir(self.below + path) or 0

    def unlink(self, path: str) -> int:
        return os.unlink(self.below + path) or 0

    def rename(self, old: str, new: str) -> int:
        return os.rename(self.below + old, self.below + new) or 0

    def symlink(self, path: str, content: str) -> int:
        return os.symlink(content, self.below + path) or 0

    def link(self, path: str, other: str) -> int:
        return os.link(self.below + other, self.below + path) or 0

    def chmod(self, path: str, mode: int) -> int:
        return os.chmod(self.below + path, mode) or 0

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        return os.utime(self.below + path, ns=times) or 0


def serve(below: str, mount: str, seconds: float) -> None:
    """Mount `below`, counting and delaying each operation by `seconds`; prints the counts for each line of stdin."""
    import mfusepy

    counts: Counter[str] = Counter()

    def slowed(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def answer(*words: Any) -> Any:
            counts[name] += 1
            time.sleep(seconds)
            return method(*words)

        return answer

    def print_counts() -> None:
        for _ in sys.stdin:
            print(json.dumps(counts), flush=True)

    operations = Passthrough(below)
    for name, method in inspect.getmembers(operations, inspect.ismethod):
        if not name.startswith("_"):
            setattr(operations, name, slowed(name, method))
    Thread(target=print_counts, daemon=True).start()
    with suppress(RuntimeError):  # ended by a signal; libfuse reports other errors itself
        mfusepy.FUSE(operations, mount, foreground=True)


class SlowFolder:
    """The mounted folder, and its operations since the last query."""

    def __init__(self, below: Path, mount: Path, seconds: float) -> None:
        words = [sys.executable, __file__, "--serve", below, mount, str(seconds)]
        self.mount = mount
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.before: Counter[str] = Counter()
        while not mount.is_mount():
            if self.process.poll() is not None:
                raise SystemExit(2)
            time.sleep(0.1)

    def asked(self) -> Counter[str]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        now = Counter(json.loads(self.process.stdout.readline()))
        found, self.before = now - self.before, now
        return found

    def unmount(self) -> None:
        self.process.terminate()  # libfuse then unmounts the folder
        self.process.wait(timeout=30)


def main() -> None:
    words = arguments(__doc__)
    words.add_argument("--ranks", type=int, default=64)
    words.add_argument("--milliseconds", type=float, default=0.5)
    words.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    given = words.parse_args()
    if given.serve:
        serve(given.serve[0], given.serve[1], float(given.serve[2]))
        return
    if missing := lacking():
        print(f"no FUSE here: {missing}", file=sys.stderr)
        raise SystemExit(2)
    with tempfile.TemporaryDirectory(prefix="staging-", ignore_cleanup_errors=True) as name:
        compare(Path(name), given.ranks, given.milliseconds / 1000)


def lacking() -> str:
    """What this machine lacks for a FUSE passthrough."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "cannot open /dev/fuse"
    try:
        return (
            "" if importlib.util.find_spec("mfusepy") and importlib.import_module("mfusepy") else "pip install mfusepy"
        )
    except (OSError, ImportError) as error:  # libfuse is missing
        return f"{error}; apt install fuse3"


def compare(folder: Path, ranks: int, seconds: float) -> None:
    for part in ("below", "slow", "scratch"):
        (folder / part).mkdir()
    write_modules(folder / "below")
    slow = SlowFolder(folder / "below", folder / "slow", seconds)
    try:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", slow.mount / "env"], check=True)
        print(f"{ranks} ranks on {NODES} nodes, each operation delayed by {seconds * 1000:g} ms")
        print(
            f"{'':>8}" + "".join(f"{name:>10}" for name in (*GROUPS, "other", "all", "import, s", "CPU, s", "start, s"))
        )
        alls = [show(label, *started(folder, slow, ranks, label)) for label in ("shared", "copied")]
        print(f"{'ratio':>8}" + " " * 50 + f"{alls[0][0] / alls[1][0]:>10.1f}{alls[0][1] / alls[1][1]:>10.1f}")
    finally:
        slow.unmount()


def write_modules(below: Path) -> None:
    """An environment with the package, compiled as pip does, and the project."""
    packages = below / "env" / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    body = "\n".join(f"def function_{number}(x):\n    return x * {number}\n" for number in range(40))
    files = {packages / "generated" / "__init__.py": "".join(f"import generated.f{i}\n" for i in range(FOLDERS))}
    each = MODULES // FOLDERS
    for i in range(FOLDERS):
        inside = packages / "generated" / f"f{i}"
        files[inside / "__init__.py"] = "".join(f"from generated.f{i} import m{j}\n" for j in range(1, each))
        files |= {inside / f"m{j}.py": body for j in range(1, each)}
    files |= {below / "project" / "project" / f"m{i}.py": body for i in range(OF_PROJECT)}
    files[below / "project" / "project" / "all.py"] = "".join(f"import project.m{i}\n" for i in range(OF_PROJECT))
    files[below / "project" / "start.py"] = PROGRAM
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    compileall.compile_dir(packages, quiet=2)


def started(folder: Path, slow: SlowFolder, ranks: int, label: str) -> tuple[Counter[str], list[list[float]], float]:
    """The operations of a run on the folder, each rank's times, and when the run started."""
    import clusterctl

    fields = {"slow": slow.mount, "scratch": folder / "scratch", "nodes": NODES, "tasks": ranks // NODES}
    (folder / "cluster.toml").write_text(CLUSTER.format(**fields))
    job = folder / "below" / "project" / "job.toml"
    job.write_text(JOB.format(**fields, staged=str(label == "copied").lower()))
    os.environ["CLUSTERCTL_RUNS"] = str(slow.mount / "runs")
    changes = {"code": str(slow.mount / "project")}
    run = clusterctl.submit(job, str(folder / "cluster.toml"), overrides=changes, hold=True)
    slow.asked()
    run.release()
    below = folder / "below" / "runs" / run.id  # reading it here is not counted
    while (
        not (below / "attempts" / "0" / "host.json").exists()
        or '"end"' not in (below / "attempts/0/host.json").read_text()
    ):
        time.sleep(0.2)
    asked = slow.asked()
    logs = [(below / "attempts" / "0" / "logs" / f"rank_{rank:05}.out").read_text() for rank in range(ranks)]
    began = json.loads((below / "attempts" / "0" / "host.json").read_text())["start"]
    return asked, [json.loads(log.splitlines()[-1]) for log in logs], began


def show(label: str, asked: Counter[str], ranks: list[list[float]], began: float) -> tuple[int, float]:
    groups = {group: sum(asked[name] for name in names) for group, names in GROUPS.items()}
    whole = asked.total()
    seconds = [end - begin for begin, end, _ in ranks]
    numbers = [*groups.values(), whole - sum(groups.values()), whole]
    line = "".join(f"{number:>10,}" for number in numbers)
    slowest, processor = max(seconds), sum(rank[2] for rank in ranks)
    print(
        f"{label:>8}{line}{slowest:>10.1f}{processor:>10.1f}{max(rank[1] for rank in ranks) - began:>10.1f}", flush=True
    )
    return whole, slowest


if __name__ == "__main__":
    main()
